"""Adapter revisions: a number that may stand for two contents stands for none."""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvcustody.namespace import Adapter, AdapterFailure, AdapterRevisions, adapter, revision

pytestmark = pytest.mark.unit


@pytest.fixture
def revisions(tmp_path: Path) -> Iterator[AdapterRevisions]:
    revisions = AdapterRevisions(tmp_path / "adapters.json", patience=5.0)
    yield revisions
    revisions.close()


@pytest.fixture
def one(tmp_path: Path) -> Adapter:
    return make(tmp_path / "one", b"weights 1")


def make(folder: Path, weights: bytes, number: int = 1) -> Adapter:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_bytes(b'{"r": 8}')
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return Adapter(number, "style", str(folder))


def rewrite(one: Adapter, weights: bytes = b"weights 2") -> None:
    """Other weights of the same size, and the old time of change."""
    file = Path(one.path, "adapter_model.safetensors")
    before = file.stat()
    threading.Event().wait(0.02)  # file systems keep time in ticks
    file.write_bytes(weights)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_the_revision_is_of_the_content_not_of_number_name_or_path(
    revisions: AdapterRevisions, one: Adapter, tmp_path: Path
) -> None:
    found = revisions.find(one)
    assert isinstance(found, str)
    assert not isinstance(found, AdapterFailure)
    assert len(bytes.fromhex(found)) == 32
    assert revisions.find(one) == found
    copied = make(tmp_path / "copy", b"weights 1", number=2)
    assert revisions.find(replace(copied, name="another")) == found
    other = make(tmp_path / "other", b"weights 2", number=3)
    assert revisions.find(other) != found
    assert revisions.find(replace(one, number=4, fused=True)) != found


def test_changed_files_under_one_number_are_refused_for_good(
    revisions: AdapterRevisions, one: Adapter
) -> None:
    found = revisions.find(one)
    rewrite(one)
    assert revisions.find(one) is AdapterFailure.CHANGED
    rewrite(one, b"weights 1")
    assert revisions.find(one) is AdapterFailure.CHANGED
    assert revisions.find(replace(one, number=2)) == found


def test_an_adapter_that_was_loaded_anew_has_the_new_contents_revision(
    revisions: AdapterRevisions, one: Adapter
) -> None:
    before = revisions.find(one)
    rewrite(one)
    after = revisions.find(replace(one, number=2))
    assert not isinstance(after, AdapterFailure)
    assert after != before
    assert revisions.find(one) is AdapterFailure.CHANGED


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, name="another"),
        lambda one: make(Path(one.path).parent / "other", b"weights 1"),
        lambda one: replace(one, fused=True),
    ],
    ids=["name", "path", "layout"],
)
def test_one_number_for_two_adapters_is_refused_for_both(
    revisions: AdapterRevisions, one: Adapter, change: Callable[[Adapter], Adapter]
) -> None:
    revisions.find(one)
    assert revisions.find(change(one)) is AdapterFailure.CHANGED
    assert revisions.find(one) is AdapterFailure.CHANGED


def test_what_is_reloaded_in_place_is_refused_from_then_on(
    revisions: AdapterRevisions, one: Adapter
) -> None:
    assert not isinstance(revisions.find(one), AdapterFailure)
    assert revisions.find(one, in_place=True) is AdapterFailure.IN_PLACE
    assert revisions.find(one) is AdapterFailure.IN_PLACE


@pytest.mark.parametrize(
    "path", ["org/adapter-of-the-hub", "/missing", "\0", ""], ids=["hub", "missing", "odd", "none"]
)
def test_what_is_no_local_folder_is_refused_for_good(
    revisions: AdapterRevisions, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unknown = Adapter(1, "style", path)
    assert revisions.find(unknown) is AdapterFailure.UNREADABLE
    (tmp_path / "org" / "adapter-of-the-hub").mkdir(parents=True)
    make(tmp_path / "org" / "adapter-of-the-hub", b"weights")
    assert revisions.find(unknown) is AdapterFailure.UNREADABLE


def test_files_that_are_away_for_a_while_are_refused_for_a_while(
    revisions: AdapterRevisions, one: Adapter
) -> None:
    found = revisions.find(one)
    parent = Path(one.path).parent
    Path(one.path).rename(parent / "away")
    assert revisions.find(one) is AdapterFailure.UNREADABLE
    (parent / "away").rename(one.path)
    assert revisions.find(one) == found


def test_a_file_system_that_hangs_holds_up_one_request_a_moment_and_the_others_not_at_all(
    tmp_path: Path, one: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, looks = threading.Event(), []
    look = revision.file_identities

    def hang(folder: Path) -> dict[str, str]:
        looks.append(folder)
        released.wait(10)
        return look(folder)

    monkeypatch.setattr(adapter, "file_identities", hang)
    revisions = AdapterRevisions(tmp_path / "adapters.json", patience=0.05)
    for _ in range(20):
        assert revisions.find(one) is AdapterFailure.PENDING
    assert len(looks) == 1
    released.set()
    eventually(lambda: not isinstance(revisions.find(one), AdapterFailure))
    revisions.close()


def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        threading.Event().wait(0.02)
    pytest.fail("did not happen in time")


def test_files_that_change_while_they_are_hashed_are_refused(
    revisions: AdapterRevisions, one: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(path: Path, cache: Path | None, *, threads: int) -> revision.ModelRevision:
        found = revision.fingerprint_model(path, cache, threads=threads)
        rewrite(one)
        return found

    monkeypatch.setattr(adapter, "fingerprint_model", change)
    assert revisions.find(one) is AdapterFailure.UNREADABLE


def test_an_unexpected_error_is_a_refusal_and_blocks_nobody(
    revisions: AdapterRevisions, one: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise TypeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(adapter, "file_identities", broken)
        assert revisions.find(one) is AdapterFailure.UNREADABLE
    assert not isinstance(revisions.find(replace(one, number=2)), AdapterFailure)
