import re
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcustody.identity.principal import Principal
from kvcustody.namespace import Namespace, Scope
from kvcustody.namespace.namespace import encode_fields

pytestmark = pytest.mark.unit

# A busy machine is no finding.
unhurried = settings(deadline=None, max_examples=50)

KEY = b"\x01" * 32
OTHER_KEY = b"\x02" * 32
ALICE = Principal("acme", "support", "alice")

# Few letters, so that fields often run into each other; separators and lengths among them.
TEXTS = st.text(alphabet="ab\x00\x01\x02/:é", max_size=4) | st.text(max_size=4)
FIELDS = st.lists(TEXTS | st.none(), max_size=5)


def normal(fields: list[str | None]) -> list[str | None]:
    return [field and unicodedata.normalize("NFC", field) for field in fields]


@unhurried
@given(FIELDS, FIELDS)
def test_two_lists_of_fields_never_encode_to_the_same_bytes(
    one: list[str | None], two: list[str | None]
) -> None:
    same = encode_fields(b"domain", *one) == encode_fields(b"domain", *two)
    assert same == (normal(one) == normal(two))


@unhurried
@given(st.lists(st.binary(max_size=4) | st.none(), max_size=5), st.integers(0, 4))
def test_bytes_moved_from_one_field_to_the_next_change_the_encoding(
    fields: list[bytes | None], index: int
) -> None:
    fields = [*fields, b"ab", b"cd"]
    index = index % (len(fields) - 1)
    left, right = fields[index] or b"", fields[index + 1] or b""
    moved = [*fields[:index], left + right, b"", *fields[index + 2 :]]
    if moved != fields:
        assert encode_fields(b"domain", *moved) != encode_fields(b"domain", *fields)


@unhurried
@given(FIELDS, st.binary(max_size=4), st.binary(max_size=4))
def test_two_domains_never_encode_to_the_same_bytes(
    fields: list[str | None], one: bytes, two: bytes
) -> None:
    same = encode_fields(one, *fields) == encode_fields(two, *fields)
    assert same == (one == two)


@unhurried
@given(FIELDS, FIELDS)
def test_no_encoding_is_the_start_of_another(one: list[str | None], two: list[str | None]) -> None:
    first, second = encode_fields(b"domain", *one), encode_fields(b"domain", *two)
    assert first == second or not second.startswith(first)


def test_an_empty_field_is_not_a_missing_one() -> None:
    encoded = {
        encode_fields(b"domain", *fields) for fields in ([], [""], [None], ["", ""], [None, ""])
    }
    assert len(encoded) == 5


def test_two_spellings_of_one_name_are_one_name() -> None:
    composed, decomposed = "Caf\u00e9", "Cafe\u0301"
    assert encode_fields(b"d", composed) == encode_fields(b"d", decomposed)
    assert encode_fields(b"d", "Cafe") != encode_fields(b"d", composed)


def test_the_encoding_is_the_specified_one() -> None:
    assert encode_fields(b"dom", "ab", None, b"\xff") == (
        b"\0\0\0\3dom" + b"\0\0\0\3" + b"\1\0\0\0\2ab" + b"\0" + b"\1\0\0\0\1\xff"
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("tenant", Scope("local", "acme")),
        ("workload", Scope("local", "acme", "support")),
        ("subject", Scope("local", "acme", "support", "alice")),
    ],
)
def test_a_scope_holds_what_its_kind_shares_within(kind: str, expected: Scope) -> None:
    assert Scope.of(ALICE, "local", kind) == expected  # type: ignore[arg-type]  # a parameter


def test_requests_without_a_subject_share_within_their_workload_only() -> None:
    nobody = Scope.of(Principal("acme", "support"), "local", "subject")
    assert nobody == Scope.of(Principal("acme", "support"), "local", "workload")
    assert nobody != Scope.of(Principal("acme", "sales"), "local", "subject")
    assert nobody != Scope.of(ALICE, "local", "subject")


NEIGHBOURS = [
    Principal("acme", "support", "bob"),
    Principal("acme", "sales", "alice"),
    Principal("globex", "support", "alice"),
    Principal("acme", "supportalice", "x"),
    Principal("acme", "support", None),
    Principal("acmesupport", "x", "alice"),
    Principal("acme/support", "alice", None),
]


@pytest.mark.parametrize("other", NEIGHBOURS)
def test_two_subjects_share_neither_salt_nor_namespace(other: Principal) -> None:
    ours, theirs = (Scope.of(who, "local", "subject") for who in (ALICE, other))
    assert ours.cache_salt(KEY) != theirs.cache_salt(KEY)
    assert Namespace(ours, "m", "l").identifier(KEY) != Namespace(theirs, "m", "l").identifier(KEY)


def test_workloads_of_a_tenant_share_where_the_tenant_does() -> None:
    one, two = (Scope.of(Principal("acme", workload), "local", "tenant") for workload in ("a", "b"))
    assert one == two
    assert one.cache_salt(KEY) == two.cache_salt(KEY)


SCOPES = st.builds(Scope, TEXTS, TEXTS, st.none() | TEXTS, st.none() | st.text(max_size=300))


@unhurried
@given(SCOPES, st.binary(min_size=32, max_size=32))
def test_every_salt_is_one_that_vllm_accepts(scope: Scope, key: bytes) -> None:
    """vLLM takes 1 to 128 characters, but neither '@', '/', '\\' nor NUL."""
    salt = scope.cache_salt(key)
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", salt)


def test_a_salt_can_not_be_guessed_without_the_key() -> None:
    scope = Scope("local", "acme")
    assert scope.cache_salt(KEY) == scope.cache_salt(KEY)
    assert scope.cache_salt(KEY) != scope.cache_salt(OTHER_KEY)


def test_salts_and_identifiers_never_coincide() -> None:
    scope = Scope("local", "acme")
    identifier = Namespace(scope, "m", "l").identifier(KEY)
    assert identifier.hex() not in scope.cache_salt(KEY).encode().hex()


NAMESPACE = Namespace(Scope("local", "acme", "support"), "revision-1", "ab" * 32)


@pytest.mark.parametrize(
    "other",
    [
        replace(NAMESPACE, scope=Scope("prod", "acme", "support")),
        replace(NAMESPACE, scope=Scope("local", "globex", "support")),
        replace(NAMESPACE, scope=Scope("local", "acme", "sales")),
        replace(NAMESPACE, scope=Scope("local", "acme")),
        replace(NAMESPACE, scope=Scope("local", "acme", "support", "")),
        replace(NAMESPACE, scope=Scope("local", "acme", None, "support")),
        replace(NAMESPACE, model_revision="revision-2"),
        replace(NAMESPACE, layout="cd" * 32),
        replace(NAMESPACE, model_revision="ab" * 32, layout="revision-1"),
        replace(NAMESPACE, model_revision="revision-1" + "ab" * 32, layout=""),
    ],
)
def test_a_namespace_that_differs_in_anything_has_another_identifier(other: Namespace) -> None:
    assert other.identifier(KEY) != NAMESPACE.identifier(KEY)


def test_an_identifier_has_16_bytes_and_depends_on_the_key() -> None:
    assert len(NAMESPACE.identifier(KEY)) == 16
    assert NAMESPACE.identifier(KEY) == NAMESPACE.identifier(KEY)
    assert NAMESPACE.identifier(KEY) != NAMESPACE.identifier(OTHER_KEY)
