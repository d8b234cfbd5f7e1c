import json
from base64 import urlsafe_b64decode, urlsafe_b64encode

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcustody.identity.assertion import (
    AssertionFailure,
    AssertionSigner,
    AssertionVerifier,
    Verified,
)
from kvcustody.identity.principal import Principal

pytestmark = pytest.mark.unit

KEY = bytes(range(32))
ACME = Principal("acme", "chat", "patient-7")
RID = "0f" * 16
SALT = "s" * 43


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def signed(clock: Clock, **changes: str) -> str:
    arguments = {"request_id": RID, "salt": SALT, **changes}
    return AssertionSigner(KEY, "support-eu", 60.0, clock).sign(ACME, **arguments)


def verify(
    assertion: object,
    clock: Clock,
    *,
    request_id: str = f"chatcmpl-{RID}-a1b2c3",
    salt: str | None = SALT,
    key: bytes = KEY,
    deployment: str = "support-eu",
) -> Verified | AssertionFailure:
    verifier = AssertionVerifier(key, deployment, clock)
    return verifier.verify(assertion, request_id=request_id, cache_salt=salt)


@pytest.mark.parametrize(
    "request_id",
    [f"chatcmpl-{RID}", f"cmpl-{RID}-0-1a2b", f"0_chatcmpl-{RID}", f"resp_{RID}_0", RID],
)
def test_a_fresh_assertion_proves_the_principal_for_its_request(request_id: str) -> None:
    clock = Clock()
    assert verify(signed(clock), clock, request_id=request_id) == Verified(ACME, RID, None)


def test_a_principal_without_subject_stays_without(  # a missing claim is not an empty one
) -> None:
    clock = Clock()
    assertion = AssertionSigner(KEY, "support-eu", 60.0, clock).sign(
        Principal("acme", "chat"), request_id=RID, salt=SALT
    )
    assert verify(assertion, clock) == Verified(Principal("acme", "chat"), RID, None)


def test_an_assertion_ends() -> None:
    clock = Clock()
    assertion = signed(clock)
    clock.now += 60
    assert isinstance(verify(assertion, clock), Verified)
    clock.now += 6
    assert verify(assertion, clock) is AssertionFailure.EXPIRED


@pytest.mark.parametrize("request_id", ["", "chatcmpl-other", RID[:-1], f"x{RID}", f"{RID}x"])
def test_an_assertion_is_no_use_for_another_request(request_id: str) -> None:
    clock = Clock()
    found = verify(signed(clock), clock, request_id=request_id)
    assert found is AssertionFailure.WRONG_REQUEST


@pytest.mark.parametrize("salt", ["", "t" * 43, "\ud800"])
def test_an_assertion_is_no_use_with_another_salt(salt: str) -> None:
    clock = Clock()
    assert verify(signed(clock), clock, salt=salt) is AssertionFailure.WRONG_SALT


def test_an_engine_that_got_no_salt_learns_whose_it_must_use() -> None:
    """Cohere's endpoint takes an assertion and no salt."""
    clock = Clock()
    assert verify(signed(clock), clock, salt=None) == Verified(ACME, RID, None)


def test_a_sharing_group_is_part_of_what_is_signed() -> None:
    clock = Clock()
    signer = AssertionSigner(KEY, "support-eu", 60.0, clock)
    shared = signer.sign(ACME, request_id=RID, salt=SALT, group="manuals")
    assert verify(shared, clock) == Verified(ACME, RID, "manuals")


def test_an_assertion_is_no_use_in_another_deployment() -> None:
    clock = Clock()
    found = verify(signed(clock), clock, deployment="support-us")
    assert found is AssertionFailure.WRONG_DEPLOYMENT


def test_no_assertion_is_missing_and_anything_else_is_forged() -> None:
    clock = Clock()
    assert verify(None, clock) is AssertionFailure.MISSING
    for hostile in ["", "a.b.c", 7, b"x", {}, [], True, "x" * 10_000, "\ud800.\ud800.\ud800"]:
        assert verify(hostile, clock) is AssertionFailure.FORGED, repr(hostile)[:40]


def test_another_key_forges() -> None:
    clock = Clock()
    assert verify(signed(clock), clock, key=bytes(32)) is AssertionFailure.FORGED


def test_the_algorithm_is_not_the_tokens_to_choose() -> None:
    clock = Clock()
    claims = jwt.decode(signed(clock), options={"verify_signature": False})
    unsigned = jwt.encode(claims, key="", algorithm="none")
    stronger = jwt.encode(claims, KEY + bytes(32), algorithm="HS512")
    assert verify(unsigned, clock) is AssertionFailure.FORGED
    assert verify(stronger, clock) is AssertionFailure.FORGED


@pytest.mark.parametrize("claim", ["ten", "wl", "sub", "rid", "salt", "exp", "aud", "iss", "jti"])
def test_a_changed_claim_breaks_the_signature(claim: str) -> None:
    clock = Clock()
    header, payload, signature = signed(clock).split(".")
    claims = json.loads(urlsafe_b64decode(payload + "=="))
    claims[claim] = "globex"
    changed = urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    assert verify(f"{header}.{changed}.{signature}", clock) is AssertionFailure.FORGED


@pytest.mark.parametrize(
    ("claim", "value"),
    [("ten", 7), ("ten", None), ("wl", ["x"]), ("sub", {}), ("rid", 0), ("salt", 1), ("exp", "x")],
)
def test_claims_of_a_wrong_type_prove_nothing(claim: str, value: object) -> None:
    clock = Clock()
    claims = jwt.decode(signed(clock), options={"verify_signature": False})
    odd = jwt.encode({**claims, claim: value}, KEY, "HS256")
    assert verify(odd, clock) is AssertionFailure.FORGED


def test_a_missing_claim_proves_nothing() -> None:
    clock = Clock()
    claims = jwt.decode(signed(clock), options={"verify_signature": False})
    for name in claims.keys() - {"sub"}:
        short = jwt.encode({k: v for k, v in claims.items() if k != name}, KEY, "HS256")
        assert verify(short, clock) is AssertionFailure.FORGED, name


def test_an_assertion_tells_neither_salt_nor_key() -> None:
    payload = signed(Clock()).split(".")[1]
    assert SALT not in urlsafe_b64decode(payload + "==").decode()


@given(st.text() | st.binary() | st.integers() | st.none() | st.dictionaries(st.text(), st.text()))
def test_verifying_never_raises(presented: object) -> None:
    assert isinstance(verify(presented, Clock()), AssertionFailure)
