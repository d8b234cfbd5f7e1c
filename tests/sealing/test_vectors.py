"""The test vectors of the sealed-block format, run against our code.

They were made by `tests/vectors/generate.py`, which shares no code with us.
"""

import ast
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvcustody.namespace import Namespace, Scope
from kvcustody.sealing import (
    BlockIdentity,
    DataKey,
    OpenFailure,
    SecretKey,
    open_into,
    seal_into,
    sealed_size,
)

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).resolve().parents[1] / "vectors"
DOCUMENT = FOLDER.parents[1] / "docs" / "sealed-block-format.md"
FILES = ("valid.json", "invalid.json", "names.json")

Vector = dict[str, Any]


def read(name: str) -> dict[str, Any]:
    content = json.loads((FOLDER / name).read_text(encoding="ascii"))
    assert isinstance(content, dict)
    return content


VALID: dict[str, Vector] = {vector["id"]: vector for vector in read("valid.json")["vectors"]}
INVALID: dict[str, Vector] = {vector["id"]: vector for vector in read("invalid.json")["vectors"]}
NAMESPACES: dict[str, Vector] = {each["id"]: each for each in read("names.json")["namespaces"]}
BLOCK_NAMES: dict[str, Vector] = {each["id"]: each for each in read("names.json")["block_names"]}


def checked(content: bytes, described: dict[str, Any]) -> bytes:
    """Content that a rule made, after a look at what the vector says of it."""
    assert len(content) == described["bytes"]
    if "sha256" in described:
        assert hashlib.sha256(content).hexdigest() == described["sha256"]
    return content


def plaintext_of(vector: Vector) -> bytes:
    described = vector["plaintext"]
    if "hex" in described:
        return checked(bytes.fromhex(described["hex"]), described)
    blocks = [
        hashlib.sha256(described["stream"].encode() + counter.to_bytes(4)).digest()
        for counter in range((described["bytes"] + 31) // 32)
    ]
    return checked(b"".join(blocks)[: described["bytes"]], described)


def identity_of(vector: Vector) -> BlockIdentity:
    expected = vector["expected"]
    return BlockIdentity(
        *(bytes.fromhex(expected[field]) for field in ("namespace", "name", "layout"))
    )


def sealed_of(vector: Vector) -> bytes:
    """The bytes on the tier: written down, sealed by us to the digest given, or made of those."""
    described = vector["sealed"]
    if "hex" in described:
        return checked(bytes.fromhex(described["hex"]), described)
    if "altered" not in described:
        return checked(seal(vector), described)
    sealed = bytearray(sealed_of(VALID[vector["sibling"]]))
    for change in described["altered"]:
        if "xor" in change:
            sealed[change["offset"]] ^= int(change["xor"], 16)
        else:
            del sealed[change.get("cut_to", len(sealed)) :]
            sealed += bytes.fromhex(change.get("append", ""))
    return checked(bytes(sealed), described)


def seal(vector: Vector) -> bytes:
    """Seal what a valid vector seals, with its salt."""
    plaintext, writer = plaintext_of(vector), vector["seal"]
    sealed = bytearray(sealed_size(len(plaintext)))
    seal_into(
        memoryview(sealed),
        plaintext,
        identity_of(vector),
        DataKey(bytes.fromhex(writer["key_id"]), bytes.fromhex(vector["keys"][writer["key_id"]])),
        created=int(writer["created"]),
        expires=int(writer["expires"]),
        random_bytes=lambda _: bytes.fromhex(writer["salt"]),
    )
    return bytes(sealed)


def unseal(vector: Vector) -> tuple[OpenFailure | None, bytes]:
    """Open a vector's block into a destination that holds another request's data."""
    known = {
        "destroyed": OpenFailure.KEY_DESTROYED,
        "unavailable": OpenFailure.KEY_UNAVAILABLE,
    }

    def find(key_id: bytes) -> DataKey | OpenFailure:
        found = vector["keys"].get(key_id.hex(), "unavailable")
        return known[found] if found in known else DataKey(key_id, bytes.fromhex(found))

    destination = bytearray(b"\xaa" * vector["expected"]["plaintext_bytes"])
    failure = open_into(
        memoryview(destination),
        memoryview(sealed_of(vector)),
        identity_of(vector),
        find,
        now=int(vector["now"]),
    )
    return failure, bytes(destination)


@pytest.mark.parametrize("name", VALID)
def test_a_valid_block_opens_to_its_plaintext(name: str) -> None:
    assert unseal(VALID[name]) == (None, plaintext_of(VALID[name]))


@pytest.mark.parametrize("name", VALID)
def test_sealing_with_the_same_salt_gives_the_same_bytes(name: str) -> None:
    vector = VALID[name]
    if vector["seal"]["conforming"]:
        assert seal(vector) == sealed_of(vector)
    else:
        with pytest.raises(ValueError, match="before it was created"):
            seal(vector)


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_block_fails_the_check_that_it_should(name: str) -> None:
    vector = INVALID[name]
    sibling = VALID[vector["sibling"]]
    zeros = bytes(vector["expected"]["plaintext_bytes"])
    assert unseal(vector) == (OpenFailure(vector["failure"]), zeros)
    assert unseal(sibling) == (None, plaintext_of(sibling))


def test_every_check_is_failed_several_times() -> None:
    counts = Counter(vector["failure"] for vector in INVALID.values())
    assert set(counts) == {failure.value for failure in OpenFailure}
    assert min(counts.values()) >= 5
    assert len(VALID) >= 30
    assert sum(counts.values()) >= 60


def namespace_of(case: Vector) -> Namespace:
    parts = ("deployment", "tenant", "workload", "subject", "group")
    scope = Scope(*(case[part] for part in parts))
    return Namespace(scope, case["model_revision"], case["layout"], case["adapter"])


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_namespace_has_the_identifier_of_its_vector(name: str) -> None:
    case = NAMESPACES[name]
    namespace = namespace_of(case)
    assert namespace.scope.encode().hex() == case["encoded_scope"]
    assert namespace.identifier(bytes.fromhex(case["key"])).hex() == case["identifier"]
    encoded = bytes.fromhex(case["encoded_namespace"])
    assert bytes.fromhex(case["encoded_scope"]) in encoded


def test_namespaces_share_an_identifier_only_where_that_is_meant() -> None:
    for name, case in NAMESPACES.items():
        ours = namespace_of(case).identifier(bytes.fromhex(case["key"]))
        for other_name, other in NAMESPACES.items():
            theirs = namespace_of(other).identifier(bytes.fromhex(other["key"]))
            assert (ours == theirs) == (case["same_as"] == other["same_as"]), (name, other_name)


@pytest.mark.parametrize("name", BLOCK_NAMES)
def test_a_block_has_the_name_of_its_vector(name: str) -> None:
    case = BLOCK_NAMES[name]
    block = bytes.fromhex(case["block_hash"]) + case["group"].to_bytes(4)
    naming_key = SecretKey(bytes.fromhex(case["naming_key"]))
    assert naming_key.digest(block) == bytes.fromhex(case["name"])


def test_no_two_blocks_share_a_name() -> None:
    assert len({case["name"] for case in BLOCK_NAMES.values()}) == len(BLOCK_NAMES)


def test_the_generator_reproduces_the_files(tmp_path: Path) -> None:
    subprocess.run(  # noqa: S603 - our own interpreter and program
        [sys.executable, str(FOLDER / "generate.py"), str(tmp_path)],
        check=True,
        timeout=60,
    )
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name


def test_the_generator_imports_nothing_of_the_package() -> None:
    programs = {path.stem: ast.parse(path.read_text("utf-8")) for path in FOLDER.glob("*.py")}
    assert {"generate", "reference_sealed_block"} <= programs.keys()
    for name, tree in programs.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported = {str(node.module)}
            else:
                continue
            roots = {module.partition(".")[0] for module in imported}
            allowed = sys.stdlib_module_names | programs.keys() | {"cryptography"}
            assert roots <= allowed - {"importlib", "runpy"}, name


def test_the_document_says_what_the_vectors_are() -> None:
    text = " ".join(DOCUMENT.read_text("utf-8").split())
    assert f"{len(VALID)} blocks that open, {len(INVALID)} that don't" in text
    assert f"{len(NAMESPACES)} namespaces and {len(BLOCK_NAMES)} names" in text
    assert NAMESPACES["worked-example"]["identifier"] in text
    assert VALID["ciphertext-of-two-keys"]["id"] in text


def test_the_document_has_the_fields_where_the_vectors_have_them() -> None:
    table = re.findall(
        r"^\| (\d+) \| (\d+) \| ([a-z ]+) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE
    )
    sealed = sealed_of(VALID["base"])
    fields = {name: sealed[int(at) : int(at) + int(size)].hex() for at, size, name in table}
    vector = VALID["base"]
    assert list(fields.values()) == [
        b"KVCB".hex(),
        "0001",
        "0001",
        vector["seal"]["key_id"],
        vector["expected"]["namespace"],
        vector["expected"]["name"],
        int(vector["seal"]["created"]).to_bytes(8).hex(),
        int(vector["seal"]["expires"]).to_bytes(8).hex(),
        vector["expected"]["plaintext_bytes"].to_bytes(8).hex(),
        vector["expected"]["layout"],
        vector["seal"]["salt"],
        fields["key commitment"],
    ]
    assert sum(int(size) for _, size, _ in table) == 192
