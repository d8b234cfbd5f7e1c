"""A rule's last field: when it counts, and what the permission is limited to.

`model=llama-* lora=none region=eu-* ttl<=1h` counts for requests to a model of that name without an
adapter, on tiers in those regions, and lets blocks live an hour. All conditions must hold; what is
not known matches no pattern. `|` separates alternatives; `!=` turns a condition round. Limits say
nothing of whether the rule counts; of all permissions that count, the strictest limit applies.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate

from kvcustody.config.values import parse_bytes, parse_duration
from kvcustody.policy.facts import Context

ALWAYS = "*"
"""The terms of a rule that always counts, without limits."""

_TERM = re.compile(r"([a-z]+)(<=|>=|!=|=)(\S+)")
_FORMS = (
    "model, revision, lora or region with = or != and a pattern; classification with =, !=, <= or "
    ">= and a level; ttl<=1h; quota<=10GiB"
)
_PATTERN_FACTS: dict[str, Callable[[Context], str | None]] = {
    "model": lambda context: context.model.name,
    "revision": lambda context: context.model.revision,
    "lora": lambda context: context.model.lora,
    "region": lambda context: None if context.tier is None else context.tier.region,
}
MODEL_FACTS = frozenset({"model", "revision", "lora"})
"""Conditions on a request's model, which only an engine knows."""
_NO_ADAPTER = "none"
_ANY_ADAPTER = "any"
_WILDCARDS = frozenset("*?")


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether one fact is as a rule wants it.

    Args:
        text: as it stands in the rule.
        fact: name of the fact.
        holds: whether the context has it so.

    """

    text: str
    fact: str
    holds: Callable[[Context], bool]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a permission is limited to; `None`: not by this rule.

    Args:
        ttl: longest life of a block, in seconds.
        quota: most bytes that the tenant may keep on the tier.

    """

    ttl: float | None = None
    quota: int | None = None


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Terms:
    """A rule's last field, read.

    Args:
        conditions: all must hold for the rule to count.
        limits: what the permission is limited to.

    """

    conditions: tuple[Condition, ...]
    limits: Limits

    def unmet(self, context: Context) -> Condition | None:
        """The first condition that doesn't hold; `None` if the rule counts."""
        for condition in self.conditions:
            if not condition.holds(context):
                return condition
        return None


def parse_terms(text: str, classifications: Sequence[str]) -> Terms:
    """Read a rule's last field.

    Args:
        text: the field.
        classifications: levels of data, the least sensitive first.

    Raises:
        ValueError: it can't be read; the text says what to write.

    """
    conditions: list[Condition] = []
    limits: list[Limits] = []
    for word in [] if text == ALWAYS else text.split():
        match = _TERM.fullmatch(word)
        if match is None:
            raise ValueError(f"'{word}' is no term; write {_FORMS}")
        name, operator, value = match.groups()
        if name in {"ttl", "quota"}:
            limits.append(_limit(word, name, operator, value))
        else:
            conditions.append(_condition(word, name, operator, value, classifications))
    return Terms(tuple(conditions), strictest(limits))


class TermsReader:
    """Reads each text once: many rules have the same terms.

    Args:
        classifications: levels of data, the least sensitive first.

    """

    def __init__(self, classifications: Sequence[str]) -> None:
        self._classifications = classifications
        self._read: dict[str, Terms] = {}

    def read(self, text: str) -> Terms:
        """Read a rule's last field.

        Raises:
            ValueError: it can't be read; the text says what to write.

        """
        if text not in self._read:
            self._read[text] = parse_terms(text, self._classifications)
        return self._read[text]


def strictest(limits: Iterable[Limits]) -> Limits:
    """The least that all of them allow."""
    given = list(limits)
    lives = [each.ttl for each in given if each.ttl is not None]
    quotas = [each.quota for each in given if each.quota is not None]
    if not (lives or quotas):
        return UNLIMITED
    return Limits(min(lives, default=None), min(quotas, default=None))


def _limit(word: str, name: str, operator: str, value: str) -> Limits:
    if operator != "<=":
        raise ValueError(f"'{word}': a limit is written {name}<=…")
    try:
        return (
            Limits(ttl=parse_duration(value)) if name == "ttl" else Limits(quota=parse_bytes(value))
        )
    except ValueError as error:
        raise ValueError(f"'{word}': {error}") from None


def _condition(
    word: str, name: str, operator: str, value: str, classifications: Sequence[str]
) -> Condition:
    if name == "classification":
        return Condition(word, name, _classified(word, operator, value, classifications))
    if name not in _PATTERN_FACTS:
        raise ValueError(f"'{word}': unknown term '{name}'; write {_FORMS}")
    if operator not in {"=", "!="}:
        raise ValueError(f"'{word}': {name} takes = or !=")
    return Condition(word, name, _matches(name, value, wanted=operator == "="))


def _matches(name: str, value: str, *, wanted: bool) -> Callable[[Context], bool]:
    find = _PATTERN_FACTS[name]
    alternatives = value.split("|")
    without = name == "lora" and _NO_ADAPTER in alternatives
    wanted_names = [
        "*" if name == "lora" and alternative == _ANY_ADAPTER else alternative
        for alternative in alternatives
        if not (name == "lora" and alternative == _NO_ADAPTER)
    ]
    # A policy may name thousands of models; only what has wildcards is worth an expression.
    exact = frozenset(each for each in wanted_names if _WILDCARDS.isdisjoint(each))
    # A bracket is a part of names here, no wildcard.
    patterns = [translate(each.replace("[", "[[]")) for each in wanted_names if each not in exact]
    pattern = re.compile("|".join(patterns)) if patterns else None

    def holds(context: Context) -> bool:
        fact = find(context)
        if fact is None:
            return without is wanted
        found = fact in exact or (pattern is not None and pattern.match(fact) is not None)
        return found is wanted

    return holds


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "=": lambda rank, level: rank == level,
    "!=": lambda rank, level: rank != level,
    "<=": lambda rank, level: rank <= level,
    ">=": lambda rank, level: rank >= level,
}


def _classified(
    word: str, operator: str, value: str, classifications: Sequence[str]
) -> Callable[[Context], bool]:
    if value not in classifications:
        raise ValueError(
            f"'{word}': unknown classification; use one of {', '.join(classifications)}"
        )
    level = classifications.index(value)
    compare = _COMPARISONS[operator]

    def holds(context: Context) -> bool:
        return context.tenant is not None and compare(context.tenant.classification, level)

    return holds
