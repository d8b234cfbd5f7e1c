import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvcustody.audit import AuditWriter, check_writable, read_events, verify_directory
from kvcustody.audit.events import EVENTS, event_schema
from kvcustody.errors import ConfigurationError

pytestmark = pytest.mark.unit

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def opened(
    directory: Path,
    *,
    on_failure: Literal["block", "continue"] = "block",
    checkpoint_every: float = 3600.0,
) -> AuditWriter:
    return AuditWriter(
        directory,
        kind="engine",
        signing_key=KEY,
        on_failure=on_failure,
        checkpoint_every=checkpoint_every,
        deployment="test",
    )


def wait_until(condition: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


def test_what_was_recorded_is_there_in_order_and_verifies(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    for number in range(50):
        writer.record("request.ungoverned", tenant="acme", request_id=str(number))
    writer.close()
    events = list(read_events(tmp_path))
    assert [event["event"] for event in events[:2]] == ["stream.opened", "audit.checkpoint"]
    assert [event["request_id"] for event in events[2:-1]] == [str(n) for n in range(50)]
    assert events[-1]["event"] == "audit.checkpoint"
    assert events[-1]["final"] is True
    report = verify_directory(tmp_path, KEY.public_key())
    assert report.ok
    assert report.records == 53
    assert report.notes == ()


def test_every_event_of_the_catalogue_has_the_published_form(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    for name, fields in EVENTS.items():
        if not name.startswith("audit."):
            writer.record(name, tenant="acme", **dict.fromkeys(fields, "x"))
    writer.record("no.such.event", tenant="acme", prompt="secret")
    writer.close()
    published = Path(__file__).parents[2] / "audit" / "schema" / "event.schema.json"
    schema = json.loads(published.read_text(encoding="utf-8"))
    assert schema == event_schema(), "run: python -m kvcustody.audit.events > " + str(published)
    validator = jsonschema.Draft202012Validator(schema)
    events = list(read_events(tmp_path))
    assert {event["event"] for event in events} >= EVENTS.keys() - {"audit.gap"}
    for event in events:
        validator.validate(event)


def test_fields_and_events_outside_the_catalogue_are_not_written(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.record("request.ungoverned", tenant="acme", prompt="my secret prompt")
    writer.record("made.up", prompt="my secret token")
    writer.close()
    content = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "my secret" not in content
    invalid = [event for event in read_events(tmp_path) if event["event"] == "audit.invalid"]
    assert [event["rejected_event"] for event in invalid] == ["made.up"]
    assert [event["rejected_fields"] for event in invalid] == [["prompt"]]


def test_odd_values_are_written_as_plain_bounded_json(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.record(
        "request.admitted",
        tenant="a\nb\x1b[31m",
        reason="x" * 10_000,
        tiers={"host": {1, 2}, "nan": float("nan"), "bytes": b"\x00"},
        rules=(object(),),
    )
    writer.close()
    (file,) = tmp_path.iterdir()
    lines = file.read_bytes().split(b"\n")
    assert len(lines) == 5  # four records, each on its own line
    assert b"\x1b" not in lines[2]
    event = json.loads(lines[2])
    assert event["tenant"] == "a\nb\x1b[31m"
    assert len(event["reason"]) == 512
    assert event["tiers"] == {"host": [1, 2], "nan": None, "bytes": "<bytes>"}
    assert event["rules"] == ["<object>"]


def test_the_trail_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        opened(tmp_path / "audit").close()
    finally:
        os.umask(previous)
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700
    (file,) = (tmp_path / "audit").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_checkpoints_are_signed_while_events_come_and_none_when_none_come(tmp_path: Path) -> None:
    writer = opened(tmp_path, checkpoint_every=0.02)

    def checkpoints() -> int:
        return sum(event["event"] == "audit.checkpoint" for event in read_events(tmp_path))

    assert checkpoints() == 1
    time.sleep(0.1)
    assert checkpoints() == 1
    writer.record("engine.stopped")
    wait_until(lambda: checkpoints() == 2)
    writer.close()
    assert verify_directory(tmp_path, KEY.public_key()).ok


def test_many_threads_make_one_unbroken_stream(tmp_path: Path) -> None:
    writer = opened(tmp_path)

    def work() -> None:
        for _ in range(200):
            writer.record("request.ungoverned", tenant="acme")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    report = verify_directory(tmp_path, KEY.public_key())
    assert report.ok
    assert report.records == 803


@pytest.mark.parametrize(("on_failure", "accepts"), [("block", False), ("continue", True)])
def test_while_the_disk_fails_nothing_is_accepted_unless_configured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_failure: Literal["block", "continue"],
    accepts: bool,
) -> None:
    writer = opened(tmp_path, on_failure=on_failure)
    wait_until(lambda: len(list(read_events(tmp_path))) == 2)
    assert writer.accepting
    write, full = os.write, threading.Event()
    full.set()

    def failing_write(descriptor: int, content: Any) -> int:
        if full.is_set():
            write(descriptor, bytes(content)[:10])  # a full disk takes a part
            raise OSError(errno.ENOSPC, "no space left")
        return write(descriptor, content)

    monkeypatch.setattr("kvcustody.audit.writer._RETRY_SECONDS", 0.01)
    monkeypatch.setattr("os.write", failing_write)
    writer.record("request.ungoverned", tenant="acme")
    if accepts:
        time.sleep(0.1)
        assert writer.accepting
    else:
        wait_until(lambda: not writer.accepting)
    full.clear()
    wait_until(lambda: len(list(read_events(tmp_path))) == 3)
    wait_until(lambda: writer.accepting)
    writer.close()
    report = verify_directory(tmp_path, KEY.public_key())
    assert report.ok, report.findings
    assert report.records == 4


def test_what_finds_no_room_is_counted_in_the_trail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcustody.audit.writer._RETRY_SECONDS", 0.01)
    monkeypatch.setattr("kvcustody.audit.writer._MOST_WAITING", 10)
    writer = opened(tmp_path)
    wait_until(lambda: len(list(read_events(tmp_path))) == 2)
    full = threading.Event()
    full.set()
    append = AuditWriter._append

    def failing_append(self: AuditWriter, content: bytes, *, durable: bool) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "no space left")
        append(self, content, durable=durable)

    monkeypatch.setattr(AuditWriter, "_append", failing_append)
    writer.record("request.ungoverned", request_id="first")
    wait_until(lambda: not writer.accepting)
    for _ in range(25):
        writer.record("request.ungoverned", request_id="later")
    assert not writer.accepting
    full.clear()
    wait_until(lambda: writer.accepting)
    writer.close()
    events = list(read_events(tmp_path))
    assert sum(event["request_id"] == "later" for event in events) == 10
    assert [event["dropped"] for event in events if event["event"] == "audit.gap"] == [15]
    assert verify_directory(tmp_path, KEY.public_key()).ok


def test_a_disk_that_hangs_stops_acceptance_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcustody.audit.writer._HANGS_SECONDS", 0.05)
    monkeypatch.setattr("kvcustody.audit.writer._CLOSE_SECONDS", 0.1)
    writer = opened(tmp_path)
    hang = threading.Event()
    append = AuditWriter._append

    def hanging_append(self: AuditWriter, content: bytes, *, durable: bool) -> None:
        hang.wait(10)
        append(self, content, durable=durable)

    monkeypatch.setattr(AuditWriter, "_append", hanging_append)
    writer.record("engine.stopped")
    wait_until(lambda: not writer.accepting)
    started = time.monotonic()
    writer.close()
    assert time.monotonic() - started < 1
    hang.set()


def test_a_deleted_segment_stops_acceptance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcustody.audit.writer._RETRY_SECONDS", 0.01)
    writer = opened(tmp_path)
    wait_until(lambda: len(list(read_events(tmp_path))) == 2)
    (file,) = tmp_path.iterdir()
    file.unlink()
    writer.record("request.ungoverned", tenant="acme")
    wait_until(lambda: not writer.accepting)
    writer.close()


def test_times_never_run_backwards_in_a_stream(tmp_path: Path) -> None:
    moments = iter([2_000.0, 1_990.0, 2_010.0])
    writer = AuditWriter(
        tmp_path,
        kind="engine",
        signing_key=KEY,
        on_failure="block",
        checkpoint_every=60.0,
        deployment="test",
        clock=lambda: next(moments, 1_000.0),
    )
    for _ in range(3):
        writer.record("engine.stopped")
    writer.close()
    times = [event["time"] for event in read_events(tmp_path)]
    assert times == sorted(times)
    assert verify_directory(tmp_path, KEY.public_key()).ok


def test_closing_twice_is_harmless_and_what_comes_later_is_not_accepted(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.close()
    writer.close()
    writer.record("engine.stopped")
    assert not writer.accepting


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file: the audit trail can't be written"):
        opened(tmp_path / "file")
    with pytest.raises(ConfigurationError, match=r"file: the audit trail can't be written"):
        check_writable(tmp_path / "file")
    check_writable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_event_without_a_policy_version_gets_the_one_in_force(tmp_path: Path) -> None:
    current = "v1"
    writer = AuditWriter(
        tmp_path,
        kind="engine",
        signing_key=Ed25519PrivateKey.generate(),
        on_failure="block",
        checkpoint_every=3600.0,
        deployment="local",
        policy_version=lambda: current,
    )
    writer.record("key.created", tenant="acme")
    current = "v2"
    writer.record("key.created", tenant="acme")
    writer.record("blocks.stored", policy_version="v1")
    writer.close()
    recorded = [(event["event"], event["policy_version"]) for event in read_events(tmp_path)]
    assert recorded[0] == ("stream.opened", "v1")
    assert recorded[-1] == ("audit.checkpoint", "v2")
    assert [each for each in recorded if each[0] != "audit.checkpoint"][1:] == [
        ("key.created", "v1"),
        ("key.created", "v2"),
        ("blocks.stored", "v1"),
    ]
