"""Bearer tokens: the issuer's good ones name a caller; whatever else comes names nobody."""

import json
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from key_deployment import Clock
from kvcustody.errors import ConfigurationError
from kvcustody.identity.caller import AuthenticationFailure, Caller, Rejection
from kvcustody.identity.jwks import KeySet
from kvcustody.identity.jwt_bearer import ClaimNames, JwtBearer, JwtRules
from kvcustody.identity.principal import Principal
from token_issuer import (
    AUDIENCE,
    ISSUER,
    NOW,
    RULES,
    IssuerKey,
    claims_with,
    encode,
    key_set,
)

pytestmark = pytest.mark.unit

RSA, CURVE, EDWARDS = IssuerKey("RS256"), IssuerKey("ES256"), IssuerKey("EdDSA")
STRANGER = IssuerKey("RS256", RSA.kid)
INVALID = AuthenticationFailure.INVALID_TOKEN
ANNA = Caller(Principal("acme", "chat", "anna"), "jwt:t-1")


def bearer(rules: JwtRules = RULES, clock: Clock | None = None) -> JwtBearer:
    keys = KeySet(lambda: key_set(RSA, CURVE, EDWARDS), Clock(0.0))
    return JwtBearer(rules, keys, clock or Clock(NOW))


def reason_for(token: str, rules: JwtRules = RULES) -> AuthenticationFailure:
    """Why a token is refused, by a verifier that takes a good one."""
    verifier = bearer(rules)
    outcome = verifier.authenticate(token)
    assert isinstance(outcome, Rejection)
    assert verifier.authenticate(EDWARDS.sign()) == ANNA
    return outcome.reason


@pytest.mark.parametrize("key", [RSA, CURVE, EDWARDS], ids=lambda key: str(key.algorithm))
def test_a_token_of_the_issuer_names_its_caller(key: IssuerKey) -> None:
    assert bearer().authenticate(key.sign()) == ANNA
    assert bearer().authenticate(key.sign({"aud": ["other", AUDIENCE]})) == ANNA


def without_signature() -> str:
    return f"{encode(json.dumps({'alg': 'none'}))}.{encode(json.dumps(claims_with()))}."


def signed_with_the_public_key(algorithm: str) -> str:
    """As a verifier would take it that lets the token choose between keys and secrets."""
    header = {"alg": algorithm, "kid": RSA.kid}
    signed = f"{encode(json.dumps(header))}.{encode(json.dumps(claims_with()))}"
    maker: Any = jwt.get_algorithm_by_name("HS256")
    # PyJWT refuses such a secret, so it is signed below that check.
    return f"{signed}.{encode(maker.sign(signed.encode(), RSA.pem))}"


def with_part(part: int, change: Callable[[str], str]) -> str:
    parts = RSA.sign().split(".")
    parts[part] = change(parts[part])
    return ".".join(parts)


FORGERIES = {
    "no signature": without_signature(),
    "alg None": without_signature().replace(
        encode('{"alg": "none"}'), encode('{"alg": "None", "kid": "rs256"}')
    ),
    "good token without its signature": with_part(2, lambda _: ""),
    "public key as secret": signed_with_the_public_key("HS256"),
    "public key as secret, said to be RSA": signed_with_the_public_key("RS256"),
    "another's key under the issuer's id": STRANGER.sign(),
    "unknown key id": RSA.sign(kid="other"),
    "key of another algorithm": RSA.sign(kid=CURVE.kid),
    "key id that is no text": RSA.sign_text(
        json.dumps(claims_with()), '{"alg": "RS256", "kid": {"a": 1}}'
    ),
    "algorithm that is no text": RSA.sign_text(json.dumps(claims_with()), '{"alg": ["RS256"]}'),
    "algorithm that is not listed": jwt.encode(
        claims_with(), RSA.private, "PS256", {"kid": RSA.kid}
    ),
    "no algorithm": RSA.sign_text(json.dumps(claims_with()), '{"kid": "rs256"}'),
    "brings its own key": STRANGER.sign(jwk=STRANGER.entry),
    "says where its key is": STRANGER.sign(jku="https://evil.example", x5u="https://evil.example"),
    "critical extension": RSA.sign_text(
        json.dumps(claims_with()), '{"alg": "RS256", "kid": "rs256", "crit": ["x"], "x": 1}'
    ),
    "no critical extension": RSA.sign_text(
        json.dumps(claims_with()), '{"alg": "RS256", "kid": "rs256", "crit": []}'
    ),
    "unencoded payload": RSA.sign_text(
        json.dumps(claims_with()), '{"alg": "RS256", "kid": "rs256", "b64": false}'
    ),
    "compressed payload": RSA.sign_text(
        json.dumps(claims_with()), '{"alg": "RS256", "kid": "rs256", "zip": "DEF"}'
    ),
    "header with a name twice": RSA.sign_text(
        json.dumps(claims_with()), '{"alg": "none", "alg": "RS256", "kid": "rs256"}'
    ),
    "claims with a name twice": RSA.sign_text(
        json.dumps(claims_with())[:-1] + ', "tenant": "globex"}'
    ),
    "nested claims with a name twice": RSA.sign_text(
        json.dumps(claims_with())[:-1] + ', "custody": {"admin": false, "admin": true}}'
    ),
    "claims that are a list": RSA.sign_text("[]"),
    "claims that are no JSON": RSA.sign_text("{"),
    "claims with NaN": RSA.sign_text('{"exp": NaN}'),
    "claims that are nested too deeply": RSA.sign_text('{"a":' + "[" * 5000),
    "header that is a number": RSA.sign_text(json.dumps(claims_with()), "1"),
    "changed claims": with_part(1, lambda _: encode(json.dumps(claims_with({"tenant": "x"})))),
    "changed signature": with_part(2, lambda part: ("A" if part[0] != "A" else "B") + part[1:]),
    "truncated": RSA.sign()[:-1],
    "half": RSA.sign()[:200],
    "four parts": RSA.sign() + ".x",
    "encrypted form": RSA.sign() + ".x.y",
    "huge": RSA.sign({"pad": "x" * 10_000}),
    "padded": RSA.sign() + "=",
    "line break": RSA.sign() + "\n",
    "empty": "",
    "dots": "..",
}


@pytest.mark.parametrize("token", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_token_names_nobody(token: str) -> None:
    assert reason_for(token) is INVALID
    # Nothing that a stranger wrote gets into the audit trail.
    assert bearer().authenticate(token) == Rejection(INVALID, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"iss": "https://evil.example"}, AuthenticationFailure.WRONG_ISSUER),
        ({"iss": ISSUER + "/"}, AuthenticationFailure.WRONG_ISSUER),
        ({"iss": [ISSUER]}, AuthenticationFailure.WRONG_ISSUER),
        ({"iss": None}, INVALID),
        ({"aud": "other"}, AuthenticationFailure.WRONG_AUDIENCE),
        ({"aud": []}, INVALID),
        ({"aud": {AUDIENCE: 1}}, AuthenticationFailure.WRONG_AUDIENCE),
        ({"aud": None}, INVALID),
        ({"exp": NOW - 30}, AuthenticationFailure.EXPIRED_TOKEN),
        ({"exp": None}, INVALID),
        ({"exp": "9999999999"}, INVALID),
        ({"exp": True}, INVALID),
        ({"exp": -1}, INVALID),
        ({"exp": 10**400}, INVALID),
        ({"exp": [NOW + 60]}, INVALID),
        ({"nbf": NOW + 31}, AuthenticationFailure.EXPIRED_TOKEN),
        ({"nbf": "soon"}, INVALID),
        ({"iat": NOW + 31}, AuthenticationFailure.EXPIRED_TOKEN),
        ({"iat": {}}, INVALID),
    ],
)
def test_a_token_for_another_place_or_time_names_nobody(
    changes: dict[str, Any], reason: AuthenticationFailure
) -> None:
    assert reason_for(EDWARDS.sign_text(json.dumps(_present(changes)))) is reason


def _present(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in claims_with(changes).items() if value is not None}


@pytest.mark.parametrize("changes", [{"exp": NOW - 29}, {"nbf": NOW + 30}, {"iat": NOW + 30}])
def test_clocks_may_differ_by_the_leeway(changes: dict[str, Any]) -> None:
    assert bearer().authenticate(EDWARDS.sign(changes)) == ANNA


def test_a_token_ends_when_it_expires() -> None:
    clock = Clock(NOW)
    verifier = bearer(clock=clock)
    token = EDWARDS.sign()
    assert verifier.authenticate(token) == ANNA
    clock.now = NOW + 60 + 30
    ended = Rejection(AuthenticationFailure.EXPIRED_TOKEN, "jwt:t-1")
    assert verifier.authenticate(token) == ended


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": None},
        {"tenant": ""},
        {"tenant": 7},
        {"tenant": ["acme"]},
        {"tenant": {"name": "acme"}},
        {"tenant": "a/b"},
        {"tenant": "acme\n"},
        {"tenant": "ａcme"},  # noqa: RUF001 - a look-alike
        {"azp": None},
        {"azp": "*"},
        {"azp": True},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\nb"},
        {"sub": "x" * 257},
        {"sub": "e\u0301"},
        {"custody": {"group": 1}},
        {"custody": {"group": "a b"}},
        {"custody": {"group": ["manuals"]}},
    ],
)
def test_claims_that_are_no_names_are_not_guessed_at(changes: dict[str, Any]) -> None:
    token = EDWARDS.sign_text(json.dumps(_present(changes)))
    assert reason_for(token) is AuthenticationFailure.UNMAPPED_CLAIMS


@pytest.mark.parametrize(
    ("claim", "admin"),
    [(True, True), (False, False), ("true", False), (1, False), ([True], False), ({}, False)],
)
def test_only_true_itself_makes_an_administrator(claim: object, admin: bool) -> None:
    outcome = bearer().authenticate(EDWARDS.sign({"custody": {"admin": claim}}))
    assert isinstance(outcome, Caller)
    assert outcome.admin is admin


def test_claims_that_are_not_configured_give_no_rights() -> None:
    rules = JwtRules(ISSUER, AUDIENCE, frozenset({"EdDSA"}), ClaimNames("tenant", "azp"))
    rights = {"custody": {"admin": True, "group": "manuals"}, "admin": True, "group": "manuals"}
    outcome = bearer(rules).authenticate(EDWARDS.sign(rights))
    assert outcome == Caller(Principal("acme", "chat"), "jwt:t-1")
    named = bearer().authenticate(EDWARDS.sign(rights))
    assert named == Caller(ANNA.principal, "jwt:t-1", admin=True, group="manuals")


def test_a_claim_is_found_by_its_whole_name_and_by_its_path() -> None:
    claims = ClaimNames("https://acme.example/tenant", "realm.app.name")
    rules = JwtRules(ISSUER, AUDIENCE, frozenset({"EdDSA"}), claims)
    changes = {"https://acme.example/tenant": "globex", "realm": {"app": {"name": "batch"}}}
    outcome = bearer(rules).authenticate(EDWARDS.sign(changes))
    assert outcome == Caller(Principal("globex", "batch"), "jwt:t-1")
    wrong: list[object] = ["app", ["app"], {"app": "name"}, {"app": {"name": {}}}]
    for realm in wrong:
        refused = bearer(rules).authenticate(EDWARDS.sign({**changes, "realm": realm}))
        assert refused == Rejection(AuthenticationFailure.UNMAPPED_CLAIMS, "jwt:t-1")


def test_a_map_of_tenants_is_the_only_way_from_claim_to_tenant() -> None:
    rules = JwtRules(
        ISSUER, AUDIENCE, frozenset({"EdDSA"}), ClaimNames("org", "azp"), {"7f3a": "globex"}
    )
    found = bearer(rules).authenticate(EDWARDS.sign({"org": "7f3a"}))
    assert found == Caller(Principal("globex", "chat"), "jwt:t-1")
    wrong: list[object] = ["globex", "7f3b", 7, ["7f3a"], {}]
    for value in wrong:
        refused = bearer(rules).authenticate(EDWARDS.sign({"org": value}))
        assert refused == Rejection(AuthenticationFailure.UNMAPPED_CLAIMS, "jwt:t-1")


@pytest.mark.parametrize("token_id", ["a b", "x" * 65, "", "é", "a\nb"])
def test_an_odd_id_of_a_token_is_left_out_of_the_audit(token_id: str) -> None:
    outcome = bearer().authenticate(EDWARDS.sign({"jti": token_id}))
    assert outcome == Caller(ANNA.principal, "jwt")


@pytest.mark.parametrize("algorithm", ["none", "HS256", "HS512", "RS1", ""])
def test_rules_that_would_believe_everybody_are_refused(algorithm: str) -> None:
    with pytest.raises(ConfigurationError, match="is not safe here; use ES256"):
        JwtRules(ISSUER, AUDIENCE, frozenset({"RS256", algorithm}), RULES.claims)


def test_rules_without_an_algorithm_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="use ES256"):
        JwtRules(ISSUER, AUDIENCE, frozenset(), RULES.claims)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
SHARED = bearer()


@given(st.text())
@example("a.b.c")
@example(f"{encode('{}')}.{encode('{}')}.")
def test_no_text_names_anybody_or_raises(text: str) -> None:
    assert isinstance(SHARED.authenticate(text), Rejection)


@given(st.dictionaries(st.sampled_from(["alg", "kid", "typ", "jwk", "crit", "b64"]), JSON))
def test_no_header_makes_an_unsigned_token_good(header: dict[str, Any]) -> None:
    token = f"{encode(json.dumps(header))}.{encode(json.dumps(claims_with()))}.AAAA"
    assert SHARED.authenticate(token) == Rejection(INVALID)


@given(st.dictionaries(st.sampled_from([*claims_with(), "nbf", "custody"]), JSON))
def test_whatever_the_issuer_signs_is_a_canonical_caller_or_a_rejection(
    changes: dict[str, Any],
) -> None:
    outcome = SHARED.authenticate(EDWARDS.sign_text(json.dumps(claims_with(changes))))
    if isinstance(outcome, Caller):
        admin = changes.get("custody")
        assert outcome.admin is (isinstance(admin, dict) and admin.get("admin") is True)
        assert outcome.principal.tenant == changes.get("tenant", "acme")


@given(st.integers(0, 2000), st.integers(1, 255))
def test_no_bit_of_a_token_can_be_changed(position: int, mask: int) -> None:
    token = EDWARDS.sign()
    position %= len(token)
    changed = token[:position] + chr(ord(token[position]) ^ mask) + token[position + 1 :]
    outcome = SHARED.authenticate(changed)
    # The last character of a part has bits that encode nothing.
    assert isinstance(outcome, Rejection) or changed.split(".")[:2] == token.split(".")[:2]
