from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvcustody.audit import read_events
from kvcustody.config import load_settings
from kvcustody.deployment import init_deployment
from kvcustody.errors import ConfigurationError
from kvcustody.identity.assertion import AssertionFailure, AssertionVerifier, Verified
from kvcustody.identity.principal import Principal
from kvcustody.identity.salt_ticket import SaltTickets
from kvcustody.offline import OfflineCustody
from kvcustody.sealing import ServiceKey
from kvcustody.wiring import build_gateway, open_keys

pytestmark = pytest.mark.unit

_GROUPS = """
sharing:
  - {group: manuals, tenants: [acme, globex]}
  - {group: closed, tenants: [globex]}
"""


@dataclass
class Params:
    """As vLLM's SamplingParams, of which only this matters."""

    extra_args: dict[str, Any] | None = None
    output_kind: str = "default"


@dataclass
class Counter:
    counter: int = 0


@dataclass
class Engine:
    """Takes a batch as vLLM's LLM does: one item after the other, each with the next number."""

    request_counter: Counter = field(default_factory=Counter)

    def generate(self, batch: Any) -> list[tuple[str, Any]]:
        taken = []
        for place in range(len(batch)):
            item = batch[place]
            taken.append((f"{self.request_counter.counter}-a1b2c3d4", item))
            self.request_counter.counter += 1
        return taken


class Site:
    """A deployment, and what its connector would find."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "custody.yaml"
        init_deployment(self.config)
        text = self.config.read_text(encoding="utf-8").replace(
            "  acme: {scope: tenant}",
            "  acme: {scope: tenant}\n  clinic: {scope: subject}\n  initech: {scope: tenant}",
        )
        self.config.write_text(text + _GROUPS, encoding="utf-8")
        policy = directory / "policies" / "policy.csv"
        rule = "\np, globex, local, manuals, share, deny\n"
        policy.write_text(policy.read_text(encoding="utf-8") + rule, encoding="utf-8")
        self.settings = load_settings(self.config)
        keys = open_keys(self.settings)
        self.assertion_key = keys.keyring.service_key(ServiceKey.ASSERTION)
        keys.close()

    def verify(self, request_id: str, params: Any) -> Verified | AssertionFailure:
        verifier = AssertionVerifier(self.assertion_key, "local")
        assertion = params.extra_args["kv_transfer_params"]["kvcustody"]
        return verifier.verify(assertion, request_id=request_id, cache_salt=None)

    def salt(self, principal: Principal) -> str:
        gateway = build_gateway(self.settings)
        gateway.close()
        return gateway.salts(principal)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def custody(site: Site) -> Iterator[OfflineCustody]:
    with OfflineCustody.from_config(site.config) as custody:
        yield custody


def test_each_prompt_of_a_batch_is_signed_for_its_own_request_and_tenant(
    site: Site, custody: OfflineCustody
) -> None:
    engine = Engine(Counter(41))
    who = [custody.on_behalf_of("acme", "batch"), custody.on_behalf_of("globex")]
    batch = custody.sampling_params(engine, Params(), who)
    engine.generate(["another", "call", "before", "this"])
    (first, one), (second, two) = engine.generate(batch)
    assert site.verify(first, one) == Verified(Principal("acme", "batch"), "45", None)
    assert site.verify(second, two) == Verified(Principal("globex", "default"), "46", None)
    assert site.verify(second, one) is AssertionFailure.WRONG_REQUEST


def test_a_batch_may_be_given_to_vllm_again_whole_or_in_part(
    site: Site, custody: OfflineCustody
) -> None:
    engine = Engine()
    tenants = ["acme", "globex", "acme", "globex"]
    batch = custody.sampling_params(
        engine, Params(), [custody.on_behalf_of(tenant) for tenant in tenants]
    )
    for part, expected in ((batch, tenants), (batch[1:3], tenants[1:3]), (batch, tenants)):
        found = [site.verify(*request) for request in engine.generate(part)]
        assert [each.principal.tenant for each in found if isinstance(each, Verified)] == expected


def test_a_batch_that_vllm_copies_first_is_signed_right_all_the_same(
    site: Site, custody: OfflineCustody
) -> None:
    engine = Engine(Counter(7))
    batch = custody.sampling_params(engine, Params(), [custody.on_behalf_of("acme")] * 3)
    found = [site.verify(*request) for request in engine.generate(list(batch))]
    assert [each.request_id for each in found if isinstance(each, Verified)] == ["7", "8", "9"]


def test_own_parameters_stay_as_they_were_and_reach_the_engine(custody: OfflineCustody) -> None:
    engine = Engine()
    transfer = {"max_load_tokens": 512, "kvcustody": "forged"}
    own = [Params({"temperature_of": "tea", "kv_transfer_params": transfer}), Params()]
    batch = custody.sampling_params(engine, own, [custody.on_behalf_of("acme")] * 2)
    (_, first), (_, second) = engine.generate(batch)
    assert first.extra_args["temperature_of"] == "tea"
    assert first.extra_args["kv_transfer_params"]["max_load_tokens"] == 512
    assert first.extra_args["kv_transfer_params"]["kvcustody"] != "forged"
    assert second.extra_args.keys() == {"kv_transfer_params"}
    first.output_kind = "final only"  # vLLM does such things
    assert own == [Params({"temperature_of": "tea", "kv_transfer_params": transfer}), Params()]


def test_what_vllm_changes_in_an_item_is_there_when_it_takes_the_item(
    custody: OfflineCustody,
) -> None:
    batch = custody.sampling_params(Engine(), Params(), [custody.on_behalf_of("acme")] * 2)
    for item in batch:
        item.output_kind = "with special tokens"
    assert [batch[place].output_kind for place in range(2)] == ["with special tokens"] * 2


def test_a_pooling_prompt_gets_a_ticket_for_its_own_request(
    site: Site, custody: OfflineCustody
) -> None:
    engine = Engine(Counter(3))
    who = custody.on_behalf_of("acme")
    prompts: list[Any] = ["text", [1, 2], {"prompt": "text", "cache_salt": "mine", "more": 1}]
    taken = engine.generate(custody.salted_prompts(engine, prompts, [who] * 3))
    tickets = SaltTickets(site.assertion_key, 60.0)
    salt = site.salt(Principal("acme", "default"))
    for number, (request_id, prompt) in enumerate(taken, start=3):
        assert tickets.open(prompt.pop("cache_salt"), request_id) == (salt, str(number))
    assert [prompt for _, prompt in taken] == [
        {"prompt": "text"},
        {"prompt_token_ids": [1, 2]},
        {"prompt": "text", "more": 1},
    ]


def test_a_sharing_group_is_signed_where_the_policy_allows_it(
    site: Site, custody: OfflineCustody
) -> None:
    engine = Engine()
    who = custody.on_behalf_of("acme", group="manuals")
    (request,) = engine.generate(custody.sampling_params(engine, Params(), [who]))
    assert site.verify(*request) == Verified(Principal("acme", "default"), "0", "manuals")


@pytest.mark.parametrize(
    ("arguments", "field", "says"),
    [
        ({"tenant": "umbrella"}, "tenant", "acme, clinic, initech, globex"),
        ({"tenant": "acme", "workload": "a b"}, "workload", "letters, digits"),
        ({"tenant": "acme", "subject": "\u200b"}, "subject", "printable"),
        ({"tenant": "clinic"}, "subject", "each"),
        ({"tenant": "acme", "group": "nothing"}, "group", "unknown-group"),
        ({"tenant": "acme", "group": "closed"}, "group", "not-a-member"),
        ({"tenant": "globex", "group": "manuals"}, "group", "policy-denied"),
    ],
)
def test_a_wrong_name_is_one_line_that_says_where(
    custody: OfflineCustody, arguments: dict[str, str], field: str, says: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        custody.on_behalf_of(**arguments)
    assert error.value.field == field
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_subject_is_one_whatever_its_spelling(custody: OfflineCustody) -> None:
    composed = custody.on_behalf_of("clinic", subject="Zo\u00eb")
    assert custody.on_behalf_of("clinic", subject="Zoe\u0308") == composed


def test_nobody_is_left_out_of_a_batch(custody: OfflineCustody) -> None:
    who = [custody.on_behalf_of("acme")]
    with pytest.raises(ConfigurationError, match="2 given, but 1 say for whom"):
        custody.sampling_params(Engine(), [Params(), Params()], who)
    with pytest.raises(ConfigurationError, match="2 given, but 1 say for whom"):
        custody.salted_prompts(Engine(), ["one", "two"], who)


@pytest.mark.parametrize("ttl", [0.0, -1.0, 86_401.0, float("nan")])
def test_a_useless_life_is_refused(site: Site, ttl: float) -> None:
    with pytest.raises(ConfigurationError, match="ttl"):
        OfflineCustody.from_config(site.config, ttl=ttl)


def test_what_was_signed_is_in_a_stream_of_its_own_and_nothing_is_signed_after_its_end(
    site: Site, custody: OfflineCustody
) -> None:
    engine = Engine(Counter(5))
    batch = custody.sampling_params(engine, Params(), [custody.on_behalf_of("acme", "batch")])
    engine.generate(batch)
    custody.close()
    with pytest.raises(ConfigurationError, match="closed already"):
        engine.generate(batch)
    (event,) = [
        e for e in read_events(site.settings.audit.path) if e["event"] == "request.accepted"
    ]
    assert str(event["stream"]).startswith("offline-")
    assert (event["tenant"], event["workload"]) == ("acme", "batch")
    assert (event["request_id"], event["path"], event["action"]) == ("5", "offline", "assert")


def test_vllm_is_told_which_connector_and_which_configuration(
    site: Site, custody: OfflineCustody
) -> None:
    assert custody.kv_transfer_config == {
        "kv_connector": "CustodyConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"custody": str(site.config)},
    }
