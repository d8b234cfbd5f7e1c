import json
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcustody.errors import ConfigurationError
from kvcustody.namespace import file_identities, fingerprint_model, revision

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
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For files that a test has only just made; see the test of what isn't remembered."""
    monkeypatch.setattr(revision, "_TICK_NANOSECONDS", 0)
    return tmp_path / "fingerprints.json"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read, in no order."""
    names: list[str] = []
    real = revision._hash_file

    def hash_file(path: Path, identity: str, meter: revision._Meter) -> str:
        names.append(path.name)
        return real(path, identity, meter)

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


def test_one_thread_finds_what_several_find(model: Path) -> None:
    assert fingerprint_model(model, threads=1) == fingerprint_model(model)


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
    assert len(told) >= len(FILES)
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


def test_a_file_that_has_only_just_changed_is_not_remembered(
    model: Path, tmp_path: Path, hashed: list[str]
) -> None:
    """It could change again within one tick of the file system's clock, and nobody would see."""
    cache = tmp_path / "fingerprints.json"
    for _ in range(2):
        hashed.clear()
        revision_of(model, cache)
        assert len(hashed) == len(FILES)


@pytest.mark.parametrize("how", ["written to", "replaced"])
def test_a_file_that_changes_while_it_is_read_has_no_digest(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    weights = model / "model.safetensors"
    add, once = revision._Meter.add, iter([True])
    lock = threading.Lock()

    def change(meter: revision._Meter, count: int) -> None:
        with lock:
            if next(once, False):
                let_the_clock_tick()
                replace_weights()
        add(meter, count)

    def replace_weights() -> None:
        if how == "replaced":
            new = model.parent / "new"
            new.write_bytes(weights.read_bytes())
            new.replace(weights)
        else:
            weights.write_bytes(FILES["model.safetensors"][::-1])

    with monkeypatch.context() as patch:
        patch.setattr(revision._Meter, "add", change)
        with pytest.raises(ConfigurationError, match="changes while it is read") as caught:
            fingerprint_model(model, cache)
    assert caught.value.file == weights
    assert revision_of(model, cache) == revision_of(model)


def test_the_cache_does_not_grow_with_each_change(model: Path, cache: Path) -> None:
    for content in (b"1", b"2", b"3"):
        (model / "model.safetensors").write_bytes(content)
        fingerprint_model(model, cache)
    assert len(json.loads(cache.read_text())) == len(FILES)


def test_a_single_file_is_a_model_whatever_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"weights")
    before = fingerprint_model(tmp_path / "model.gguf")
    (tmp_path / "another.gguf").write_bytes(b"another model")
    assert fingerprint_model(tmp_path / "model.gguf") == before
    assert list(before.inputs) == ["model.gguf"]
    (tmp_path / "model.gguf").write_bytes(b"retrain")
    assert fingerprint_model(tmp_path / "model.gguf") != before


def test_a_file_in_several_parts_is_fingerprinted_whole(tmp_path: Path) -> None:
    parts = [tmp_path / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(b"weights")
    before = fingerprint_model(parts[0])
    assert list(before.inputs) == [part.name for part in parts]
    parts[1].write_bytes(b"retrain")
    assert fingerprint_model(parts[0]) != before


def test_linked_folders_count_and_links_that_lead_back_do_no_harm(
    model: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "weights.safetensors").write_bytes(b"more weights")
    before = revision_of(model)
    (model / "linked").symlink_to(elsewhere)
    (model / "back").symlink_to(model)
    linked = fingerprint_model(model)
    assert linked.revision != before
    assert "linked/weights.safetensors" in linked.inputs
    assert not [name for name in linked.inputs if name.startswith("back/back")]


@pytest.mark.parametrize("name", ["gewichte-größe.bin", "权重.safetensors", "a b\nc.bin"])
def test_a_file_may_have_any_name(model: Path, cache: Path, name: str) -> None:
    (model / name).write_bytes(b"weights")
    found = fingerprint_model(model, cache)
    assert name in found.inputs
    assert fingerprint_model(model, cache) == found


def test_a_name_that_is_not_text_counts_too(model: Path, cache: Path) -> None:
    raw = os.fsencode(model) + b"/weights-\xff.bin"
    with open(raw, "wb") as file:  # noqa: PTH123 - a Path has no bytes
        file.write(b"weights")
    before = revision_of(model, cache)
    assert revision_of(model, cache) == before
    with open(raw, "wb") as file:  # noqa: PTH123
        file.write(b"retrain")
    assert revision_of(model, cache) != before


def test_identities_change_with_the_files_and_cost_no_reading(
    model: Path, hashed: list[str]
) -> None:
    before = file_identities(model)
    assert file_identities(model) == before
    assert before.keys() == FILES.keys()
    let_the_clock_tick()
    status = (model / "config.json").stat()
    (model / "config.json").write_bytes(FILES["config.json"])
    os.utime(model / "config.json", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file_identities(model) != before
    assert hashed == []


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
