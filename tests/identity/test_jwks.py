"""An identity provider's keys: taken over when they change, kept for a while when it is away."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from answering_server import closed_port
from certificates import certificate
from key_deployment import Clock
from kvcustody.errors import ConfigurationError, UnavailableError
from kvcustody.identity.caller import AuthenticationFailure, Caller, Rejection
from kvcustody.identity.jwks import KeySet, parse_key_set
from kvcustody.identity.jwks_source import LARGEST_BYTES, fetch_from
from kvcustody.identity.jwt_bearer import JwtBearer
from token_issuer import NOW, RULES, IssuerKey, KeySetServer, key_set

pytestmark = pytest.mark.unit

OLD, NEW = IssuerKey("ES256", "old"), IssuerKey("ES256", "new")
INVALID = Rejection(AuthenticationFailure.INVALID_TOKEN)


class Provider:
    """A double of a provider that counts how often it is asked."""

    def __init__(self) -> None:
        self.keys = [OLD]
        self.away = False
        self.asked = 0

    def __call__(self) -> bytes:
        self.asked += 1
        if self.away:
            raise UnavailableError("away")
        return key_set(*self.keys)


class Setting:
    """A verifier of tokens with a provider's keys, at a time that tests turn."""

    def __init__(self) -> None:
        self.provider = Provider()
        self.clock = Clock(1000.0)
        self.bearer = JwtBearer(RULES, KeySet(self.provider, self.clock), Clock(NOW))

    def accepts(self, key: IssuerKey) -> bool:
        outcome = self.bearer.authenticate(key.sign())
        assert isinstance(outcome, Caller) or outcome == INVALID
        return isinstance(outcome, Caller)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_keys_are_fetched_once_for_many_tokens(setting: Setting) -> None:
    assert all(setting.accepts(OLD) for _ in range(20))
    assert setting.provider.asked == 1
    setting.clock.now += 299
    assert setting.accepts(OLD)
    assert setting.provider.asked == 1
    setting.clock.now += 1
    assert setting.accepts(OLD)
    assert setting.provider.asked == 2


def test_a_new_key_is_taken_over_at_its_first_token_and_a_withdrawn_one_ends(
    setting: Setting,
) -> None:
    assert setting.accepts(OLD)
    setting.provider.keys = [NEW, OLD]
    setting.clock.now += 10
    assert setting.accepts(NEW)
    assert setting.accepts(OLD)
    setting.provider.keys = [NEW]
    setting.clock.now += 300
    assert not setting.accepts(OLD)
    assert setting.accepts(NEW)


def test_strangers_with_made_up_key_ids_are_no_burden_for_the_provider(setting: Setting) -> None:
    assert setting.accepts(OLD)
    for number in range(100):
        assert not setting.accepts(IssuerKey("EdDSA", f"kid-{number}"))
    assert setting.provider.asked == 1
    setting.clock.now += 10
    for number in range(100):
        assert not setting.accepts(IssuerKey("EdDSA", f"kid-{number}"))
    assert setting.provider.asked == 2


def test_while_the_provider_is_away_its_keys_stay_good_for_an_hour(setting: Setting) -> None:
    assert setting.accepts(OLD)
    setting.provider.away = True
    setting.clock.now += 3599
    assert setting.accepts(OLD)
    assert not setting.accepts(NEW)
    setting.clock.now += 1
    with pytest.raises(UnavailableError, match="keys can't be had"):
        setting.accepts(OLD)
    setting.provider.away = False
    setting.clock.now += 10
    assert setting.accepts(OLD)


def test_an_unreachable_provider_is_left_alone_between_attempts(setting: Setting) -> None:
    setting.provider.away = True
    for _ in range(50):
        with pytest.raises(UnavailableError):
            setting.accepts(OLD)
    assert setting.provider.asked == 1
    setting.clock.now += 10
    setting.provider.away = False
    assert setting.accepts(OLD)


def test_a_slow_provider_makes_nobody_wait_whose_key_is_known(setting: Setting) -> None:
    assert setting.accepts(OLD)
    asked, go_on = threading.Event(), threading.Event()

    def answer_slowly() -> bytes:
        asked.set()
        assert go_on.wait(30)
        return key_set(NEW)

    setting.bearer._keys._fetch = answer_slowly
    setting.clock.now += 300
    first = threading.Thread(target=setting.accepts, args=(OLD,))
    first.start()
    assert asked.wait(30)
    assert setting.accepts(OLD)  # beside the fetch, with the keys that there are
    go_on.set()
    first.join(30)
    assert setting.accepts(NEW)


def test_a_token_without_a_key_id_is_good_if_one_key_alone_fits(setting: Setting) -> None:
    nameless = OLD.sign(kid=None)
    assert isinstance(setting.bearer.authenticate(nameless), Caller)
    setting.provider.keys = [OLD, NEW]
    setting.clock.now += 300
    assert setting.bearer.authenticate(nameless) == INVALID
    assert setting.accepts(OLD)


def test_a_key_that_the_provider_keeps_for_one_algorithm_verifies_no_other() -> None:
    key = IssuerKey("RS256")
    entry = {**key.entry, "alg": "RS512"}
    content = json.dumps({"keys": [entry, OLD.entry]}).encode()
    bearer = JwtBearer(RULES, KeySet(lambda: content), Clock(NOW))
    assert bearer.authenticate(key.sign()) == INVALID
    assert isinstance(bearer.authenticate(OLD.sign()), Caller)


PRIVATE = ec.generate_private_key(ec.SECP256R1())
UNUSABLE: dict[str, Any] = {
    "for encryption": {**OLD.entry, "use": "enc"},
    "for signing alone": {**OLD.entry, "key_ops": ["sign"]},
    "key_ops that are no list": {**OLD.entry, "key_ops": "verify"},
    "a secret": {"kty": "oct", "k": "c2VjcmV0", "kid": "old"},
    "a private key": ECAlgorithm.to_jwk(PRIVATE, as_dict=True),
    "a small RSA key": {"kty": "RSA", "n": "u" * 171, "e": "AQAB", "kid": "old"},
    "a point that is on no curve": {**OLD.entry, "x": OLD.entry["y"]},
    "an unknown curve": {**OLD.entry, "crv": "P-192"},
    "an unknown kind": {**OLD.entry, "kty": "PQC"},
    "an id that is no text": {**OLD.entry, "kid": 7},
    "no object": "key",
    "nothing": {},
}


@pytest.mark.parametrize("entry", UNUSABLE.values(), ids=UNUSABLE)
def test_keys_that_nobody_should_verify_with_are_passed_over(entry: object) -> None:
    found = parse_key_set(json.dumps({"keys": [entry, NEW.entry]}).encode())
    assert [key.kid for key in found] == ["new"]
    with pytest.raises(UnavailableError, match="no public key"):
        parse_key_set(json.dumps({"keys": [entry]}).encode())


def test_a_provider_that_withdraws_all_its_keys_is_believed() -> None:
    clock, published = Clock(1000.0), [key_set(OLD)]
    bearer = JwtBearer(RULES, KeySet(lambda: published[0], clock), Clock(NOW))
    assert isinstance(bearer.authenticate(OLD.sign()), Caller)
    published[0] = key_set()
    clock.now += 301
    assert bearer.authenticate(OLD.sign()) == INVALID
    published[0] = key_set(OLD)
    clock.now += 10
    assert isinstance(bearer.authenticate(OLD.sign()), Caller)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": NaN}',
        b"[" * 100_000,
        json.dumps({"keys": [OLD.entry] * 101}).encode(),
    ],
)
def test_what_is_no_key_set_is_refused(content: bytes) -> None:
    with pytest.raises(UnavailableError):
        parse_key_set(content)
    assert len(parse_key_set(json.dumps({"keys": [OLD.entry] * 100}).encode())) == 100


def test_a_key_set_is_read_from_a_file_and_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set(OLD))
    clock = Clock(1000.0)
    bearer = JwtBearer(RULES, KeySet(fetch_from(str(file)), clock), Clock(NOW))
    assert isinstance(bearer.authenticate(OLD.sign()), Caller)
    file.write_bytes(key_set(NEW))
    clock.now += 10
    assert isinstance(bearer.authenticate(NEW.sign()), Caller)
    assert bearer.authenticate(OLD.sign()) == INVALID


def test_a_file_that_is_none_or_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(b" " * LARGEST_BYTES)
    assert len(fetch_from(str(file))()) == LARGEST_BYTES
    file.write_bytes(b" " * (LARGEST_BYTES + 1))
    for place in (file, tmp_path / "absent", tmp_path, Path("/dev/zero")):
        with pytest.raises(UnavailableError):
            fetch_from(str(place))()


@pytest.mark.parametrize(
    "place",
    [
        "http://idp.example/jwks",
        "http://127.0.0.1.evil.example/jwks",
        "http://localhost@evil.example/jwks",
        "ftp://idp.example/jwks",
        "file:///etc/passwd",
        "https://",
        "https://user:password@idp.example/jwks",
        "https://idp.example:port/jwks",
        "https://idp.example/\njwks",
        "https://[::1/jwks",
    ],
)
def test_a_place_whose_keys_anybody_could_choose_is_refused(place: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        fetch_from(place)
    assert "password@" not in str(refused.value)
    assert callable(fetch_from("https://idp.example/jwks"))


def test_a_key_set_is_fetched_from_a_server_again_when_it_changes() -> None:
    clock = Clock(1000.0)
    with KeySetServer(key_set(OLD)) as server:
        bearer = JwtBearer(RULES, KeySet(fetch_from(server.url), clock), Clock(NOW))
        assert isinstance(bearer.authenticate(OLD.sign()), Caller)
        server.content = key_set(NEW)
        clock.now += 10
        assert isinstance(bearer.authenticate(NEW.sign()), Caller)
        assert server.fetches == 2
    clock.now += 3000
    assert isinstance(bearer.authenticate(NEW.sign()), Caller)  # the server is gone
    clock.now += 3600
    with pytest.raises(UnavailableError):
        bearer.authenticate(NEW.sign())


def test_a_private_authoritys_server_is_believed_where_it_is_named_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = certificate(tmp_path / "ours.pem")
    with KeySetServer(key_set(OLD), ours) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(ours))
        assert fetch_from(server.url)() == key_set(OLD)
        for file in (certificate(tmp_path / "other.pem"), tmp_path / "none.pem"):
            monkeypatch.setenv("SSL_CERT_FILE", str(file))
            with pytest.raises(UnavailableError, match="can't be reached"):
                fetch_from(server.url)()
        assert server.fetches == 1


def fails(change: Callable[[KeySetServer], None]) -> str:
    """What a fetch says of a server that answered well before a change of it."""
    with KeySetServer(key_set(OLD)) as server:
        fetch = fetch_from(server.url)
        assert fetch() == key_set(OLD)
        change(server)
        with pytest.raises(UnavailableError) as failure:
            fetch()
    return str(failure.value)


def test_a_redirection_is_not_followed() -> None:
    with KeySetServer(key_set(NEW)) as other:

        def redirect(server: KeySetServer) -> None:
            server.status, server.location = 302, other.url

        assert fails(redirect) == "127.0.0.1: answered 302"
        assert other.fetches == 0


def test_a_server_that_fails_gives_no_keys() -> None:
    def fail(server: KeySetServer) -> None:
        server.status = 500

    assert fails(fail) == "127.0.0.1: answered 500"


def test_an_answer_without_end_is_cut_off() -> None:
    def grow(server: KeySetServer) -> None:
        server.content = b" " * (LARGEST_BYTES + 1)

    assert fails(grow) == "127.0.0.1: larger than 256 KiB"


def test_an_answer_that_ends_too_early_is_no_key_set() -> None:
    def announce_more(server: KeySetServer) -> None:
        server.announced = len(server.content) + 1

    assert "127.0.0.1: " in fails(announce_more)


def test_an_answer_that_drips_is_given_up() -> None:
    class Ticking(Clock):
        def __call__(self) -> float:
            self.now += 6
            return self.now

    with KeySetServer(key_set(OLD)) as server:
        assert fetch_from(server.url, Clock(0.0))() == key_set(OLD)
        with pytest.raises(UnavailableError, match="no complete answer in time"):
            fetch_from(server.url, Ticking(0.0))()


def test_a_server_that_is_down_or_speaks_something_else_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="can't be reached"):
        fetch_from(closed_port())()
    with KeySetServer(key_set(OLD)) as server, pytest.raises(UnavailableError):
        fetch_from(server.url.replace("http:", "https:"))()


def test_a_proxy_of_the_environment_does_not_choose_the_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with KeySetServer(key_set(NEW)) as proxy, KeySetServer(key_set(OLD)) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "")
        assert fetch_from(server.url)() == key_set(OLD)
        assert proxy.fetches == 0
