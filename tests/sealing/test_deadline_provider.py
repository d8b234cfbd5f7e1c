import threading
import time
from collections.abc import Iterator

import pytest

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.sealing.providers import KeyContext, WrappedKeyError, deadline
from kvcustody.sealing.providers.deadline import DeadlineProvider

pytestmark = pytest.mark.unit

CONTEXT = KeyContext("data key", "one")
DEADLINE = 0.05


class HangingProvider:
    """A double of a provider whose service can be made to hang, and says how it was used."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.error: Exception | None = None
        self.calls = 0
        self.returned: list[bytearray] = []
        self.closed = threading.Event()

    def _wait(self) -> None:
        self.calls += 1
        self.answers.wait()
        if self.error is not None:
            raise self.error

    @property
    def root(self) -> str:
        self._wait()
        return "double:root"

    def wrap(self, secret: bytes | bytearray, context: KeyContext) -> bytes:
        self._wait()
        return bytes(secret) + context.encode()

    def unwrap(self, wrapped: bytes, context: KeyContext) -> bytearray:
        self._wait()
        self.returned.append(bytearray(wrapped.removesuffix(context.encode())))
        return self.returned[-1]

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def service() -> Iterator[HangingProvider]:
    service = HangingProvider()
    yield service
    service.answers.set()


@pytest.fixture
def provider(service: HangingProvider) -> Iterator[DeadlineProvider]:
    provider = DeadlineProvider(service, "double", deadline=DEADLINE, threads=2)
    yield provider
    service.answers.set()
    provider.close()


def workers() -> int:
    return sum(thread.name.startswith("keys-double") for thread in threading.enumerate())


def until(what: str) -> Iterator[None]:
    """Poll for something that another thread does soon."""
    latest = time.monotonic() + 5
    while time.monotonic() < latest:
        yield
        time.sleep(0.005)
    pytest.fail(f"not within 5 s: {what}")


def test_answers_come_through(provider: DeadlineProvider) -> None:
    assert provider.root == "double:root"
    assert provider.unwrap(provider.wrap(b"k" * 32, CONTEXT), CONTEXT) == b"k" * 32


@pytest.mark.parametrize("error", [WrappedKeyError("x"), ConfigurationError("x"), KeyError("x")])
def test_errors_come_through_as_they_are(
    provider: DeadlineProvider, service: HangingProvider, error: Exception
) -> None:
    service.error = error
    with pytest.raises(type(error)) as caught:
        provider.wrap(b"k" * 32, CONTEXT)
    assert caught.value is error


def test_a_provider_that_hangs_is_given_up_in_time(
    provider: DeadlineProvider, service: HangingProvider
) -> None:
    service.answers.clear()
    for use in (lambda: provider.root, lambda: provider.wrap(b"", CONTEXT)):
        started = time.monotonic()
        with pytest.raises(UnavailableError, match=r"double didn't answer in 0\.05 s"):
            use()
        assert DEADLINE <= time.monotonic() - started < 1


def test_once_all_threads_hang_calls_fail_at_once_and_none_piles_up(
    provider: DeadlineProvider, service: HangingProvider
) -> None:
    service.answers.clear()
    for _ in range(2):
        with pytest.raises(UnavailableError, match="didn't answer"):
            provider.unwrap(b"", CONTEXT)
    started = time.monotonic()
    for _ in range(100):
        with pytest.raises(UnavailableError, match="still doesn't answer"):
            provider.unwrap(b"", CONTEXT)
    assert time.monotonic() - started < DEADLINE * 10
    assert (service.calls, workers()) == (2, 2)


def test_a_provider_that_comes_back_is_used_again(
    provider: DeadlineProvider, service: HangingProvider
) -> None:
    service.answers.clear()
    for _ in range(2):
        with pytest.raises(UnavailableError):
            provider.unwrap(b"late", CONTEXT)
    service.answers.set()
    for _ in until("the provider answers"):
        try:
            assert provider.root == "double:root"
        except UnavailableError:
            continue
        break
    for _ in until("keys that came too late are wiped"):
        if service.returned == [bytearray(4), bytearray(4)]:
            break


def test_a_call_that_nobody_waits_for_is_not_made(
    provider: DeadlineProvider, service: HangingProvider
) -> None:
    service.answers.clear()
    callers = [threading.Thread(target=_wrap, args=(provider,)) for _ in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(5)
    service.answers.set()
    for _ in until("both threads are free"):
        try:
            assert provider.root == "double:root"
        except UnavailableError:
            continue
        break
    # Two ran and hung; the other four waited for a thread until they were given up.
    assert service.calls <= 2 + 1


def _wrap(provider: DeadlineProvider) -> None:
    with pytest.raises(UnavailableError):
        provider.wrap(b"", CONTEXT)


def test_a_closed_provider_says_so_and_has_closed_the_one_inside(
    provider: DeadlineProvider, service: HangingProvider
) -> None:
    provider.close()
    provider.close()
    assert service.closed.is_set()
    assert workers() == 0
    with pytest.raises(CustodyError, match="double is closed"):
        provider.wrap(b"", CONTEXT)


def test_closing_a_provider_that_hangs_does_not_hang(
    provider: DeadlineProvider, service: HangingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "_CLOSE_SECONDS", 0.1)
    service.answers.clear()
    for _ in range(2):
        with pytest.raises(UnavailableError):
            provider.unwrap(b"", CONTEXT)
    started = time.monotonic()
    provider.close()
    assert time.monotonic() - started < 1
