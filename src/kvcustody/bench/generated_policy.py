"""Policies as large deployments have them: tenants in roles, rules of their own, denials, terms."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

from kvcustody.policy import Decisions, Facts, ModelFacts, load_policy
from kvcustody.policy.facts import TenantFacts, TierFacts
from kvcustody.policy.rules import Rule, make_rule

WORKLOADS = ("chat", "search", "batch")
"""What every tenant runs."""
TIER = "nvme"
"""Of whose decisions one is looked up."""
MODEL = ModelFacts("llama-8b", "r1")
"""Of all requests."""
OF_MANY_ROLES, OF_MANY_RULES = "of-many-roles", "of-many-rules"
"""Tenants on whose account much must be considered."""
_DEPLOYMENT = "prod"
_ROLES = 25
_TIERS = {
    "host": TierFacts("memory", 3),
    "nvme": TierFacts("filesystem", 3, frozenset({"fast"}), "eu-central-1"),
    "archive": TierFacts("s3", 2, frozenset({"cheap"}), "eu-west-1"),
    "abroad": TierFacts("s3", 1, frozenset({"cheap"}), "us-east-1"),
}
# One rule in five puts a tenant into a role.
_MEMBERSHIP_SHARE = 5
_RULES_A_ROLE = 4
_OWN_RULES = (
    "{who}, prod, nvme, store, allow, classification<=confidential ttl<=12h",
    "{who}, prod, archive, store, allow, ttl<=7d quota<=50GiB",
    "{who}/chat, prod, label:cheap, load, deny, model=llama-*|qwen-*",
    "{who}/batch, prod, *, store, deny, lora=any",
    "{who}, *, kind:s3, *, deny, region!=eu-*",
    "{who}, prod, *, load, allow, revision!=r0",
)


@dataclass(frozen=True, slots=True)
class GeneratedPolicy:
    """A policy.

    Args:
        facts: the deployment that it is for.
        lines: of its file.

    """

    facts: Facts
    lines: tuple[str, ...]

    def rules(self) -> list[Rule]:
        """Its rules."""
        found = []
        for number, line in enumerate(self.lines, start=1):
            kind, *fields = line.split(", ")
            found.append(make_rule(kind, fields, Path("policy.csv"), number))
        return found

    def write(self, file: Path) -> None:
        """Write it to a file."""
        file.write_text("\n".join(self.lines), encoding="utf-8")

    def load(self, folder: Path) -> Decisions:
        """Its decisions."""
        file = folder / "generated.csv"
        self.write(file)
        return load_policy(file, None, self.facts)


def tenant(number: int) -> str:
    """The name of a tenant."""
    return f"tenant-{number:05}"


def generate_policy(rules: int, tenants: int) -> GeneratedPolicy:
    """A policy of so many rules in a deployment of so many tenants."""
    members = [
        f"g, {tenant(number)}, role-{number % _ROLES:03}, {_DEPLOYMENT}"
        for number in range(min(tenants, max(1, rules // _MEMBERSHIP_SHARE)))
    ]
    roles = sorted({line.split(", ")[2] for line in members})
    lines = chain(members, ["p, *, *, *, serve-peer, deny"], _of_roles(roles), _of_tenants(tenants))
    return GeneratedPolicy(_facts(tenants), tuple(islice(lines, rules)))


def generate_worst(rules: int, tenants: int, much: int) -> GeneratedPolicy:
    """A policy, and two tenants that are much work to decide.

    One is in `much` / 4 roles of 4 rules each; of the other, `much` rules each ask for a model.
    """
    roles = [f"much-{number:05}" for number in range(much // _RULES_A_ROLE)]
    worst = [
        *(f"g, {OF_MANY_ROLES}, {role}, {_DEPLOYMENT}" for role in roles),
        *_of_roles(roles),
        *(f"p, {OF_MANY_RULES}, prod, nvme, *, allow, model=fine-tuned-{n}" for n in range(much)),
    ]
    usual = generate_policy(rules - len(worst), tenants)
    facts = usual.facts
    both = {name: TenantFacts(0) for name in (OF_MANY_ROLES, OF_MANY_RULES)}
    return GeneratedPolicy(
        Facts(facts.deployment, facts.tiers, {**facts.tenants, **both}),
        (*usual.lines, *worst),
    )


def _facts(tenants: int) -> Facts:
    return Facts(
        _DEPLOYMENT,
        _TIERS,
        {
            tenant(number): TenantFacts(number % 4, ("eu-*",) if number % 3 == 0 else ())
            for number in range(tenants)
        },
    )


def _of_roles(roles: list[str]) -> Iterator[str]:
    for number, role in enumerate(roles):
        yield f"p, {role}, prod, host, *, allow"
        yield f"p, {role}, prod, nvme, *, allow, ttl<={number % 23 + 1}h"
        yield f"p, {role}, prod, archive, store, allow, ttl<={number % 6 + 1}d quota<=100GiB"
        yield f"p, {role}, prod, abroad, *, deny, classification>=internal"


def _of_tenants(tenants: int) -> Iterator[str]:
    chosen = random.Random(1)  # noqa: S311 - no secret; the same policy each time
    for _ in count():
        who = tenant(chosen.randrange(tenants))
        yield "p, " + chosen.choice(_OWN_RULES).format(who=who)
