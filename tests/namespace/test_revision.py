import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcustody.errors import ConfigurationError
from kvcustody.namespace import fingerprint_model, revision

pytestmark = pytest.mark.unit

FILES = {
    "config.json": b'{"hidden_size": 64}',
    "model.safetensors": b"weights of the model",
    "tokenizer.json": b'{"vocab": {}}',
    "generation_config.json": b"{}",
    "original/params.json": b"{}",
}


def make_model(folder: Path) -> Path:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "fingerprints.json"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read, in no order."""
    names: list[str] = []
    real = revision._hash_file

    def hash_file(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(revision, "_hash_file", hash_file)
    return names


def revision_of(folder: Path, cache: Path | None = None) -> str:
    return fingerprint_model(folder, cache).revision


def let_the_clock_tick() -> None:
    """File systems keep time in ticks of some milliseconds."""
    time.sleep(0.02)


def test_a_revision_is_a_digest_made_of_every_file(model: Path) -> None:
    found = fingerprint_model(model)
    assert len(found.revision) == 64
    assert set(found.inputs) == set(FILES)
    assert all(len(digest) == 64 for digest in found.inputs.values())


def test_every_changed_byte_changes_the_revision(model: Path) -> None:
    seen = {revision_of(model)}
    for name, content in FILES.items():
        for offset in {0, len(content) // 2, len(content) - 1}:
            changed = bytearray(content)
            changed[offset] ^= 1
            (model / name).write_bytes(changed)
            found = revision_of(model)
            assert found not in seen, f"byte {offset} of {name}"
            seen.add(found)
        (model / name).write_bytes(content)
    assert revision_of(model) in seen


def _append(model: Path) -> None:
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"\0")


def _swap(model: Path) -> None:
    (model / "config.json").write_bytes(FILES["tokenizer.json"])
    (model / "tokenizer.json").write_bytes(FILES["config.json"])


@pytest.mark.parametrize(
    "change",
    [
        lambda model: (model / "added_tokens.json").write_bytes(b"{}"),
        lambda model: (model / "generation_config.json").unlink(),
        lambda model: (model / "generation_config.json").rename(model / "renamed.json"),
        lambda model: (model / "original" / "params.json").rename(model / "params.json"),
        _append,
        _swap,
    ],
    ids=["added", "removed", "renamed", "moved", "appended", "swapped"],
)
def test_a_change_of_the_set_of_files_changes_the_revision(
    model: Path, change: Callable[[Path], object]
) -> None:
    before = revision_of(model)
    change(model)
    assert revision_of(model) != before


def test_the_path_of_the_folder_does_not_matter(model: Path, tmp_path: Path) -> None:
    elsewhere = make_model(tmp_path / "another" / "place")
    assert fingerprint_model(elsewhere) == fingerprint_model(model)


def test_the_age_of_the_files_does_not_matter(model: Path) -> None:
    before = revision_of(model)
    os.utime(model / "config.json", (1, 1))
    assert revision_of(model) == before


def test_files_behind_links_count_with_what_they_hold(model: Path, tmp_path: Path) -> None:
    """A snapshot of the hub is a folder of links into a store of blobs."""
    snapshot = tmp_path / "snapshot"
    for name in FILES:
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(model / name)
    assert fingerprint_model(snapshot) == fingerprint_model(model)
    (model / "model.safetensors").write_bytes(b"other weights behind")
    assert revision_of(snapshot) == revision_of(model)


@pytest.mark.parametrize(
    "name", ["README.md", "picture.PNG", ".gitattributes", ".cache/huggingface/x.json", "a.lock"]
)
def test_notes_pictures_and_hidden_files_do_not_matter(model: Path, name: str) -> None:
    before = revision_of(model)
    (model / name).parent.mkdir(parents=True, exist_ok=True)
    (model / name).write_bytes(b"changes nothing that the model computes")
    assert revision_of(model) == before


def test_a_model_below_a_hidden_folder_counts(tmp_path: Path, model: Path) -> None:
    hidden = make_model(tmp_path / ".cache" / "model")
    assert revision_of(hidden) == revision_of(model)


@pytest.mark.parametrize("make", [Path.mkdir, lambda _path: None], ids=["empty", "missing"])
def test_a_folder_without_a_model_is_a_clear_error(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "model"
    make(folder)
    with pytest.raises(ConfigurationError, match="holds no model files") as caught:
        fingerprint_model(folder)
    assert caught.value.file == folder


def test_a_file_that_can_not_be_read_is_a_clear_error(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path, *_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(ConfigurationError, match="can't be read: Permission denied") as caught:
        fingerprint_model(model)
    assert caught.value.file is not None
    assert caught.value.file.parent in {model, model / "original"}


def test_progress_ends_with_all_bytes(model: Path) -> None:
    told: list[tuple[int, int]] = []
    fingerprint_model(model, progress=lambda done, total: told.append((done, total)))
    size = sum(map(len, FILES.values()))
    assert told[-1] == (size, size)
    assert told == sorted(told)
    assert {total for _, total in told} == {size}


def test_unchanged_files_are_not_read_again(model: Path, cache: Path, hashed: list[str]) -> None:
    first = fingerprint_model(model, cache)
    assert len(hashed) == len(FILES)
    hashed.clear()
    assert fingerprint_model(model, cache) == first
    assert hashed == []


def test_weights_replaced_at_the_same_path_are_read_again(
    model: Path, cache: Path, hashed: list[str]
) -> None:
    """Same name, same size and the old time of change: only the contents differ."""
    before = revision_of(model, cache)
    hashed.clear()
    weights = model / "model.safetensors"
    status = weights.stat()
    let_the_clock_tick()
    weights.write_bytes(FILES["model.safetensors"][::-1])
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert revision_of(model, cache) != before
    assert hashed == ["model.safetensors"]
    assert revision_of(model, cache) == revision_of(model)


def test_one_cache_serves_several_models(model: Path, tmp_path: Path, cache: Path) -> None:
    other = make_model(tmp_path / "other")
    (other / "model.safetensors").write_bytes(b"other weights, other model")
    both = (revision_of(model, cache), revision_of(other, cache))
    assert both == (revision_of(model, cache), revision_of(other, cache))
    assert both == (revision_of(model), revision_of(other))


@pytest.mark.parametrize("content", [b"", b"not JSON", b"[]", b"null", b"\xff\xfe", b'{"a": 1}'])
def test_a_damaged_cache_costs_time_only(model: Path, cache: Path, content: bytes) -> None:
    cache.write_bytes(content)
    assert revision_of(model, cache) == revision_of(model)
    assert isinstance(json.loads(cache.read_text()), dict)


def test_a_cache_that_can_not_be_written_costs_time_only(model: Path, tmp_path: Path) -> None:
    assert revision_of(model, tmp_path / "missing" / "cache.json") == revision_of(model)


def test_nothing_is_left_beside_the_cache(model: Path, cache: Path, tmp_path: Path) -> None:
    fingerprint_model(model, cache)
    assert {path.name for path in tmp_path.iterdir()} == {"model", cache.name}
    assert stat.S_ISREG(cache.stat().st_mode)
