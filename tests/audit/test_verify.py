import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvcustody.audit import AuditWriter, read_events, verify_directory
from kvcustody.audit.chain import canonical, digest, first_link
from kvcustody.errors import ConfigurationError

pytestmark = pytest.mark.unit

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
RECORDS = 9  # stream.opened and its checkpoint, six requests, the last checkpoint


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    """One stream of nine records; the file is returned."""
    writer = AuditWriter(
        tmp_path / "audit",
        kind="engine",
        signing_key=KEY,
        on_failure="block",
        checkpoint_every=3600.0,
        deployment="test",
    )
    for number in range(RECORDS - 3):
        writer.record("request.ungoverned", tenant="acme", request_id=f"r{number}")
    writer.close()
    (file,) = (tmp_path / "audit").iterdir()
    return file


def findings(file: Path) -> list[tuple[str, int]]:
    report = verify_directory(file.parent, KEY.public_key())
    return [(found.kind, found.line) for found in report.findings]


def change(file: Path, edit: Callable[[list[bytes]], list[bytes]]) -> None:
    file.write_bytes(b"".join(edit(file.read_bytes().splitlines(keepends=True))))


def rewritten(line: bytes, **changes: object) -> bytes:
    return canonical({**json.loads(line), **changes}) + b"\n"


def test_an_untouched_trail_is_intact(trail: Path) -> None:
    assert findings(trail) == []


@pytest.mark.parametrize("line", range(1, RECORDS))
def test_an_edited_record_is_found_at_its_line(trail: Path, line: int) -> None:
    change(
        trail,
        lambda lines: [*lines[: line - 1], rewritten(lines[line - 1], tenant="x"), *lines[line:]],
    )
    assert ("edited", line) in findings(trail)


def test_an_edited_checkpoint_is_found_at_its_line(trail: Path) -> None:
    change(trail, lambda lines: [*lines[:-1], rewritten(lines[-1], records=3)])
    assert findings(trail) == [("bad-signature", RECORDS)]


@pytest.mark.parametrize("line", range(2, RECORDS))
def test_a_removed_record_is_missed(trail: Path, line: int) -> None:
    change(trail, lambda lines: lines[: line - 1] + lines[line:])
    assert ("missing", line) in findings(trail)


def test_a_removed_beginning_is_missed(trail: Path) -> None:
    change(trail, lambda lines: lines[1:])
    assert ("missing", 1) in findings(trail)


@pytest.mark.parametrize("line", range(1, RECORDS + 1))
def test_a_repeated_record_is_found(trail: Path, line: int) -> None:
    change(trail, lambda lines: [*lines[:line], *lines[line - 1 :]])
    assert ("out-of-order", line + 1) in findings(trail)


def test_swapped_records_are_found(trail: Path) -> None:
    change(trail, lambda lines: [lines[0], lines[2], lines[1], *lines[3:]])
    assert {kind for kind, _ in findings(trail)} >= {"missing", "out-of-order"}


@pytest.mark.parametrize("position", range(0, 300, 7))
def test_a_flipped_bit_is_found(trail: Path, position: int) -> None:
    content = bytearray(trail.read_bytes())
    content[position * len(content) // 300] ^= 1
    trail.write_bytes(content)
    assert findings(trail) != []


def test_a_chain_redone_without_the_key_fails_at_the_checkpoint(trail: Path) -> None:
    def redo(lines: list[bytes]) -> list[bytes]:
        records = [json.loads(line) for line in lines]
        records[3]["tenant"] = "globex"
        for before, after in pairwise(records):
            after["prev"] = digest(canonical(before))
        return [canonical(record) + b"\n" for record in records]

    change(trail, redo)
    # Nothing before it is vouched for either, but for the opening, which is as it was.
    assert findings(trail) == [("bad-signature", RECORDS)]


def test_a_trail_without_its_checkpoints_is_unsigned(trail: Path) -> None:
    """All checkpoints removed, all records renumbered and chained anew: that needs no key."""

    def forge(lines: list[bytes]) -> list[bytes]:
        records = [json.loads(line) for line in lines]
        records = [record for record in records if record["event"] != "audit.checkpoint"]
        for seq, record in enumerate(records, start=1):
            record["seq"] = seq
        for before, after in pairwise(records):
            after["prev"] = digest(canonical(before))
        return [canonical(record) + b"\n" for record in records]

    change(trail, forge)
    assert findings(trail) == [("unsigned", 2)]


def test_an_invented_stream_is_unsigned(trail: Path) -> None:
    stream = "engine-20200101T000000Z-deadbeef"
    record = {**json.loads(trail.read_bytes().splitlines()[0]), "stream": stream}
    lines = []
    link = first_link(stream)
    for seq in range(1, 4):
        line = canonical({**record, "seq": seq, "prev": link})
        link = digest(line)
        lines.append(line + b"\n")
    trail.with_name(f"{stream}.jsonl").write_bytes(b"".join(lines))
    report = verify_directory(trail.parent, KEY.public_key())
    assert [(found.kind, found.file.stem, found.line) for found in report.findings] == [
        ("unsigned", stream, 2)
    ]


def test_a_tail_that_should_have_been_signed_long_ago_is_unsigned(tmp_path: Path) -> None:
    """Only what a checkpoint can't have signed yet may be unsigned."""
    times = iter([1_000.0] * 3 + [1_005.0, 1_020.0, 1_200.0, 1_300.0, 1_300.0])
    writer = AuditWriter(
        tmp_path,
        kind="engine",
        signing_key=KEY,
        on_failure="block",
        checkpoint_every=10.0,
        deployment="test",
        clock=lambda: next(times),
    )
    for _ in range(4):
        writer.record("engine.stopped")
    writer.close()
    (file,) = tmp_path.iterdir()
    assert findings(file) == []  # its last checkpoint signs all
    change(file, lambda lines: lines[:-1])
    assert findings(file) == [("unsigned", 5)]
    change(file, lambda lines: lines[:-2])
    assert findings(file) == []


def test_another_deployments_checkpoints_are_not_genuine(trail: Path) -> None:
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    report = verify_directory(trail.parent, other)
    assert {found.kind for found in report.findings} == {"bad-signature", "unsigned"}


def test_a_stream_can_not_pass_for_another(trail: Path) -> None:
    copy = trail.with_name("engine-20200101T000000Z-00000000.jsonl")
    copy.write_bytes(trail.read_bytes())
    report = verify_directory(trail.parent, KEY.public_key())
    assert {found.file.name for found in report.findings} == {copy.name}
    assert "wrong-stream" in {found.kind for found in report.findings}


def test_a_cut_end_is_noted_as_unfinished(trail: Path) -> None:
    change(trail, lambda lines: lines[:-1])
    report = verify_directory(trail.parent, KEY.public_key())
    assert report.ok
    assert len(report.notes) == 2
    assert "6 records behind the last checkpoint" in report.notes[0]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"a":1,"a":1}',
        b'{"seq": 1}',
        b"1e999",
    ],
)
def test_a_line_that_is_no_record_is_malformed(trail: Path, line: bytes) -> None:
    change(trail, lambda lines: [*lines[:3], line + b"\n", *lines[4:]])
    assert ("malformed", 4) in findings(trail)
    assert len(list(read_events(trail.parent))) == RECORDS - 1


def test_a_half_written_line_is_malformed(trail: Path) -> None:
    trail.write_bytes(trail.read_bytes()[:-20])
    assert findings(trail) == [("malformed", RECORDS)]


def test_a_reversed_clock_is_found(trail: Path) -> None:
    change(
        trail,
        lambda lines: [*lines[:4], rewritten(lines[4], time="2000-01-01T00:00:00"), *lines[5:]],
    )
    assert ("clock-reversal", 5) in findings(trail)


def test_an_emptied_segment_is_missed(trail: Path) -> None:
    trail.write_bytes(b"")
    assert findings(trail) == [("missing", 0)]


def test_no_trail_at_all_is_an_error_not_a_success(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no audit segments"):
        verify_directory(tmp_path, KEY.public_key())
