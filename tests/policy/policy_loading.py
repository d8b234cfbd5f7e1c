"""Policies for tests: a deployment of two tenants and two tiers, and rules to load for it."""

from collections.abc import Container
from pathlib import Path

from kvcustody.identity.principal import Principal
from kvcustody.policy import Decisions, Facts, Rule, load_policy
from kvcustody.policy.facts import TenantFacts, TierFacts
from kvcustody.policy.rules import make_rule

TENANTS = ["acme", "globex"]
HIGHEST = 3
FACTS = Facts(
    "local",
    {
        "host": TierFacts("memory", HIGHEST),
        "disk": TierFacts("filesystem", HIGHEST, frozenset({"fast"}), "eu-central-1"),
    },
    {name: TenantFacts(HIGHEST) for name in TENANTS},
    ("manuals",),
)
ACME = Principal("acme", "support")


def load(
    folder: Path,
    *lines: str,
    facts: Facts = FACTS,
    unenforced: Container[str] = frozenset(),
) -> Decisions:
    """The decisions of a policy of these lines."""
    (folder / "policy.csv").write_text("\n".join(lines), encoding="utf-8")
    return load_policy(folder / "policy.csv", None, facts, unenforced)


def rules_of(*lines: str) -> list[Rule]:
    """Rules as a file of these lines has them."""
    found = []
    for line, text in enumerate(lines, start=1):
        kind, *fields = (field.strip() for field in text.split(","))
        found.append(make_rule(kind, fields, Path("policy.csv"), line))
    return found
