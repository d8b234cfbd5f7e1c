"""A bound on how long a key provider may take, whatever it hangs on."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from kvcustody.errors import CustodyError, UnavailableError
from kvcustody.sealing.providers.base import KeyContext, KeyProvider
from kvcustody.sealing.secret import wipe
from kvcustody.workers import WorkerPool

_Answer = TypeVar("_Answer")

# As many calls at once as an engine's start makes; each is a thread.
_THREADS = 4
_CLOSE_SECONDS = 1.0


class _Call(Generic[_Answer]):
    """One call of the provider, and what became of it."""

    def __init__(self, operation: Callable[[], _Answer]) -> None:
        self.operation = operation
        self.answer: list[_Answer] = []
        self.error: Exception | None = None
        self.ended = threading.Event()
        self.running = False
        self.given_up = False

    def start(self) -> bool:
        """Whether the caller still waits for it; then it is running."""
        self.running = not self.given_up
        return self.running

    def forget(self) -> None:
        """Wipe a key that nobody waits for any more."""
        for answer in self.answer:
            if isinstance(answer, bytearray):
                wipe(answer)


class DeadlineProvider:
    """Gives up on a provider that doesn't answer, such as a dead HSM or a resolver that hangs.

    A call that hangs keeps its thread. Once all threads hang, calls fail at once until one of them
    comes back; so there are never more threads than at the start.

    Args:
        provider: the one to bound; it is closed with this one.
        name: what to call it in errors, such as `aws-kms`.
        deadline: seconds that each call may take.
        threads: how many calls run at once.

    """

    def __init__(
        self,
        provider: KeyProvider,
        name: str,
        *,
        deadline: float = 5.0,
        threads: int = _THREADS,
    ) -> None:
        self._provider = provider
        self._name = name
        self._deadline = deadline
        self._threads = threads
        self._workers = WorkerPool(f"keys-{name}", threads)
        # Guards the two below, and each call's change from waiting to running, done or given up.
        self._lock = threading.Lock()
        self._hanging = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"DeadlineProvider({self._provider!r}, {self._deadline:g} s)"

    @property
    def root(self) -> str:
        """Identifier of the root key.

        Raises:
            UnavailableError: no answer in time, or the provider can't be reached.
            ConfigurationError: the provider refuses, or has no such key.

        """
        return self._call(lambda: self._provider.root)

    def wrap(self, secret: bytes | bytearray, context: KeyContext) -> bytes:
        """Encrypt a key so that it unwraps only with the same context.

        Raises:
            UnavailableError: no answer in time, or the provider can't be reached.
            ConfigurationError: the provider refuses.

        """
        return self._call(lambda: self._provider.wrap(secret, context))

    def unwrap(self, wrapped: bytes, context: KeyContext) -> bytearray:
        """Decrypt a wrapped key; the caller wipes what it gets.

        Raises:
            WrappedKeyError: wrong root key, wrong context, or altered.
            UnavailableError: no answer in time, or the provider can't be reached.
            ConfigurationError: the provider refuses.

        """
        return self._call(lambda: self._provider.unwrap(wrapped, context))

    def close(self) -> None:
        """Close the provider, unless all threads hang; nothing works afterwards."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._workers.submit(self._provider.close)
        self._workers.close(_CLOSE_SECONDS)

    def _call(self, operation: Callable[[], _Answer]) -> _Answer:
        call: _Call[_Answer] = _Call(operation)
        with self._lock:
            if self._closed:
                raise CustodyError(f"the key provider {self._name} is closed; open it anew")
            if self._hanging >= self._threads:
                raise UnavailableError(
                    f"the key provider {self._name} still doesn't answer; check its service"
                )
            self._workers.submit(lambda: self._run(call))
        if not call.ended.wait(self._deadline):
            self._give_up(call)
        if call.error is not None:
            raise call.error
        return call.answer[0]

    def _run(self, call: _Call[_Answer]) -> None:
        with self._lock:
            if not call.start():
                return
        try:
            call.answer.append(call.operation())
        except Exception as error:  # noqa: BLE001 - the caller's, whatever it is
            call.error = error
        with self._lock:
            if call.given_up:
                self._hanging -= 1
                call.forget()
            else:
                call.ended.set()

    def _give_up(self, call: _Call[_Answer]) -> None:
        with self._lock:
            if call.ended.is_set():
                return
            call.given_up = True
            self._hanging += call.running
        raise UnavailableError(
            f"the key provider {self._name} didn't answer in {self._deadline:g} s; "
            "check its service and the network"
        )
