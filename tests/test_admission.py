"""Admission, wired as in an engine: what each request may do, and that the audit says why not."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcustody.admission import Grant, Refusal, RefusalReason, Salts
from kvcustody.audit import AuditWriter, read_events
from kvcustody.config import load_settings
from kvcustody.deployment import init_deployment
from kvcustody.errors import UnavailableError
from kvcustody.identity.assertion import AssertionFailure, AssertionSigner
from kvcustody.identity.principal import Principal
from kvcustody.identity.salt_ticket import SaltTickets
from kvcustody.namespace import AdapterFailure
from kvcustody.policy import ModelFacts, SharingRefusal
from kvcustody.sealing import Keyring, ServiceKey
from kvcustody.wiring import EngineCustody, build_engine, open_keys
from tier_doubles import eventually

pytestmark = pytest.mark.unit

RID = "ab" * 16
ACME = Principal("acme", "chat")


class Site:
    """A deployment of `kvcustody init`, with one more tenant that no rule allows anything.

    acme may share in the group `manuals`; globex is a member, too, but the policy denies it.
    """

    def __init__(self, directory: Path, scope: str = "tenant") -> None:
        config = directory / "custody.yaml"
        init_deployment(config)
        text = config.read_text(encoding="utf-8")
        text = text.replace("tenants:\n", "tenants:\n  initech: {scope: tenant}\n")
        text = text.replace("acme: {scope: tenant}", f"acme: {{scope: {scope}}}")
        config.write_text(f"{text}\nsharing: [{{group: manuals, tenants: [acme, globex]}}]\n")
        with (directory / "policies" / "policy.csv").open("a", encoding="utf-8") as policy:
            policy.write("\np, globex, local, manuals, share, deny\n")
        self.settings = load_settings(config)
        keys = open_keys(self.settings)
        self.signer = AssertionSigner(keys.keyring.service_key(ServiceKey.ASSERTION), "local", 60.0)
        self.salt = Salts(
            self.settings.tenants, "local", keys.keyring.service_key(ServiceKey.CACHE_SALT)
        )
        self.tickets = SaltTickets(keys.keyring.service_key(ServiceKey.ASSERTION), 60.0)
        keys.close()
        self.engine: EngineCustody = self.start()

    def start(self, layout: str = "00" * 32, revision: str = "r1") -> EngineCustody:
        model = ModelFacts("demo", revision)
        return build_engine(self.settings, model=model, layout=layout, block_bytes=4096)

    def admit(
        self,
        who: Principal,
        *,
        adapter: str | AdapterFailure | None = None,
        engine: EngineCustody | None = None,
        adapter_name: str | None = None,
        group: str | None = None,
        salted: bool = True,
    ) -> Grant | Refusal:
        salt = self.salt(who, group) if who.tenant in self.settings.tenants else "salt"
        assertion = self.signer.sign(who, request_id=RID, salt=salt, group=group)
        return (engine or self.engine).admission.admit(
            {"kvcustody": assertion},
            engine_request_id=f"chatcmpl-{RID}-0011",
            cache_salt=salt if salted else None,
            adapter=adapter,
            adapter_name=adapter_name,
        )

    def admit_by_salt(
        self, cache_salt: str, adapter: AdapterFailure | None = None
    ) -> Grant | Refusal:
        return self.engine.admission.admit(
            None, engine_request_id=f"embd-{RID}-0", cache_salt=cache_salt, adapter=adapter
        )

    def events(self, name: str) -> list[dict[str, Any]]:
        self.engine.close()
        found = read_events(self.settings.audit.path)
        return [event for event in found if event["event"] == name]


# A busy machine is no finding.
PATIENCE = 30.0


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("kvcustody.admission.admission._KEYS_PATIENCE_SECONDS", PATIENCE)
    monkeypatch.setattr("kvcustody.policy.in_force._POLL_SECONDS", 0.02)
    site = Site(tmp_path)
    yield site
    site.engine.close()


def refused(outcome: Grant | Refusal) -> object:
    assert isinstance(outcome, Refusal), outcome
    return outcome.reason


def granted(outcome: Grant | Refusal) -> Grant:
    assert isinstance(outcome, Grant), outcome
    return outcome


def test_an_allowed_tenant_is_admitted_to_every_tier_and_the_audit_says_by_which_rule(
    site: Site,
) -> None:
    grant = granted(site.admit(ACME))
    assert grant.principal == ACME
    assert all(grant.may_store(tier) and grant.may_load(tier) for tier in ("host", "disk"))
    assert not grant.may_load("another")
    (admitted,) = site.events("request.admitted")
    assert admitted["request_id"] == RID
    assert admitted["tiers"]["disk"] == {"store": "allow", "load": "allow"}
    assert admitted["rules"]
    assert admitted["policy_version"]


def test_a_tenant_keeps_its_namespace_over_a_restart_and_no_other_has_it(site: Site) -> None:
    first = granted(site.admit(ACME)).keys
    name_before = first.name(b"b")
    site.engine.close()
    assert first.name(b"b") is None, "a closed engine's keys are wiped"
    site.engine = site.start()
    other = granted(site.admit(Principal("globex", "chat"))).keys
    again = granted(site.admit(ACME)).keys
    assert again.identifier == first.identifier != other.identifier
    assert again.name(b"b") == name_before not in {None, other.name(b"b")}


@pytest.mark.parametrize(("layout", "revision"), [("11" * 32, "r1"), ("00" * 32, "r2")])
def test_another_layout_or_model_revision_is_another_namespace(
    site: Site, layout: str, revision: str
) -> None:
    first = granted(site.admit(ACME)).keys
    other_engine = site.start(layout, revision)
    other = granted(site.admit(ACME, engine=other_engine)).keys
    assert other.identifier != first.identifier
    assert other.name(b"b") != first.name(b"b")
    assert other.current is not None
    assert first.current is not None
    assert other.current.key_id != first.current.key_id
    other_engine.close()


def test_a_denied_tenant_is_refused_but_may_read_its_own_gpu_cache(site: Site) -> None:
    outcome = site.admit(Principal("initech", "chat"))
    assert outcome == Refusal(RefusalReason.POLICY_DENIED, site.salt(Principal("initech", "chat")))
    (event,) = site.events("request.ungoverned")
    assert (event["tenant"], event["reason"]) == ("initech", "policy-denied")


def test_an_unidentified_request_may_not_even_read_the_gpu_cache(site: Site) -> None:
    for parameters in (None, {}, {"kvcustody": "x"}, "text", 7, ["kvcustody"]):
        outcome = site.engine.admission.admit(
            parameters, engine_request_id=RID, cache_salt=site.salt(ACME), adapter=None
        )
        assert isinstance(outcome, Refusal)
        assert not outcome.isolated
        assert outcome.reason in {AssertionFailure.MISSING, AssertionFailure.FORGED}
    granted(site.admit(ACME))


def test_a_request_without_salt_gets_the_one_of_its_scope(site: Site) -> None:
    assert granted(site.admit(ACME, salted=False)).cache_salt == site.salt(ACME)
    initech = Principal("initech", "chat")
    assert site.admit(initech, salted=False).cache_salt == site.salt(initech)


def test_what_is_not_identified_gets_a_salt_that_nobody_else_has(site: Site) -> None:
    claimed = site.salt(ACME)
    outcomes = [site.admit_by_salt(claimed) for _ in range(3)]
    assert len({claimed, *(outcome.cache_salt for outcome in outcomes)}) == 4
    assert all(len(outcome.cache_salt) == len(claimed) for outcome in outcomes)


def test_a_salt_ticket_lets_a_request_read_its_gpu_cache_and_no_more(site: Site) -> None:
    ticket = site.tickets.issue(site.salt(ACME), RID)
    assert site.admit_by_salt(ticket) == Refusal(RefusalReason.PREFIX_CACHE_ONLY, site.salt(ACME))
    foreign = site.admit_by_salt(site.tickets.issue(site.salt(ACME), "cd" * 16))
    assert foreign == Refusal(AssertionFailure.MISSING)
    event, other = site.events("request.ungoverned")
    assert (event["reason"], event["request_id"]) == ("prefix-cache-only", RID)
    assert other["reason"] == "missing-assertion"


def test_a_salt_ticket_opens_no_cache_of_an_adapter_of_unknown_content(site: Site) -> None:
    ticket = site.tickets.issue(site.salt(ACME), RID)
    outcome = site.admit_by_salt(ticket, AdapterFailure.IN_PLACE)
    assert outcome == Refusal(AdapterFailure.IN_PLACE)


def test_a_sharing_group_has_a_namespace_of_its_own_for_those_whom_the_policy_lets_in(
    site: Site,
) -> None:
    own, shared = granted(site.admit(ACME)), granted(site.admit(ACME, group="manuals"))
    assert shared.cache_salt == site.salt(Principal("globex", "chat"), "manuals")
    assert shared.cache_salt != own.cache_salt
    assert shared.keys.identifier != own.keys.identifier
    denied = site.admit(Principal("globex", "chat"), group="manuals")
    assert denied == Refusal(SharingRefusal.POLICY_DENIED)
    unknown = site.admit(ACME, group="unheard-of")
    assert unknown == Refusal(SharingRefusal.UNKNOWN_GROUP)
    assert [event["group"] for event in site.events("request.admitted")] == [None, "manuals"]


def test_the_salt_of_the_own_scope_is_none_for_the_group(site: Site) -> None:
    assertion = site.signer.sign(ACME, request_id=RID, salt=site.salt(ACME), group="manuals")
    outcome = site.engine.admission.admit(
        {"kvcustody": assertion}, engine_request_id=RID, cache_salt=site.salt(ACME), adapter=None
    )
    assert outcome == Refusal(RefusalReason.WRONG_SALT)


def test_whose_tenant_keeps_persons_apart_and_who_names_none_gets_no_custody(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, scope="subject")
    anna, nobody = Principal("acme", "chat", "anna"), ACME
    assert granted(site.admit(anna)).cache_salt == site.salt(anna)
    assert site.admit(nobody) == Refusal(RefusalReason.NO_SUBJECT)
    assert site.salt(nobody) != site.salt(nobody)
    assert granted(site.admit(nobody, group="manuals")).cache_salt == site.salt(nobody, "manuals")
    (event,) = site.events("request.ungoverned")
    assert (event["tenant"], event["reason"]) == ("acme", "no-subject")


def test_an_unknown_tenant_is_refused(site: Site) -> None:
    outcome = site.admit(Principal("umbrella", "chat"))
    assert outcome == Refusal(RefusalReason.UNKNOWN_TENANT)


def test_each_content_of_an_adapter_has_a_namespace_and_the_audit_says_which(site: Site) -> None:
    plain, one, two = (
        granted(site.admit(ACME, adapter=adapter)).keys for adapter in (None, "a1" * 32, "b2" * 32)
    )
    assert len({plain.identifier, one.identifier, two.identifier}) == 3
    assert len({keys.name(b"b") for keys in (plain, one, two)}) == 3
    again = granted(site.admit(ACME, adapter="a1" * 32)).keys
    assert again.identifier == one.identifier
    admitted = site.events("request.admitted")
    assert [event["adapter"] for event in admitted] == [None, "a1" * 32, "b2" * 32, "a1" * 32]


@pytest.mark.parametrize("failure", AdapterFailure)
def test_an_adapter_of_unknown_content_may_not_even_read_the_gpu_cache(
    site: Site, failure: AdapterFailure
) -> None:
    assert site.admit(ACME, adapter=failure) == Refusal(failure)
    (event,) = site.events("request.ungoverned")
    assert (event["tenant"], event["reason"]) == ("acme", failure.value)


def test_while_the_audit_can_not_be_written_nothing_is_offloaded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(AuditWriter, "accepting", property(lambda _self: False))
        outcome = site.admit(ACME)
    assert outcome == Refusal(RefusalReason.AUDIT_UNAVAILABLE, site.salt(ACME))
    granted(site.admit(ACME))


def test_keys_that_are_slow_to_come_hold_up_one_request_and_serve_later_ones(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def slow(_self: object, _namespace: object, seconds: float) -> None:
        waited.append(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(Keyring, "namespace_keys_within", slow)
        for _ in range(5):
            outcome = site.admit(ACME)
            assert outcome == Refusal(RefusalReason.KEYS_UNAVAILABLE, site.salt(ACME))
    assert waited == [PATIENCE, 0, 0, 0, 0]
    eventually(lambda: isinstance(site.admit(ACME), Grant))


def test_a_registry_that_is_away_is_not_asked_by_each_request(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted(site.admit(ACME))
    asked: list[object] = []

    def unavailable(_self: object, namespace: object) -> None:
        asked.append(namespace)
        raise UnavailableError("the registry is away")

    with monkeypatch.context() as patch:
        patch.setattr(Keyring, "_fetch", unavailable)
        for _ in range(5):
            globex = Principal("globex", "chat")
            outcome = site.admit(globex)
            assert outcome == Refusal(RefusalReason.KEYS_UNAVAILABLE, site.salt(globex))
        granted(site.admit(ACME))  # whose keys are here
    assert len(asked) == 1


def test_no_error_at_all_leaves_admission(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise TypeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Keyring, "namespace_keys_within", broken)
        outcome = site.admit(ACME)
    assert outcome == Refusal(RefusalReason.INTERNAL_ERROR)
    granted(site.admit(ACME))
    (event,) = site.events("request.ungoverned")
    assert event["reason"] == "internal-error"


def test_a_new_namespaces_key_is_audited_once(site: Site) -> None:
    grant = granted(site.admit(ACME))
    granted(site.admit(ACME))
    (created,) = site.events("key.created")
    assert created["namespace"] == grant.keys.identifier.hex()


def test_no_representation_of_a_grant_shows_a_key(site: Site) -> None:
    grant = granted(site.admit(ACME))
    assert grant.keys.current is not None
    shown = repr(grant) + repr(grant.keys.current) + repr(grant.keys.current.secret)
    for secret in (grant.keys._naming_key._material, grant.keys.current.secret._material):
        assert len(secret) == 32
        assert secret.hex() not in shown
        assert repr(bytes(secret))[2:-1] not in shown


def put_policy(site: Site, *lines: str) -> None:
    """Put a policy of these lines in force, beside the engine's threads."""
    file = site.settings.authorization.policy_file
    file.write_text("\n".join(lines), encoding="utf-8")
    live = site.engine.policy
    before = live.version
    deadline = time.monotonic() + 20
    while live.version == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_loses_load_loses_it_for_requests_under_way_and_what_began_goes_on(
    site: Site,
) -> None:
    before = granted(site.admit(ACME))
    other = granted(site.admit(Principal("globex", "chat")))
    rules = site.settings.authorization.policy_file.read_text(encoding="utf-8")
    put_policy(site, rules, "p, acme, local, *, load, deny")
    now = site.engine.admission.renew(before)
    assert (now.may_store("disk"), now.may_load("disk"), now.may_load("host")) == (
        True,
        False,
        False,
    )
    assert before.may_load("disk"), "what began under the old version ends under it"
    assert now.audit_fields()["policy_version"] != before.audit_fields()["policy_version"]
    assert site.engine.admission.renew(now) is now
    assert site.engine.admission.renew(other).may_load("disk")


def test_who_loses_share_loses_the_groups_cache_for_requests_under_way(site: Site) -> None:
    group = granted(site.admit(ACME, group="manuals"))
    own = granted(site.admit(ACME))
    rules = site.settings.authorization.policy_file.read_text(encoding="utf-8")
    put_policy(site, rules, "p, acme, local, manuals, share, deny")
    now = site.engine.admission.renew(group)
    assert not any(may("disk") or may("host") for may in (now.may_store, now.may_load))
    assert site.engine.admission.renew(own).may_load("disk")


def test_a_rules_limit_shortens_the_life_of_blocks_on_its_tier_alone(site: Site) -> None:
    rules = site.settings.authorization.policy_file.read_text(encoding="utf-8")
    put_policy(site, rules, "p, globex, local, disk, store, allow, ttl<=10m")
    globex = granted(site.admit(Principal("globex", "chat")))
    assert globex.life_on("disk") == 600
    assert globex.life_on("host") == 3600, "what custody.yaml says of the tenant"
    assert granted(site.admit(ACME)).life_on("disk") is None


def test_rules_may_ask_for_the_model_and_the_adapter_of_a_request(site: Site) -> None:
    put_policy(
        site,
        "p, acme, local, *, *, allow, model=demo lora=none",
        "p, globex, local, *, *, allow, model=another",
    )
    assert granted(site.admit(ACME)).may_load("disk")
    assert refused(site.admit(Principal("globex", "chat"))) is RefusalReason.POLICY_DENIED
    adapted = site.admit(ACME, adapter="0a" * 32, adapter_name="support")
    assert refused(adapted) is RefusalReason.POLICY_DENIED


def test_audit_only_allows_what_the_policy_denies_and_records_it(site: Site) -> None:
    config = site.settings.places.file
    assert config is not None
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("policy.csv}", "policy.csv, audit_only: [acme]}"))
    policy = site.settings.authorization.policy_file
    policy.write_text("p, acme, local, host, *, allow\n")
    site.engine.close()
    site.settings = load_settings(config)
    site.engine = site.start()
    acme = granted(site.admit(ACME))
    assert acme.may_load("disk")
    assert acme.may_store("disk")
    assert refused(site.admit(Principal("globex", "chat"))) is RefusalReason.POLICY_DENIED
    (admitted,) = [each for each in site.events("request.admitted") if each["unenforced"]]
    assert admitted["unenforced"] == [
        {"tier": "disk", "action": "store", "rule": None},
        {"tier": "disk", "action": "load", "rule": None},
    ]


def test_audit_only_lets_nobody_into_a_group_that_the_policy_keeps_out(site: Site) -> None:
    config = site.settings.places.file
    assert config is not None
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("policy.csv}", "policy.csv, mode: audit-only}"))
    site.engine.close()
    site.settings = load_settings(config)
    site.engine = site.start()
    denied = site.admit(Principal("globex", "chat"), group="manuals")
    assert refused(denied) is SharingRefusal.POLICY_DENIED
    assert granted(site.admit(ACME, group="manuals")).group == "manuals"
