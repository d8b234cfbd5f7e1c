"""Who presents a credential: a revoked key proves nobody, known callers outlive an outage."""

import threading
from collections.abc import Iterator

import pytest

from key_deployment import Clock
from kvcustody.errors import UnavailableError
from kvcustody.identity.authenticator import REMEMBERED_SECONDS, Authenticator
from kvcustody.identity.caller import AuthenticationFailure, Caller, Rejection
from kvcustody.identity.jwks import KeySet
from kvcustody.identity.jwt_bearer import JwtBearer
from kvcustody.identity.key_usage import KeyUsage
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import ApiKey, KeyStore, MintedKey
from kvcustody.registry import Registry, open_registry
from token_issuer import NOW, RULES, IssuerKey, key_set

ACME = Principal("acme", "chat")
ISSUER_KEY = IssuerKey("EdDSA")
INVALID = AuthenticationFailure.INVALID_KEY
GRACE_SECONDS = 300


class FailingStore(KeyStore):
    """Keys in a real registry, that counts look-ups and fails on demand."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        super().__init__(registry, clock)
        self.away = False
        self.looked_up = 0

    def authenticate(self, presented: str) -> ApiKey | Rejection:
        self.looked_up += 1
        if self.away:
            raise UnavailableError("away")
        return super().authenticate(presented)


class Setting:
    """An authenticator at a time that tests turn."""

    def __init__(self, registry: Registry) -> None:
        self.clock = Clock(1000.0)
        self.wall_clock = Clock(NOW)
        self.keys = FailingStore(registry, self.wall_clock)
        self.usage = KeyUsage(self.keys, self.wall_clock)
        self.provider_away = False
        bearer = JwtBearer(RULES, KeySet(self._fetch, self.clock), self.wall_clock)
        self.authenticator = self.build(bearer)

    def build(self, bearer: JwtBearer | None) -> Authenticator:
        return Authenticator(
            self.keys,
            self.usage,
            bearer,
            {"acme", "globex"},
            clock=self.clock,
            wall_clock=self.wall_clock,
        )

    def _fetch(self) -> bytes:
        if self.provider_away:
            raise UnavailableError("away")
        return key_set(ISSUER_KEY)

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.wall_clock.now += seconds

    def mint(self, principal: Principal = ACME, expires: float | None = None) -> MintedKey:
        return self.keys.mint(principal, expires=expires)

    def ask(self, presented: str) -> Caller | Rejection:
        """As the gateway does."""
        remembered = self.authenticator.remembered(presented)
        return remembered or self.authenticator.authenticate(presented)


@pytest.fixture
def setting(registry_url: str) -> Iterator[Setting]:
    registry = open_registry(registry_url)
    yield Setting(registry)
    registry.close()


def test_a_stream_of_requests_with_one_key_costs_few_look_ups(setting: Setting) -> None:
    minted = setting.mint()
    caller = Caller(ACME, minted.record.id)
    assert setting.authenticator.remembered(minted.key) is None
    assert [setting.ask(minted.key) for _ in range(100)] == [caller] * 100
    assert setting.keys.looked_up == 1
    setting.wait(REMEMBERED_SECONDS)
    assert setting.ask(minted.key) == caller
    assert setting.keys.looked_up == 2


def test_rights_of_a_key_are_the_callers(setting: Setting) -> None:
    minted = setting.keys.mint(ACME, expires=None, admin=True, group="manuals")
    caller = Caller(ACME, minted.record.id, admin=True, group="manuals")
    assert [setting.ask(minted.key), setting.ask(minted.key)] == [caller, caller]


def test_a_revoked_key_proves_nobody_a_moment_later_and_another_still_does(
    setting: Setting,
) -> None:
    revoked, kept = setting.mint(), setting.mint()
    assert isinstance(setting.ask(revoked.key), Caller)
    assert isinstance(setting.ask(kept.key), Caller)
    setting.keys.revoke(revoked.record.id)
    setting.wait(REMEMBERED_SECONDS)
    assert setting.ask(revoked.key) == Rejection(
        AuthenticationFailure.REVOKED_KEY, revoked.record.id
    )
    assert isinstance(setting.ask(kept.key), Caller)


def test_a_key_that_is_remembered_ends_when_it_expires(setting: Setting) -> None:
    minted = setting.mint(expires=NOW + 0.1)
    assert isinstance(setting.ask(minted.key), Caller)
    setting.wait(0.1)
    assert setting.authenticator.remembered(minted.key) is None
    assert setting.ask(minted.key) == Rejection(AuthenticationFailure.EXPIRED_KEY, minted.record.id)


def test_no_text_like_a_remembered_key_passes_for_it(setting: Setting) -> None:
    minted = setting.mint()
    assert isinstance(setting.ask(minted.key), Caller)
    for text in ("", minted.key[:-1], minted.key + "A", " " + minted.key, minted.key + "\n"):
        assert setting.ask(text) == Rejection(INVALID)
    for text in ("x" * 100_000, "\ud800", "a.b", "a.b.c.d", "Basic YTpi"):
        assert setting.ask(text) == Rejection(INVALID)
    assert isinstance(setting.ask(minted.key), Caller)


def test_while_the_registry_is_away_known_callers_stay_and_nobody_else_comes(
    setting: Setting,
) -> None:
    known, unknown = setting.mint(), setting.mint()
    assert isinstance(setting.ask(known.key), Caller)
    setting.keys.away = True
    setting.wait(GRACE_SECONDS - 1)
    assert isinstance(setting.ask(known.key), Caller)
    with pytest.raises(UnavailableError):
        setting.ask(unknown.key)
    setting.wait(1)
    with pytest.raises(UnavailableError):
        setting.ask(known.key)
    setting.keys.away = False
    setting.wait(1)
    assert isinstance(setting.ask(known.key), Caller)
    assert isinstance(setting.ask(unknown.key), Caller)


def test_an_outage_makes_no_revoked_or_expired_key_good(setting: Setting) -> None:
    revoked, expiring, kept = setting.mint(), setting.mint(expires=NOW + 10), setting.mint()
    for minted in (revoked, expiring, kept):
        assert isinstance(setting.ask(minted.key), Caller)
    setting.keys.revoke(revoked.record.id)
    setting.wait(REMEMBERED_SECONDS)
    assert isinstance(setting.ask(revoked.key), Rejection)
    setting.keys.away = True
    setting.wait(10)
    assert setting.ask(revoked.key) == Rejection(
        AuthenticationFailure.REVOKED_KEY, revoked.record.id
    )
    assert setting.ask(expiring.key) == Rejection(
        AuthenticationFailure.EXPIRED_KEY, expiring.record.id
    )
    assert isinstance(setting.ask(kept.key), Caller)
    # Also while the registry is left alone, and nothing is asked.
    assert isinstance(setting.ask(revoked.key), Rejection)
    assert isinstance(setting.ask(expiring.key), Rejection)


def test_a_registry_that_is_away_costs_known_callers_one_attempt_a_second(
    setting: Setting,
) -> None:
    minted = setting.mint()
    assert isinstance(setting.ask(minted.key), Caller)
    setting.keys.away = True
    setting.wait(REMEMBERED_SECONDS)
    for _ in range(20):
        assert isinstance(setting.ask(minted.key), Caller)
    assert setting.keys.looked_up == 2
    setting.wait(1)
    assert isinstance(setting.ask(minted.key), Caller)
    assert setting.keys.looked_up == 3


def test_a_look_up_that_took_longer_brings_no_revoked_key_back(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    minted = setting.mint()
    read, go_on = threading.Event(), threading.Event()
    look_up = KeyStore.authenticate

    def slowly(keys: KeyStore, presented: str) -> ApiKey | Rejection:
        found = look_up(keys, presented)
        read.set()
        assert go_on.wait(30)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(KeyStore, "authenticate", slowly)
        slow = threading.Thread(target=setting.authenticator.authenticate, args=(minted.key,))
        slow.start()
        assert read.wait(30)
    setting.keys.revoke(minted.record.id)
    setting.wait(0.1)
    assert isinstance(setting.ask(minted.key), Rejection)
    go_on.set()
    slow.join(30)
    assert setting.authenticator.remembered(minted.key) is None
    setting.keys.away = True
    assert isinstance(setting.ask(minted.key), Rejection)


def test_a_tenant_that_is_not_served_here_is_told_apart(setting: Setting) -> None:
    minted = setting.mint(Principal("initech", "chat"))
    expected = Rejection(AuthenticationFailure.UNKNOWN_TENANT, minted.record.id)
    assert [setting.ask(minted.key), setting.ask(minted.key)] == [expected, expected]
    token = ISSUER_KEY.sign({"tenant": "initech"})
    assert setting.ask(token) == Rejection(AuthenticationFailure.UNKNOWN_TENANT, "jwt:t-1")
    assert isinstance(setting.ask(setting.mint().key), Caller)


def test_a_good_key_s_use_is_noted_and_no_other(setting: Setting) -> None:
    used, unused = setting.mint(), setting.mint()
    setting.ask(used.key)
    setting.ask(f"kvc_{unused.record.id}_{'A' * 43}")
    setting.usage.write_due()
    noted = {key.id: key.last_used for key in setting.keys.list()}
    assert noted == {used.record.id: NOW, unused.record.id: None}


def test_memory_is_bounded_and_holds_no_key(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcustody.identity.authenticator._MOST_REMEMBERED", 3)
    minted = [setting.mint() for _ in range(5)]
    for key in minted:
        assert isinstance(setting.ask(key.key), Caller)
    assert len(setting.authenticator._proofs) == 3
    assert setting.authenticator.remembered(minted[0].key) is None
    assert setting.authenticator.remembered(minted[4].key) is not None
    for number in range(10):
        setting.ask(f"kvc_{minted[0].record.id}_{number:043}")
    assert setting.authenticator.remembered(minted[4].key) is not None
    held = repr(setting.authenticator._proofs)
    assert not any(key.key.split("_", 2)[2] in held for key in minted)


def test_a_bearer_token_is_taken_only_where_an_issuer_is_configured(setting: Setting) -> None:
    token = ISSUER_KEY.sign()
    caller = Caller(Principal("acme", "chat", "anna"), "jwt:t-1")
    assert [setting.ask(token), setting.ask(token)] == [caller, caller]
    assert setting.keys.looked_up == 0
    without = setting.build(None)
    assert without.authenticate(token) == Rejection(INVALID)
    assert setting.ask(token[:-1]) == Rejection(AuthenticationFailure.INVALID_TOKEN)


def test_a_token_is_remembered_no_longer_than_a_key_and_ends_when_it_expires(
    setting: Setting,
) -> None:
    token = ISSUER_KEY.sign()
    assert isinstance(setting.ask(token), Caller)
    setting.wait(REMEMBERED_SECONDS)
    assert setting.authenticator.remembered(token) is None
    setting.wait(60 + RULES.leeway)
    assert setting.ask(token) == Rejection(AuthenticationFailure.EXPIRED_TOKEN, "jwt:t-1")


def test_neither_outage_touches_the_other_kind_of_credential(setting: Setting) -> None:
    token, minted = ISSUER_KEY.sign(), setting.mint()
    setting.provider_away = True
    with pytest.raises(UnavailableError):
        setting.ask(token)
    assert isinstance(setting.ask(minted.key), Caller)
    setting.provider_away, setting.keys.away = False, True
    setting.wait(10)
    assert isinstance(setting.ask(token), Caller)
