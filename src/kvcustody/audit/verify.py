"""Verify a trail: that no record was altered, dropped, added or moved since it was written.

For each line, in order:
1. it is a record in canonical form → else `malformed`;
2. it belongs to the stream that its file is named after → else `wrong-stream`;
3. it has the next number → else `missing` or `out-of-order`;
4. it names the digest of the line before → else that line was `edited`;
5. its time is not before that of the line before → else `clock-reversal`;
6. if it is a checkpoint, its signature is right → else `bad-signature`;
7. it is signed by a checkpoint in time → else `unsigned`.
The opening of a stream is signed at once, and says how often the rest is. Records of the last few
seconds are not signed yet in a stream that is being written or whose process was killed: a note.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvcustody.audit.chain import canonical, checkpoint_is_genuine, digest, first_link
from kvcustody.audit.events import CHAIN_FIELDS, CHECKPOINT, COMMON_FIELDS, OPENING
from kvcustody.audit.query import segments
from kvcustody.errors import ConfigurationError

# How late a checkpoint may be: a busy machine is slow, and its writer may have to try again.
_LATE_FACTOR = 2
_LATE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with the trail.

    Args:
        kind: what; see the module's text.
        file: the segment.
        line: 1-based line in it; 0 for the file as a whole.
        seq: the record's number, as far as known.

    """

    kind: str
    file: Path
    line: int
    seq: int | None


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What a verification found.

    Args:
        records: how many records were read.
        findings: what is wrong; empty if the trail is intact.
        notes: what a reviewer should know, but isn't wrong.

    """

    records: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify_directory(directory: Path, public_key: Ed25519PublicKey) -> VerificationReport:
    """Verify all streams below a folder.

    Args:
        directory: the audit folder, or a copy.
        public_key: of the deployment's audit signing key.

    Raises:
        ConfigurationError: there is no trail to verify, or it can't be read.

    """
    files = segments(directory)
    if not files:
        raise ConfigurationError("no audit segments (*.jsonl) below this folder", directory)
    findings: list[Finding] = []
    notes: list[str] = []
    records = 0
    for file in files:
        check = _StreamCheck(file, public_key)
        findings += check.run()
        records += check.records
        if check.unsigned:
            notes.append(f"{file.name}: {check.unsigned} records behind the last checkpoint")
        if not check.ended:
            notes.append(f"{file.name}: still being written, or its process was killed")
    return VerificationReport(records, tuple(findings), tuple(notes))


class _StreamCheck:
    """The walk over one stream."""

    def __init__(self, file: Path, public_key: Ed25519PublicKey) -> None:
        self.records = 0
        self.unsigned = 0
        self.ended = False
        self._file = file
        self._public_key = public_key
        self._link: str | None = first_link(file.stem)
        self._previous: tuple[int, int | None] = (0, None)
        self._next_seq = 1
        self._time = ""
        self._signed_until = ""  # time of the last genuine checkpoint
        self._interval = 0.0
        self._overdue: tuple[int, int] | None = None

    def run(self) -> list[Finding]:
        """All findings of the stream."""
        try:
            with self._file.open("rb") as lines:
                found = [
                    finding
                    for number, line in enumerate(lines, start=1)
                    for finding in self._check(number, line)
                ]
        except OSError as error:
            raise ConfigurationError(f"can't be read: {error.strerror}", self._file) from None
        if not self.records and not found:
            found.append(Finding("missing", self._file, 0, 1))
        if self._overdue is not None:
            found.append(self._finding("unsigned", *self._overdue))
        return found

    def _check(self, number: int, line: bytes) -> Iterator[Finding]:
        content = line.removesuffix(b"\n")
        record = _parse(content) if line.endswith(b"\n") else None
        if record is None:
            yield self._finding("malformed", number, self._next_seq)
            self._link = None  # the next line's link can't be judged
            self._next_seq += 1
            return
        self.records += 1
        seq = record["seq"]
        if record["stream"] != self._file.stem:
            yield self._finding("wrong-stream", number, seq)
        if seq != self._next_seq:
            kind = "missing" if seq > self._next_seq else "out-of-order"
            yield self._finding(kind, number, self._next_seq)
        elif self._link is not None and record["prev"] != self._link:
            # The first line has none before it: then the line itself is wrong.
            yield self._finding("edited", *(self._previous if self._previous[0] else (number, seq)))
        if record["time"] < self._time:
            yield self._finding("clock-reversal", number, seq)
        if record["event"] == CHECKPOINT:
            if checkpoint_is_genuine(record, self._public_key):
                self.unsigned, self._signed_until = 0, record["time"]
                self._overdue = None
            else:
                yield self._finding("bad-signature", number, seq)
            self.ended = record.get("final") is True
        else:
            self.unsigned += 1
            self.ended = False
            if record["event"] == OPENING:
                self._interval = _seconds(record.get("checkpoint_every"))
        if self._overdue is None and self._is_overdue(record):
            self._overdue = (number, seq)
        self._link, self._previous = digest(content), (number, seq)
        self._next_seq, self._time = seq + 1, record["time"]

    def _is_overdue(self, record: dict[str, Any]) -> bool:
        """Whether a checkpoint should have come before this record.

        Looked at again when one does come: a disk may have failed for a while.
        """
        if record["event"] == CHECKPOINT:
            return False
        if not self._signed_until:
            return self.unsigned > 1  # only the opening itself goes unsigned
        try:
            passed = _time(record["time"]) - _time(self._signed_until)
        except ValueError:
            return True
        return passed > timedelta(seconds=_LATE_FACTOR * self._interval + _LATE_SECONDS)

    def _finding(self, kind: str, line: int, seq: int | None) -> Finding:
        return Finding(kind, self._file, line, seq)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _parse(line: bytes) -> dict[str, Any] | None:
    """The record in a line, if it has the form that the writer gives it."""
    try:
        record = json.loads(line)
        if not isinstance(record, dict) or canonical(record) != line:
            return None
    except (ValueError, RecursionError):
        return None
    if any(name not in record for name in (*CHAIN_FIELDS, *COMMON_FIELDS)):
        return None
    texts = (record["time"], record["stream"], record["event"], record["prev"])
    if type(record["seq"]) is not int or not all(isinstance(text, str) for text in texts):
        return None
    return record
