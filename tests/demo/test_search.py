import os
from pathlib import Path

import pytest

from kvcustody.demo.search import search_plaintext

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("alignment", range(8))
def test_a_run_of_host_memory_is_found_at_any_alignment(tmp_path: Path, alignment: int) -> None:
    memory = bytes(4096) + os.urandom(1 << 16) + bytes(4096)
    content = os.urandom(1000 + alignment) + memory[5003:5035] + os.urandom(500)
    (tmp_path / "block").write_bytes(content)
    result = search_plaintext(tmp_path, memory, [])
    assert result.findings == ("block: a 32-byte run of host memory",)


def test_random_bytes_and_zeros_are_not_found(tmp_path: Path) -> None:
    memory = bytes(4096) + os.urandom(1 << 16)
    (tmp_path / "block").write_bytes(os.urandom(1 << 18) + bytes(4096))
    (tmp_path / "small").write_bytes(b"x")
    result = search_plaintext(tmp_path, memory, ["acme"])
    assert result.findings == ()
    assert (result.files, result.host_bytes) == (2, len(memory))


def test_short_words_count_in_headers_only_because_chance_writes_them(tmp_path: Path) -> None:
    (tmp_path / "chance").write_bytes(bytes(500) + b"acme")
    (tmp_path / "header").write_bytes(bytes(100) + b"acme" + bytes(500))
    (tmp_path / "long").write_bytes(bytes(500) + b"Apache License")
    result = search_plaintext(tmp_path, b"", ["acme", "Apache License"])
    assert result.findings == ("header: 'acme'", "long: 'Apache License'")


def test_words_are_found_in_files_and_in_their_names(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "block").write_bytes(b"..globex..")
    result = search_plaintext(tmp_path, b"", ["acme", "globex"])
    assert result.findings == ("acme/block: 'globex'", "file name acme/block: 'acme'")
