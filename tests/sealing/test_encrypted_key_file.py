import base64
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from hypothesis import given
from hypothesis import strategies as st

from kvcustody.errors import ConfigurationError
from kvcustody.sealing.providers import LocalKeyProvider, create_key_file, key_file, wipeable_base64
from kvcustody.sealing.providers.key_file import read_key_file

pytestmark = pytest.mark.unit

PASSPHRASE = b"correct horse battery staple"
CHEAP = (2**14, 8, 1)


@pytest.fixture(autouse=True)
def _cheap_passphrases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file, "_COST", CHEAP)


@pytest.fixture
def encrypted(tmp_path: Path) -> Path:
    path = tmp_path / "root.key"
    create_key_file(path, PASSPHRASE)
    return path


def passphrase_file(folder: Path, content: bytes = PASSPHRASE + b"\n") -> Path:
    path = folder / "passphrase"
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def refusal(path: Path, passphrase: Path | None) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        LocalKeyProvider(path, passphrase)
    assert "\n" not in str(caught.value)
    assert PASSPHRASE.decode() not in repr(caught.value)
    return caught.value


def test_the_file_is_what_its_documentation_says(encrypted: Path, tmp_path: Path) -> None:
    first, second, third, end = encrypted.read_bytes().split(b"\n")
    assert (first, end) == (b"kvcustody encrypted root key 1", b"")
    found = re.fullmatch(rb"scrypt n=16384 r=8 p=1 salt=(.{24})", second)
    assert found is not None
    salt, sealed = base64.b64decode(found[1], validate=True), base64.b64decode(third, validate=True)
    assert (len(salt), len(sealed)) == (16, 60)
    wrapping = Scrypt(salt=salt, length=32, n=2**14, r=8, p=1).derive(PASSPHRASE)
    head = first + b"\n" + second + b"\n"
    key = AESGCM(wrapping).decrypt(sealed[:12], sealed[12:], head)
    assert key == read_key_file(encrypted, passphrase_file(tmp_path))


def test_a_new_file_costs_128_mib_a_guess(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    create_key_file(tmp_path / "root.key", PASSPHRASE)
    assert b"scrypt n=131072 r=8 p=1 salt=" in (tmp_path / "root.key").read_bytes()


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_line_break_at_the_end_of_a_passphrase_does_not_count(
    encrypted: Path, tmp_path: Path, end: bytes
) -> None:
    LocalKeyProvider(encrypted, passphrase_file(tmp_path, PASSPHRASE + end))


def test_a_wrong_passphrase_is_one_clear_error(encrypted: Path, tmp_path: Path) -> None:
    wrong = passphrase_file(tmp_path, b"wrong horse")
    error = refusal(encrypted, wrong)
    assert error.message == f"the passphrase in {wrong} is not the one of this key file"
    assert error.file == encrypted


def test_a_passphrase_for_a_plain_key_file_is_refused(tmp_path: Path) -> None:
    create_key_file(tmp_path / "plain.key")
    error = refusal(tmp_path / "plain.key", passphrase_file(tmp_path))
    assert error.message == "this key file is not encrypted; remove keys.passphrase_file"


def test_an_encrypted_key_file_without_its_passphrase_says_what_to_set(encrypted: Path) -> None:
    assert refusal(encrypted, None).message == (
        "this key file is encrypted; set keys.passphrase_file"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the passphrase file is empty; put the passphrase into it"),
        (b"\n\n", "the passphrase file is empty; put the passphrase into it"),
        (b"x" * 1025, "more than 1024 bytes; that is no passphrase file"),
        (b"x" * 9000, "more than 1024 bytes; that is no passphrase file"),
    ],
)
def test_a_file_without_a_passphrase_is_refused(
    encrypted: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    assert refusal(encrypted, passphrase_file(tmp_path, content)).message == message


def test_a_passphrase_file_is_as_private_as_a_key_file(encrypted: Path, tmp_path: Path) -> None:
    path = passphrase_file(tmp_path)
    path.chmod(0o640)
    assert refusal(encrypted, path).message == (
        "others may read it (mode 0640); run chmod 600 on it"
    )
    (tmp_path / "link").symlink_to(path)
    assert "can't be read" in refusal(encrypted, tmp_path / "link").message
    missing = refusal(encrypted, tmp_path / "missing")
    assert missing.file == tmp_path / "missing"
    assert missing.message == "no such passphrase file; put the passphrase into it, mode 0600"


@pytest.mark.parametrize(
    "cost",
    ["n=1073741824 r=8 p=1", "n=131072 r=999 p=1", "n=131072 r=8 p=999", "n=1048576 r=8 p=1"],
)
def test_a_hostile_cost_is_refused_before_memory_is_spent(
    encrypted: Path, tmp_path: Path, cost: str
) -> None:
    assert "restore" in _with_cost(encrypted, tmp_path, cost).message


@pytest.mark.parametrize(
    "cost", ["n=1024 r=8 p=1", "n=16385 r=8 p=1", "n=0 r=8 p=1", "n=16384 r=0 p=1", "n=-1 r=8 p=1"]
)
def test_a_cost_that_protects_nothing_is_refused(
    encrypted: Path, tmp_path: Path, cost: str
) -> None:
    assert "restore" in _with_cost(encrypted, tmp_path, cost).message


def _with_cost(encrypted: Path, folder: Path, cost: str) -> ConfigurationError:
    content = encrypted.read_bytes().replace(b"n=16384 r=8 p=1", cost.encode())
    encrypted.write_bytes(content)
    return refusal(encrypted, passphrase_file(folder))


@pytest.mark.parametrize("line", [1, 2], ids=["cost and salt", "key"])
def test_no_altered_file_opens(encrypted: Path, tmp_path: Path, line: int) -> None:
    lines = encrypted.read_bytes().split(b"\n")
    place = len(lines[line]) // 2 if line == 2 else -5
    altered = bytearray(lines[line])
    altered[place] = ord("A") if altered[place] != ord("A") else ord("B")
    encrypted.write_bytes(b"\n".join([*lines[:line], bytes(altered), *lines[line + 1 :]]))
    assert (
        "is not the one of this key file" in refusal(encrypted, passphrase_file(tmp_path)).message
    )


@pytest.mark.parametrize("cut", [-1, -5, -60, 40, 31])
def test_a_file_cut_short_never_opens_another_key(
    encrypted: Path, tmp_path: Path, cut: int
) -> None:
    passphrase = passphrase_file(tmp_path)
    key = read_key_file(encrypted, passphrase)
    encrypted.write_bytes(encrypted.read_bytes()[:cut])
    if cut == -1:
        assert read_key_file(encrypted, passphrase) == key  # only the line break is missing
    else:
        assert "restore it from a backup" in refusal(encrypted, passphrase).message


@given(st.binary(max_size=70))
def test_base64_without_copies_is_base64(secret: bytes) -> None:
    text = wipeable_base64.encode(bytearray(secret))
    assert text == base64.b64encode(secret)
    assert wipeable_base64.decode(memoryview(text)) == secret


@pytest.mark.parametrize(
    "text", [b"A", b"AA", b"AAA", b"A===", b"====", b"AA=A", b"A\nAA", b"-A=="]
)
def test_what_is_not_base64_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not base64"):
        wipeable_base64.decode(memoryview(text))
