"""What every tier store promises. A new store is one more line in `IMPLEMENTATIONS`."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcustody.stores import Address, FilesystemStore, TierStore

pytestmark = pytest.mark.unit

IMPLEMENTATIONS: dict[str, Callable[[Path], TierStore]] = {
    "filesystem": lambda folder: FilesystemStore(folder / "tier"),
}

HERE = Address(b"\x01" * 16, b"\x02" * 32)
ELSEWHERE = [
    Address(b"\x01" * 16, b"\x03" * 32),
    Address(b"\x03" * 16, b"\x02" * 32),
    Address(b"\x02" * 16, b"\x01" * 32),
    Address(b"\x01" * 16, b"\x02" * 31 + b"\x00"),
]
BLOCK = b"a sealed block"


@pytest.fixture(params=IMPLEMENTATIONS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TierStore:
    return IMPLEMENTATIONS[request.param](tmp_path)


def put(store: TierStore, address: Address, block: bytes) -> None:
    store.put(address, memoryview(block))


def get(store: TierStore, address: Address, size: int = 100) -> bytes | None:
    buffer = bytearray(size)
    count = store.get(address, memoryview(buffer))
    return None if count is None else bytes(buffer[:count])


def test_a_block_comes_back_as_it_was_put(store: TierStore) -> None:
    put(store, HERE, BLOCK)
    assert get(store, HERE) == BLOCK
    assert get(store, HERE) == BLOCK


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    namespace=st.binary(min_size=16, max_size=16),
    name=st.binary(min_size=32, max_size=32),
    block=st.binary(min_size=1, max_size=500),
)
def test_any_address_and_any_bytes_do(
    store: TierStore, namespace: bytes, name: bytes, block: bytes
) -> None:
    address = Address(namespace, name)
    put(store, address, block)
    assert store.exists(address)
    assert get(store, address, 500) == block
    assert address in set(store.addresses())
    assert store.delete(address)


def test_a_block_of_megabytes_comes_back_whole(store: TierStore) -> None:
    block = os.urandom(3_000_001)
    put(store, HERE, block)
    assert get(store, HERE, len(block) + 1) == block


def test_a_block_may_come_from_a_part_of_a_larger_buffer(store: TierStore) -> None:
    whole = bytearray(b"before" + BLOCK + b"after")
    store.put(HERE, memoryview(whole)[6 : 6 + len(BLOCK)])
    assert get(store, HERE) == BLOCK


def test_a_block_that_was_never_put_is_no_error(store: TierStore) -> None:
    assert get(store, HERE) is None
    assert store.exists(HERE) is False
    assert store.delete(HERE) is False
    assert list(store.addresses()) == []


def test_a_missing_block_leaves_the_buffer_alone(store: TierStore) -> None:
    buffer = bytearray(b"untouched")
    assert store.get(HERE, memoryview(buffer)) is None
    assert buffer == b"untouched"


def test_a_block_is_found_at_its_address_only(store: TierStore) -> None:
    put(store, HERE, BLOCK)
    assert store.exists(HERE)
    for address in ELSEWHERE:
        assert not store.exists(address)
        assert get(store, address) is None
        assert not store.delete(address)
    assert get(store, HERE) == BLOCK


def test_a_newer_block_replaces_the_older(store: TierStore) -> None:
    put(store, HERE, b"an older and longer block")
    put(store, HERE, BLOCK)
    assert get(store, HERE) == BLOCK
    assert list(store.addresses()) == [HERE]


@pytest.mark.parametrize("size", [0, 1, len(BLOCK) - 1, len(BLOCK)])
def test_a_block_longer_than_the_buffer_is_cut_there(store: TierStore, size: int) -> None:
    put(store, HERE, BLOCK)
    assert get(store, HERE, size) == BLOCK[:size]


def test_a_block_shorter_than_the_buffer_leaves_the_rest_alone(store: TierStore) -> None:
    put(store, HERE, BLOCK)
    buffer = bytearray(b"\xaa" * 100)
    assert store.get(HERE, memoryview(buffer)) == len(BLOCK)
    assert buffer[len(BLOCK) :] == b"\xaa" * (100 - len(BLOCK))


def test_a_deleted_block_is_gone(store: TierStore) -> None:
    put(store, HERE, BLOCK)
    assert store.delete(HERE) is True
    assert store.delete(HERE) is False
    assert store.exists(HERE) is False
    assert get(store, HERE) is None
    assert list(store.addresses()) == []


def test_a_deleted_block_may_be_put_again(store: TierStore) -> None:
    put(store, HERE, b"first")
    store.delete(HERE)
    put(store, HERE, BLOCK)
    assert get(store, HERE) == BLOCK


def test_all_blocks_are_listed_once(store: TierStore) -> None:
    addresses = {HERE, *ELSEWHERE}
    for address in addresses:
        put(store, address, BLOCK)
    listed = list(store.addresses())
    assert len(listed) == len(addresses)
    assert set(listed) == addresses


def test_blocks_may_be_deleted_while_they_are_listed(store: TierStore) -> None:
    for address in (HERE, *ELSEWHERE):
        put(store, address, BLOCK)
    for address in store.addresses():
        assert store.delete(address)
    assert list(store.addresses()) == []


def test_a_reader_sees_one_whole_block_or_the_other(store: TierStore) -> None:
    blocks = [bytes([number]) * 50_000 for number in range(4)]
    put(store, HERE, blocks[0])
    stop = threading.Event()
    torn: list[bytes] = []

    def read() -> None:
        while not stop.is_set():
            found = get(store, HERE, 50_001)
            if found not in blocks:
                torn.append(found or b"")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(25):
        for block in blocks:
            put(store, HERE, block)
    stop.set()
    for reader in readers:
        reader.join(5)
    assert torn == []


def test_threads_may_put_the_same_block_at_once(store: TierStore) -> None:
    failures: list[Exception] = []

    def work() -> None:
        try:
            for address in (HERE, *ELSEWHERE) * 5:
                put(store, address, BLOCK)
                get(store, address)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert failures == []
    assert {get(store, address) for address in (HERE, *ELSEWHERE)} == {BLOCK}
