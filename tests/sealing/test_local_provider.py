import base64
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcustody.errors import ConfigurationError, CustodyError
from kvcustody.sealing.providers import (
    KeyContext,
    LocalKeyProvider,
    WrappedKeyError,
    create_key_file,
)

pytestmark = pytest.mark.unit

SECRET = b"\x07" * 32
CONTEXT = KeyContext("data key", "one")
FIRST_LINE = b"kvcustody root key 1\n"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "root.key"
    create_key_file(path)
    return path


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def refusal(path: Path) -> ConfigurationError:
    """What the provider says of a key file that it refuses: always names the file."""
    with pytest.raises(ConfigurationError) as caught:
        LocalKeyProvider(path)
    assert caught.value.file == path
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.usefixtures("_umask")
def test_a_new_key_file_is_private_whatever_the_umask(key_file: Path) -> None:
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600


def test_a_new_key_file_holds_32_random_bytes(tmp_path: Path) -> None:
    keys = set()
    for name in ("a", "b"):
        create_key_file(tmp_path / name)
        first, second, rest = (tmp_path / name).read_text().split("\n")
        assert (first, rest) == ("kvcustody root key 1", "")
        keys.add(base64.b64decode(second, validate=True))
    assert [len(key) for key in keys] == [32, 32]


def test_a_key_file_is_never_overwritten(key_file: Path) -> None:
    before = key_file.read_bytes()
    with pytest.raises(ConfigurationError, match="exists already; it is kept") as caught:
        create_key_file(key_file)
    assert caught.value.file == key_file
    assert key_file.read_bytes() == before


def test_a_key_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "root.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError):
        create_key_file(tmp_path / "root.key")
    assert not (tmp_path / "elsewhere").exists()


def test_a_key_file_in_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "root.key"
    with pytest.raises(ConfigurationError, match="can't be written") as caught:
        create_key_file(path)
    assert caught.value.file == path


def test_a_key_file_that_a_full_disk_cut_short_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ConfigurationError, match="No space left") as caught:
        create_key_file(tmp_path / "root.key")
    assert caught.value.file == tmp_path / "root.key"
    assert not (tmp_path / "root.key").exists()


def test_a_wrapped_key_unwraps_again_also_after_a_restart(key_file: Path) -> None:
    wrapped = LocalKeyProvider(key_file).wrap(SECRET, CONTEXT)
    assert SECRET not in wrapped
    assert LocalKeyProvider(key_file).unwrap(wrapped, CONTEXT) == SECRET


def test_the_same_key_wraps_differently_each_time(key_file: Path) -> None:
    provider = LocalKeyProvider(key_file)
    assert provider.wrap(SECRET, CONTEXT) != provider.wrap(SECRET, CONTEXT)


def test_a_wrapped_key_unwraps_in_no_other_context(key_file: Path) -> None:
    provider = LocalKeyProvider(key_file)
    with pytest.raises(WrappedKeyError):
        provider.unwrap(provider.wrap(SECRET, CONTEXT), KeyContext("data key", "other"))


def test_another_root_key_is_named_with_the_remedy(key_file: Path, tmp_path: Path) -> None:
    create_key_file(tmp_path / "other.key")
    wrapped = LocalKeyProvider(key_file).wrap(SECRET, CONTEXT)
    with pytest.raises(WrappedKeyError) as caught:
        LocalKeyProvider(tmp_path / "other.key").unwrap(wrapped, CONTEXT)
    assert str(tmp_path / "other.key") in str(caught.value)
    assert "use the key file that belongs to the registry" in str(caught.value)


def test_a_changed_wrapped_key_never_unwraps(key_file: Path) -> None:
    provider = LocalKeyProvider(key_file)
    wrapped = provider.wrap(SECRET, CONTEXT)
    for offset in range(len(wrapped)):
        changed = bytearray(wrapped)
        changed[offset] ^= 1
        with pytest.raises(WrappedKeyError):
            provider.unwrap(bytes(changed), CONTEXT)


@pytest.mark.parametrize("wrapped", [b"", b"x", b"x" * 12, b"x" * 28, b"x" * 200])
def test_foreign_bytes_never_unwrap(key_file: Path, wrapped: bytes) -> None:
    with pytest.raises(WrappedKeyError):
        LocalKeyProvider(key_file).unwrap(wrapped, CONTEXT)


def test_a_provider_shows_its_file_and_nothing_of_the_key(key_file: Path) -> None:
    assert repr(LocalKeyProvider(key_file)) == f"LocalKeyProvider({key_file})"


def test_a_missing_key_file_says_how_to_get_one(tmp_path: Path) -> None:
    error = refusal(tmp_path / "root.key")
    assert (
        error.message == "no such key file; restore it, or make one with `kvcustody keys new-root`"
    )


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o610])
def test_a_key_file_open_to_others_says_to_close_it(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    error = refusal(key_file)
    assert f"mode {mode:04o}" in error.message
    assert "chmod 600" in error.message


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_file_closed_to_others_is_accepted(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    LocalKeyProvider(key_file)


def test_a_key_file_of_another_user_is_refused(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def stat_as_anothers(path: int) -> os.stat_result:
        fields = list(real(path))
        fields[stat.ST_UID] = os.geteuid() + 1
        return os.stat_result(fields)

    monkeypatch.setattr(os, "stat", stat_as_anothers)
    assert "chown" in refusal(key_file).message


@pytest.mark.parametrize("length", [0, 1, 16, 31, 33, 64])
def test_a_key_of_the_wrong_length_is_damaged(tmp_path: Path, length: int) -> None:
    error = refusal(_write(tmp_path, FIRST_LINE + base64.b64encode(b"k" * length) + b"\n"))
    assert error.message == "the key file is damaged; restore it from a backup"


@pytest.mark.parametrize(
    "rest", [b"", b"\n", b"not base64!\n", b"\xff" * 44, "ключ".encode(), b"a" * 5000]
)
def test_a_damaged_key_file_says_to_restore_it(tmp_path: Path, rest: bytes) -> None:
    assert "restore it from a backup" in refusal(_write(tmp_path, FIRST_LINE + rest)).message


@pytest.mark.parametrize("content", [b"", b"x", b"kvcustody root key 2\n", b"\x7fELF\0\xff" * 2000])
def test_a_file_of_another_kind_is_no_key_file(tmp_path: Path, content: bytes) -> None:
    assert refusal(_write(tmp_path, content)).message == "not a kvcustody key file"


def test_a_folder_in_place_of_the_key_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "root.key").mkdir(mode=0o700)
    refusal(tmp_path / "root.key")


def test_a_pipe_in_place_of_the_key_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "root.key", 0o600)
    assert refusal(tmp_path / "root.key").message == "not a regular file"


def test_a_link_in_place_of_the_key_file_is_not_followed(key_file: Path, tmp_path: Path) -> None:
    (tmp_path / "link.key").symlink_to(key_file)
    assert "can't be read" in refusal(tmp_path / "link.key").message


def test_a_closed_provider_says_so(key_file: Path) -> None:
    provider = LocalKeyProvider(key_file)
    wrapped = provider.wrap(SECRET, CONTEXT)
    provider.close()
    provider.close()
    for use in (lambda: provider.wrap(SECRET, CONTEXT), lambda: provider.unwrap(wrapped, CONTEXT)):
        with pytest.raises(CustodyError, match="the key provider is closed"):
            use()


def test_a_key_that_did_not_unwrap_is_nowhere_in_the_error(key_file: Path) -> None:
    provider = LocalKeyProvider(key_file)
    with pytest.raises(WrappedKeyError) as caught:
        provider.unwrap(provider.wrap(SECRET, CONTEXT), KeyContext("data key", "other"))
    assert caught.value.__cause__ is None
    assert SECRET.hex() not in repr(caught.value)


def test_no_refusal_shows_the_key(key_file: Path) -> None:
    secret = key_file.read_text().splitlines()[1]
    key_file.chmod(0o644)
    assert secret not in str(refusal(key_file))


def _write(folder: Path, content: bytes) -> Path:
    path = folder / "root.key"
    path.write_bytes(content)
    path.chmod(0o600)
    return path
