"""What is left of a root key and its passphrase in a process's memory, seen from outside it."""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvcustody.sealing.providers import create_key_file, key_file
from kvcustody.sealing.providers.key_file import read_key_file
from process_memory import writable_memory

pytestmark = pytest.mark.unit

SCRIPT = Path(__file__).parent / "provider_in_use.py"
PASSPHRASE = b"battery-" + os.urandom(12).hex().encode() + b"-staple"
# Chance never writes 8 given bytes; fewer than the whole also finds what was overwritten in part.
PIECE = 8
# One piece of each round key of AES.
STRIDE = 16


class Subject:
    """A process that holds a key; `finish` makes it close its provider."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def wait_for(self, line: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{line}\n"

    def close_provider(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.wait_for("closed")

    def holds(self, *secrets: bytes) -> set[bytes]:
        """Pieces of the secrets that are in the process's memory."""
        wanted = {piece for secret in secrets for piece in pieces(secret)}
        return {
            piece
            for region in writable_memory(self._process.pid)
            for piece in wanted
            if piece in region
        }


@contextmanager
def process(*arguments: Path | str) -> Iterator[Subject]:
    with subprocess.Popen(  # noqa: S603 - our own interpreter and scripts
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            subject = Subject(running)
            subject.wait_for("in use")
            yield subject
        finally:
            running.kill()


def pieces(secret: bytes) -> set[bytes]:
    return {secret[start : start + PIECE] for start in range(0, len(secret) - PIECE + 1, STRIDE)}


def substitution() -> list[int]:
    """The S-box of AES (FIPS 197, section 5.1.1)."""
    box = [0x63] * 256
    value = inverse = 1
    for _ in range(255):
        value ^= (value << 1) & 255 ^ (0x1B if value & 0x80 else 0)
        for shift in (1, 2, 4):
            inverse ^= inverse << shift & 255
        inverse ^= 0x09 if inverse & 0x80 else 0
        spread = inverse << 8 | inverse
        box[value] = 0x63 ^ inverse
        for shift in (1, 2, 3, 4):
            box[value] ^= spread >> (8 - shift) & 255
    return box


def round_keys(key: bytes) -> bytes:
    """The key schedule of AES-256 (FIPS 197, section 5.2); it begins with the key."""
    box = substitution()
    words = [key[start : start + 4] for start in range(0, 32, 4)]
    for index in range(8, 60):
        word = words[-1]
        if index % 8 == 0:
            word = bytes(box[byte] for byte in word[1:] + word[:1])
            word = bytes([word[0] ^ 1 << index // 8 - 1]) + word[1:]
        elif index % 8 == 4:
            word = bytes(box[byte] for byte in word)
        words.append(bytes(a ^ b for a, b in zip(words[-8], word, strict=True)))
    return b"".join(words)


def forms(key: bytes) -> list[bytes]:
    """A key as it may stand in memory: for AES, as text, and as HMAC (RFC 2104) uses it."""
    return [
        round_keys(key),
        base64.b64encode(key).rstrip(b"="),
        key.hex().encode(),
        bytes(byte ^ 0x36 for byte in key),
        bytes(byte ^ 0x5C for byte in key),
    ]


def test_nothing_of_a_root_key_is_in_memory_after_close(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    create_key_file(path)
    key = bytes(read_key_file(path))
    with process(SCRIPT, path) as subject:
        assert subject.holds(key) == pieces(key)
        subject.close_provider()
        assert subject.holds(*forms(key)) == set()


def test_a_passphrase_is_gone_once_the_key_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_file, "_COST", (2**14, 8, 1))
    path, passphrase_file = tmp_path / "root.key", tmp_path / "passphrase"
    passphrase_file.write_bytes(PASSPHRASE + b"\n")
    passphrase_file.chmod(0o600)
    create_key_file(path, PASSPHRASE)
    key = bytes(read_key_file(path, passphrase_file))
    with process(SCRIPT, path, passphrase_file) as subject:
        assert subject.holds(key, PASSPHRASE) == pieces(key)
        subject.close_provider()
        assert subject.holds(key, PASSPHRASE) == set()


def test_the_round_keys_are_those_of_the_standard() -> None:
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    schedule = round_keys(key)  # FIPS 197, appendix A.3
    assert (schedule[:32], schedule[32:36].hex()) == (key, "9ba35411")
    assert schedule[-4:].hex() == "706c631e"


def test_a_passphrase_that_is_kept_is_found(tmp_path: Path) -> None:
    (tmp_path / "passphrase").write_bytes(PASSPHRASE)
    keep = "import sys; kept = open(sys.argv[1], 'rb').read(); print('in use', flush=True); input()"
    with process("-c", keep, tmp_path / "passphrase") as subject:
        assert subject.holds(PASSPHRASE) == pieces(PASSPHRASE)
