"""The audit writer: events in a line through processors to a file, written by one thread.

Recording never waits for the disk: the caller is vLLM's scheduler or the server's event loop. A
thread chains, writes and signs. While it can't write, `accepting` is false, and whoever must not
act unaccounted stops; what then finds no room in the queue is counted, and the trail tells the
number.
"""

import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvcustody.audit.chain import canonical, digest, first_link, sign_checkpoint
from kvcustody.audit.events import CHECKPOINT, COMMON_FIELDS, EVENTS, GAP, INVALID, OPENING
from kvcustody.errors import ConfigurationError
from kvcustody.private_folders import make_private_folder, what_is_open_to_others

# About 20 MB of events; a healthy writer holds a handful.
_MOST_WAITING: Final = 65_536
_RETRY_SECONDS: Final = 1.0
# A disk that takes longer is as good as none.
_HANGS_SECONDS: Final = 3.0
_CLOSE_SECONDS: Final = 10.0
# No field of ours is longer; what a client can influence (a path) is cut.
_LONGEST_TEXT: Final = 512
_VERSION: Final = 1

_Event = dict[str, Any]


class AuditLog(Protocol):
    """Where events go."""

    @property
    def accepting(self) -> bool:
        """Whether what is done now can be accounted for."""

    def record(self, event: str, **fields: Any) -> None:
        """Record an event of the catalogue; returns at once and never raises."""


class AuditWriter:
    """A new stream of the trail.

    Args:
        directory: the audit folder; made if missing.
        kind: what writes it, such as `engine`; begins the stream's name.
        signing_key: signs checkpoints.
        on_failure: `block` stops accepting while the trail can't be written; `continue` doesn't.
        checkpoint_every: seconds between checkpoints while there are events.
        deployment: name of the deployment.
        policy_version: the version in force, for events that don't name one themselves.
        clock: seconds since 1970.

    Raises:
        ConfigurationError: the folder can't be written.

    """

    def __init__(
        self,
        directory: Path,
        *,
        kind: str,
        signing_key: Ed25519PrivateKey,
        on_failure: Literal["block", "continue"],
        checkpoint_every: float,
        deployment: str,
        policy_version: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._policy_version = policy_version
        self._must_account = on_failure == "block"
        self._checkpoint_every = checkpoint_every
        self._clock = clock
        self._signing_key = signing_key
        self.stream, self._file = _create_segment(directory, kind, clock())
        # Guards _waiting, _last_time, _dropped and _closing.
        self._changed = threading.Condition()
        self._waiting: deque[_Event] = deque()
        self._last_time = 0.0
        self._dropped = 0
        self._closing = False
        self._failing = False
        self._write_began: float | None = None
        # Below here only the writing thread's.
        self._seq = 0
        self._link = first_link(self.stream)
        self._size = 0
        self._log = structlog.wrap_logger(
            self,
            processors=[_name_event, _keep_to_catalogue, _plain_values],
            wrapper_class=_Recorder,
        )
        self._open(directory, kind, deployment)
        self._thread = threading.Thread(target=self._run, name="kvcustody-audit", daemon=True)
        self._thread.start()

    @property
    def accepting(self) -> bool:
        """Whether what is done now can be accounted for."""
        began = self._write_began
        hangs = began is not None and time.monotonic() - began > _HANGS_SECONDS
        return not (self._must_account and (self._failing or hangs))

    def record(self, event: str, **fields: Any) -> None:
        """Record an event of the catalogue; returns at once and never raises.

        Args:
            event: name in the catalogue; another is recorded as `audit.invalid`.
            fields: the event's fields; those that the catalogue lacks are left out, and named.

        """
        self._log.record(event, **fields)

    def enqueue(self, **event: Any) -> None:
        """Take an event that has passed all processors; the end of the line."""
        if event["policy_version"] is None:
            event["policy_version"] = self._policy_version()
        with self._changed:
            if self._closing or len(self._waiting) >= _MOST_WAITING:
                self._dropped += 1
                self._failing = True
                return
            # A stream's times never run backwards, whatever the clock is set to meanwhile.
            self._last_time = max(self._last_time, self._clock())
            event["time"] = _format_time(self._last_time)
            self._waiting.append(event)
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, sign a last checkpoint and stop; safe to call twice.

        A disk that hangs is not waited for longer than some seconds; then the trail shows no end.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)

    def _open(self, directory: Path, kind: str, deployment: str) -> None:
        """Write the opening, signed at once: a stream that nobody signed proves nothing."""
        opening = self._internal(
            OPENING,
            action="open",
            outcome="ok",
            deployment=deployment,
            kind=kind,
            version=_VERSION,
            process=os.getpid(),
            checkpoint_every=self._checkpoint_every,
        )
        try:
            self._write([opening], checkpoint=True, final=False)
        except OSError as error:
            os.close(self._file)
            raise _unwritable(directory, error) from None

    def _run(self) -> None:
        unsigned = False
        next_checkpoint = time.monotonic() + self._checkpoint_every
        while True:
            batch, dropped, closing = self._take(None if not unsigned else next_checkpoint)
            if dropped:
                batch.append(self._internal(GAP, outcome="failed", dropped=dropped))
            unsigned = unsigned or bool(batch)
            due = closing or (unsigned and time.monotonic() >= next_checkpoint)
            if batch or due:
                self._write_until_done(batch, checkpoint=due, final=closing)
            if due:
                unsigned = False
            if closing:
                os.close(self._file)
                return
            if due or not unsigned:
                next_checkpoint = time.monotonic() + self._checkpoint_every

    def _take(self, until: float | None) -> tuple[list[_Event], int, bool]:
        """What waits, once there is something, or a time has come."""
        with self._changed:
            while not (self._waiting or self._closing or (self._dropped and not self._failing)):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            batch = list(self._waiting)
            self._waiting.clear()
            dropped, self._dropped = self._dropped, 0
            return batch, dropped, self._closing

    def _write_until_done(self, batch: list[_Event], *, checkpoint: bool, final: bool) -> None:
        """Write a batch; while that fails, say so by `accepting`, and try again until closed."""
        while True:
            try:
                self._write_began = time.monotonic()
                self._write(batch, checkpoint=checkpoint, final=final)
            except OSError:
                self._failing = True
                with self._changed:
                    if self._closing:
                        return  # the disk had its last chance; the trail shows no end
                    self._changed.wait_for(lambda: self._closing, _RETRY_SECONDS)
            else:
                self._failing = False
                return
            finally:
                self._write_began = None

    def _write(self, batch: list[_Event], *, checkpoint: bool, final: bool) -> None:
        seq, link = self._seq, self._link
        lines: list[bytes] = []

        def add(event: Mapping[str, Any], *, sign: bool = False) -> None:
            nonlocal seq, link
            seq += 1
            record = {**event, "seq": seq, "stream": self.stream, "prev": link}
            line = canonical(sign_checkpoint(record, self._signing_key) if sign else record)
            link = digest(line)
            lines.append(line + b"\n")

        for event in batch:
            add(event)
        if checkpoint:
            add(self._internal(CHECKPOINT, outcome="ok", records=seq + 1, final=final), sign=True)
        self._append(b"".join(lines), durable=checkpoint)
        self._seq, self._link = seq, link

    def _append(self, content: bytes, *, durable: bool) -> None:
        if os.fstat(self._file).st_nlink == 0:
            raise FileNotFoundError("the segment was deleted")
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(self._file, view) :]
            if durable:
                os.fsync(self._file)
        except OSError:
            # No half line, and no line twice when it is tried again.
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(content)

    def _internal(self, event: str, **fields: Any) -> _Event:
        """An event of the trail's own, which doesn't wait in the queue."""
        with self._changed:
            self._last_time = max(self._last_time, self._clock())
            now = _format_time(self._last_time)
        common = {**dict.fromkeys(COMMON_FIELDS), "policy_version": self._policy_version()}
        return {**common, "event": event, "time": now, **fields}


class _Recorder(structlog.BoundLoggerBase):
    """The structlog logger whose one method is `record`."""

    def record(self, event: str, **fields: Any) -> None:
        self._proxy_to_logger("enqueue", event, **fields)


def _name_event(_logger: Any, _method: str, event: Any) -> Any:
    """Give the event all common fields."""
    return {**dict.fromkeys(COMMON_FIELDS), **event}


def _keep_to_catalogue(_logger: Any, _method: str, event: Any) -> Any:
    """Let only known events and fields pass; what is left out is named, not shown."""
    name = event["event"]
    if name not in EVENTS:
        return {
            **dict.fromkeys(COMMON_FIELDS),
            "event": INVALID,
            "outcome": "failed",
            "rejected_event": str(name),
            "rejected_fields": sorted(event.keys() - {"event", *COMMON_FIELDS}),
        }
    known = {"event", *COMMON_FIELDS, *EVENTS[name]}
    return {field: value for field, value in event.items() if field in known}


def _plain_values(_logger: Any, _method: str, event: Any) -> Any:
    """Make every value plain JSON of bounded size."""
    return {name: _plain(value) for name, value in event.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name)[:_LONGEST_TEXT]: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return f"<{type(value).__name__}>"


def check_writable(directory: Path) -> None:
    """Check that a trail can be written, without beginning one.

    Raises:
        ConfigurationError: it can't.

    """
    probe, descriptor = _create_segment(directory, ".probe", 0.0)
    os.close(descriptor)
    (directory / f"{probe}.jsonl").unlink(missing_ok=True)


def _create_segment(directory: Path, kind: str, now: float) -> tuple[str, int]:
    day = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    stream = f"{kind}-{day}-{secrets.token_hex(4)}"
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        make_private_folder(directory)
        if (problem := what_is_open_to_others(directory, readable=True)) is not None:
            raise ConfigurationError(problem, directory)
        return stream, os.open(directory / f"{stream}.jsonl", flags, 0o600)
    except OSError as error:
        raise _unwritable(directory, error) from None


def _unwritable(directory: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"the audit trail can't be written: {error.strerror}; check audit.path and its permissions",
        directory,
    )


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat("T", "microseconds")
