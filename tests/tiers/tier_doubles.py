"""What tests of a governed tier share: a store and an audit log that are test doubles."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvcustody.admission import Grant
from kvcustody.identity.principal import Principal
from kvcustody.policy import UNKNOWN_MODEL, Decision, TierDecision
from kvcustody.sealing import (
    DataKey,
    Epochs,
    NamespaceKeys,
    OpenFailure,
    SecretKey,
)
from kvcustody.stores import Address
from kvcustody.tiers import GovernedTier, JobOutcome, Presence, Slot

TIER = "disk"
LAYOUT = b"l" * 32
BLOCK_BYTES = 64
NOW = 1_700_000_000.0
KEY = DataKey(b"k" * 16, b"\x01" * 32)
DESTROYED_KEY = DataKey(b"d" * 16, b"\x03" * 32)
NAMESPACE = b"n" * 16
# Longer than any test waits: what takes this long hangs.
PATIENCE = 5.0


class RecordingAudit:
    """An audit log that keeps what it is told."""

    def __init__(self) -> None:
        self.accepting = True
        self.events: list[dict[str, Any]] = []

    def record(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})

    def named(self, event: str) -> list[dict[str, Any]]:
        """The events of a name."""
        return [recorded for recorded in self.events if recorded["event"] == event]


class MemoryStore:
    """A store in a dictionary, each method of which can be made to hang or to fail."""

    def __init__(self) -> None:
        self.blocks: dict[Address, bytes] = {}
        self.calls: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.hung: dict[str, threading.Event] = {}

    def hang(self, method: str) -> None:
        """Make a method hang until `release`."""
        self.hung[method] = threading.Event()

    def release(self) -> None:
        """Let everything that hangs go on."""
        for event in self.hung.values():
            event.set()

    def put(self, address: Address, sealed: memoryview) -> None:
        self._enter("put")
        self.blocks[address] = bytes(sealed)

    def get(self, address: Address, buffer: memoryview) -> int | None:
        self._enter("get")
        block = self.blocks.get(address)
        if block is None:
            return None
        count = min(len(block), len(buffer))
        buffer[:count] = block[:count]
        return count

    def exists(self, address: Address) -> bool:
        self._enter("exists")
        return address in self.blocks

    def delete(self, address: Address) -> bool:
        self._enter("delete")
        return self.blocks.pop(address, None) is not None

    def addresses(self) -> Iterator[Address]:
        return iter(list(self.blocks))

    def _enter(self, method: str) -> None:
        self.calls.append(method)
        if method in self.hung:
            assert self.hung[method].wait(2 * PATIENCE)
        if method in self.errors:
            raise self.errors[method]


class Custody:
    """A tier with a store, an audit log and a clock that the test holds in its hand."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.audit = RecordingAudit()
        self.now = NOW
        self._tiers: list[GovernedTier] = []

    def tier(self, *, ttl: float = 3600.0, deadline: float = PATIENCE) -> GovernedTier:
        """A tier on the store; closed at the end of the test."""
        tier = GovernedTier(
            TIER,
            self.store,
            self.audit,
            layout=LAYOUT,
            block_bytes=BLOCK_BYTES,
            ttl=ttl,
            lookup_deadline=deadline,
            load_deadline=deadline,
            clock=lambda: self.now,
        )
        self._tiers.append(tier)
        return tier

    def close(self) -> None:
        """Let go what hangs, and close all tiers."""
        self.store.release()
        for tier in self._tiers:
            assert tier.close()


def grant(
    *,
    store: bool = True,
    load: bool = True,
    request_id: str = "request-1",
    ttl: float | None = None,
    data_keys: Mapping[bytes, DataKey | OpenFailure] | None = None,
    learn: Callable[[NamespaceKeys], None] | None = None,
) -> Grant:
    known: dict[bytes, DataKey | OpenFailure] = {
        KEY.key_id: KEY,
        DESTROYED_KEY.key_id: OpenFailure.KEY_DESTROYED,
    }
    epochs = Epochs(known if data_keys is None else data_keys, KEY, 0.0)
    return Grant(
        Principal("acme", "support"),
        request_id,
        f"cmpl-{request_id}-0",
        "salt",
        NamespaceKeys(NAMESPACE, SecretKey(b"\x02" * 32), epochs, learn=learn),
        {TIER: TierDecision(store=Decision(store, "p.csv:1"), load=Decision(load, "p.csv:1"))},
        "policy-1",
        ttl,
        UNKNOWN_MODEL,
        None,
    )


WHO = {
    "tenant": "acme",
    "workload": "support",
    "request_id": "request-1",
    "policy_version": "policy-1",
    "tier": TIER,
}


def address(number: int = 0) -> Address:
    return Address(NAMESPACE, bytes([number]) * 32)


def content(number: int = 0) -> bytes:
    return f"secret prompt {number:02} ".encode().ljust(BLOCK_BYTES, b".")


def slot(number: int = 0, memory: bytes | bytearray | None = None) -> Slot:
    """A block and its place in host memory, which holds another request's data by default."""
    place = bytearray(b"\xaa" * BLOCK_BYTES) if memory is None else bytearray(memory)
    return Slot(f"block-{number}".encode(), address(number), memoryview(place))


def full_slots(count: int) -> list[Slot]:
    return [slot(number, content(number)) for number in range(count)]


def empty_slots(count: int) -> list[Slot]:
    return [slot(number) for number in range(count)]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


def outcome_of(tier: GovernedTier) -> JobOutcome:
    """The outcome of the one job that the tier has."""
    outcomes: list[JobOutcome] = []

    def ended() -> bool:
        outcomes.extend(tier.finished())
        return bool(outcomes)

    eventually(ended)
    assert len(outcomes) == 1
    return outcomes[0]


def store_blocks(custody: Custody, tier: GovernedTier, count: int = 1) -> None:
    """Store blocks 0, 1, ... and wait until they lie in the store."""
    tier.submit_store(99, grant(), full_slots(count))
    assert outcome_of(tier).failed == ()
    eventually(lambda: bool(custody.audit.named("blocks.stored")))
    custody.audit.events.clear()
    custody.store.calls.clear()


def answered(tier: GovernedTier, asked: Address, by: Grant) -> Presence:
    """What a lookup says once it says something."""
    found: list[Presence] = []

    def known() -> bool:
        found.append(tier.lookup(by, asked))
        tier.flush_lookups()
        return found[-1] is not Presence.UNKNOWN

    eventually(known)
    return found[-1]


def within(seconds: float, work: Callable[[], object]) -> bool:
    """Whether something ends in time; it goes on in its thread if not."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
