import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvcustody.errors import ConfigurationError, StoreError
from kvcustody.stores import Address, FilesystemStore
from kvcustody.stores.filesystem import SUFFIX

pytestmark = pytest.mark.unit

HERE = Address(bytes.fromhex("00112233445566778899aabbccddeeff"), b"\xab" * 32)
THERE = Address(HERE.namespace, b"\xcd" * 32)
BLOCK = b"a sealed block"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
def store(root: Path) -> FilesystemStore:
    return FilesystemStore(root)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def path_of(root: Path, address: Address) -> Path:
    name = address.name.hex()
    return root / address.namespace.hex() / name[:2] / f"{name}{SUFFIX}"


def get(store: FilesystemStore, address: Address = HERE) -> bytes | None:
    buffer = bytearray(100)
    count = store.get(address, memoryview(buffer))
    return None if count is None else bytes(buffer[:count])


def everything(root: Path) -> list[Path]:
    return [root, *root.rglob("*")]


def test_a_block_lies_where_the_documentation_says(store: FilesystemStore, root: Path) -> None:
    store.put(HERE, memoryview(BLOCK))
    assert path_of(root, HERE).read_bytes() == BLOCK


@pytest.mark.usefixtures("_umask")
def test_files_and_folders_are_private_whatever_the_umask(root: Path) -> None:
    store = FilesystemStore(root)
    for address in (HERE, THERE, Address(b"\x05" * 16, b"\x06" * 32)):
        store.put(address, memoryview(BLOCK))
    modes = {
        str(path.relative_to(root)): f"{stat.S_IMODE(path.stat().st_mode):04o}"
        for path in everything(root)
    }
    expected = {
        str(path.relative_to(root)): "0700" if path.is_dir() else "0600"
        for path in everything(root)
    }
    assert modes == expected


def test_names_on_disk_are_nothing_but_hex(store: FilesystemStore, root: Path) -> None:
    for number in range(20):
        store.put(Address(os.urandom(16), os.urandom(32)), memoryview(bytes([number])))
    for path in root.rglob("*"):
        if path.name != ".incoming":
            assert re.fullmatch(r"[0-9a-f]+(\.kvb)?", path.name), path


def test_nothing_is_left_in_the_folder_for_incoming_blocks(
    store: FilesystemStore, root: Path
) -> None:
    store.put(HERE, memoryview(BLOCK))
    store.put(HERE, memoryview(BLOCK))
    assert list((root / ".incoming").iterdir()) == []


def test_a_restart_finds_what_was_put(store: FilesystemStore, root: Path) -> None:
    store.put(HERE, memoryview(BLOCK))
    again = FilesystemStore(root)
    assert get(again) == BLOCK
    assert list(again.addresses()) == [HERE]


def test_two_processes_may_share_a_folder(store: FilesystemStore, root: Path) -> None:
    other = FilesystemStore(root)
    store.put(HERE, memoryview(BLOCK))
    assert other.exists(HERE)
    assert other.delete(HERE)
    assert not store.exists(HERE)


def _fail_after(count: int, error: OSError) -> Callable[[int, memoryview], int]:
    """A disk that takes `count` bytes of each file and then fails."""
    real, taken = os.write, dict[int, int]()

    def write(descriptor: int, content: memoryview) -> int:
        left = count - taken.get(descriptor, 0)
        if left <= 0:
            raise error
        written = real(descriptor, content[:left])
        taken[descriptor] = taken.get(descriptor, 0) + written
        return written

    return write


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("count", [0, 5])
def test_a_torn_write_leaves_nothing_visible(
    store: FilesystemStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int, count: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _fail_after(count, OSError(code, os.strerror(code))))
        with pytest.raises(StoreError, match=os.strerror(code)):
            store.put(HERE, memoryview(BLOCK))
    assert not store.exists(HERE)
    assert list(store.addresses()) == []
    assert [path for path in everything(root) if path.is_file()] == []


def test_a_torn_write_leaves_the_older_block(
    store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(HERE, memoryview(BLOCK))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _fail_after(5, OSError(errno.EIO, "broken")))
        with pytest.raises(StoreError):
            store.put(HERE, memoryview(b"a newer block"))
    assert get(store) == BLOCK


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_the_whole_block(
    store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, real_readv = os.write, os.readv
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, content: real_write(fd, content[:3]))
        patch.setattr(os, "readv", lambda fd, buffers: real_readv(fd, [buffers[0][:3]]))
        store.put(HERE, memoryview(BLOCK))
        assert get(store) == BLOCK
    assert get(store) == BLOCK


def _file_system(free: int, total: int) -> Callable[[Path], os.statvfs_result]:
    """A file system with this many free bytes for users, in blocks of 4 KiB."""

    def statvfs(_path: Path) -> os.statvfs_result:
        blocks = (total // 4096, free // 4096 + 1000, free // 4096)
        return os.statvfs_result((4096, 4096, *blocks, 0, 0, 0, 0, 255))

    return statvfs


@pytest.mark.parametrize(
    ("free", "fits"), [(4096 * 501, True), (4096 * 500, False), (4096 * 499, False), (0, False)]
)
def test_min_free_is_left_free(
    root: Path, monkeypatch: pytest.MonkeyPatch, free: int, fits: bool
) -> None:
    """A twentieth of 10,000 blocks of the file system must stay free."""
    store = FilesystemStore(root, min_free=0.05)
    monkeypatch.setattr(os, "statvfs", _file_system(free, 4096 * 10_000))
    if fits:
        store.put(HERE, memoryview(bytes(4096)))
        assert store.exists(HERE)
    else:
        with pytest.raises(StoreError, match="min_free"):
            store.put(HERE, memoryview(bytes(4096)))
        assert [path for path in everything(root) if path.is_file()] == []


def test_without_min_free_a_block_that_fits_is_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilesystemStore(root)
    monkeypatch.setattr(os, "statvfs", _file_system(4096, 4096 * 10_000))
    store.put(HERE, memoryview(bytes(4096)))
    with pytest.raises(StoreError):
        store.put(HERE, memoryview(bytes(4097)))


def test_a_full_tier_still_gives_and_deletes_blocks(
    store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(HERE, memoryview(BLOCK))
    monkeypatch.setattr(os, "statvfs", _file_system(0, 4096 * 10_000))
    assert get(store) == BLOCK
    assert store.delete(HERE)


def _link_to_file(path: Path) -> None:
    target = path.parent / "target"
    target.write_bytes(b"not ours")
    path.symlink_to(target)


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "file").write_bytes(b"not ours")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


INTRUDERS = pytest.mark.parametrize("intrude", [_link_to_file, _dangling_link, _folder, _pipe])


@pytest.fixture
def place(store: FilesystemStore, root: Path) -> Path:
    """Where the block belongs, in a folder that exists."""
    store.put(HERE, memoryview(BLOCK))
    store.delete(HERE)
    return path_of(root, HERE)


@INTRUDERS
def test_what_is_no_file_is_no_block(
    store: FilesystemStore, place: Path, intrude: Callable[[Path], None]
) -> None:
    intrude(place)
    assert not store.exists(HERE)
    with pytest.raises(StoreError):
        get(store)


@pytest.mark.parametrize("intrude", [_link_to_file, _dangling_link, _pipe])
def test_a_put_replaces_an_intruder_and_writes_through_no_link(
    store: FilesystemStore, place: Path, intrude: Callable[[Path], None]
) -> None:
    intrude(place)
    store.put(HERE, memoryview(BLOCK))
    assert get(store) == BLOCK
    assert not place.is_symlink()
    assert not (place.parent / "nowhere").exists()
    if (place.parent / "target").exists():
        assert (place.parent / "target").read_bytes() == b"not ours"


@pytest.mark.parametrize("intrude", [_link_to_file, _dangling_link, _pipe])
def test_a_delete_removes_an_intruder_and_nothing_behind_it(
    store: FilesystemStore, place: Path, intrude: Callable[[Path], None]
) -> None:
    intrude(place)
    assert store.delete(HERE)
    assert list(place.parent.glob(place.name)) == []
    if intrude is _link_to_file:
        assert (place.parent / "target").read_bytes() == b"not ours"


def test_a_folder_in_place_of_a_block_is_a_store_error_and_stays(
    store: FilesystemStore, place: Path, root: Path
) -> None:
    _folder(place)
    with pytest.raises(StoreError):
        store.put(HERE, memoryview(BLOCK))
    with pytest.raises(StoreError):
        store.delete(HERE)
    assert (place / "file").read_bytes() == b"not ours"
    assert list((root / ".incoming").iterdir()) == []


def test_a_truncated_file_comes_back_as_short_as_it_is(store: FilesystemStore, root: Path) -> None:
    store.put(HERE, memoryview(BLOCK))
    os.truncate(path_of(root, HERE), 5)
    assert get(store) == BLOCK[:5]
    os.truncate(path_of(root, HERE), 0)
    assert get(store) == b""
    assert store.exists(HERE)


def test_foreign_names_are_passed_over_in_a_listing(store: FilesystemStore, root: Path) -> None:
    store.put(HERE, memoryview(BLOCK))
    shard = path_of(root, HERE).parent
    for name in ("README", f"{'ab' * 32}.tmp", f"{'AB' * 32}{SUFFIX}", f"{'ab' * 31}{SUFFIX}"):
        (shard / name).write_bytes(b"foreign")
    (root / "lost+found").mkdir()
    (root / "notes.txt").write_bytes(b"foreign")
    (root / ("ab" * 16)).write_bytes(b"a file in place of a namespace's folder")
    (root / ("cd" * 16)).symlink_to(root / HERE.namespace.hex())
    assert list(store.addresses()) == [HERE]


def test_a_stray_file_beside_the_shards_is_passed_over_in_a_listing(
    store: FilesystemStore, root: Path
) -> None:
    store.put(HERE, memoryview(BLOCK))
    (root / HERE.namespace.hex() / "stray").write_bytes(b"foreign")
    assert list(store.addresses()) == [HERE]


def test_what_is_no_file_is_passed_over_in_a_listing(store: FilesystemStore, root: Path) -> None:
    store.put(HERE, memoryview(BLOCK))
    shard = path_of(root, HERE).parent
    (shard / f"{'ab' * 30}0001{SUFFIX}").mkdir()
    (shard / f"{'ab' * 30}0002{SUFFIX}").symlink_to(path_of(root, HERE))
    assert list(store.addresses()) == [HERE]


def test_a_listing_of_a_lost_folder_is_a_store_error(
    store: FilesystemStore, root: Path, tmp_path: Path
) -> None:
    root.rename(tmp_path / "unmounted")
    with pytest.raises(StoreError):
        list(store.addresses())
    with pytest.raises(StoreError):
        store.put(HERE, memoryview(BLOCK))
    assert get(store) is None


@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("open", lambda store: store.put(HERE, memoryview(BLOCK))),
        ("open", get),
        ("readv", get),
        ("lstat", lambda store: store.exists(HERE)),
        ("unlink", lambda store: store.delete(HERE)),
        ("scandir", lambda store: list(store.addresses())),
        ("statvfs", lambda store: store.put(HERE, memoryview(BLOCK))),
    ],
    ids=["put", "get", "read", "exists", "delete", "list", "free"],
)
def test_every_failing_system_call_is_a_store_error(
    store: FilesystemStore,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    use: Callable[[FilesystemStore], object],
) -> None:
    store.put(HERE, memoryview(BLOCK))

    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StoreError, match="Stale file handle"):
            use(store)


def test_leftovers_of_a_dead_process_are_removed_at_the_next_start(
    store: FilesystemStore, root: Path
) -> None:
    old, fresh = root / ".incoming" / "1-dead", root / ".incoming" / "2-alive"
    for path in (old, fresh):
        path.write_bytes(b"half a block")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    FilesystemStore(root)
    assert not old.exists()
    assert fresh.exists()
    assert list(store.addresses()) == []


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigurationError, match="others may write to it") as caught:
        FilesystemStore(tmp_path)
    assert caught.value.file == tmp_path


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    os.chown(tmp_path, os.getuid() or 3_999_999, -1)
    with pytest.raises(ConfigurationError, match="another user") as caught:
        FilesystemStore(tmp_path)
    assert caught.value.file == tmp_path


def test_a_file_in_place_of_the_folder_is_a_clear_error(root: Path) -> None:
    root.write_bytes(b"")
    with pytest.raises(ConfigurationError, match="check its path and permissions") as caught:
        FilesystemStore(root)
    assert caught.value.file == root


def test_a_folder_that_takes_no_files_is_found_at_the_start(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", _fail_after(0, OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(ConfigurationError, match="Read-only file system"):
        FilesystemStore(root)
