"""Models to ask about: one that each pattern in a policy matches, and their combinations."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import product
from typing import NamedTuple

from kvcustody.policy.facts import UNKNOWN_MODEL, ModelFacts
from kvcustody.policy.terms import MODEL_FACTS, Terms

# Of one tenant's rules; more come from policies that nobody could review by samples.
_MOST_SAMPLES = 100
# What stands for no adapter, and for any.
_ADAPTER_WORDS = {"none": None, "any": "x"}


class ModelSamples(NamedTuple):
    """Models to ask about.

    Args:
        models: without the unknown one.
        complete: whether every pattern, in every combination, is among them.

    """

    models: tuple[ModelFacts, ...]
    complete: bool


def sample_models(terms: Iterable[Terms]) -> ModelSamples:
    """Models that conditions tell apart."""
    found: dict[str, dict[str | None, None]] = {fact: {None: None} for fact in MODEL_FACTS}
    complete = True
    for each in terms:
        for condition in each.conditions:
            if condition.fact in MODEL_FACTS:
                for alternative in condition.text.partition("=")[2].split("|"):
                    sample = _sample(condition.fact, alternative)
                    found[condition.fact][sample] = None
                    complete = complete and _matches(sample, condition.fact, alternative)
    names, revisions, adapters = found["model"], found["revision"], found["lora"]
    if len(names) * len(revisions) * len(adapters) <= _MOST_SAMPLES + 1:
        models = [ModelFacts(*each) for each in product(names, revisions, adapters)]
    else:
        complete = False
        models = [ModelFacts(name=name) for name in names]
        models += [ModelFacts(revision=revision) for revision in revisions]
        models += [ModelFacts(lora=adapter) for adapter in adapters]
    different = dict.fromkeys(model for model in models if model != UNKNOWN_MODEL)
    return ModelSamples(tuple(different), complete)


def _matches(sample: str | None, fact: str, pattern: str) -> bool:
    if fact == "lora" and pattern in _ADAPTER_WORDS:
        return True
    return sample is not None and fnmatchcase(sample, pattern)


def _sample(fact: str, pattern: str) -> str | None:
    """A name that a pattern matches."""
    if fact == "lora" and pattern in _ADAPTER_WORDS:
        return _ADAPTER_WORDS[pattern]
    if fact == "lora" and pattern == "any":
        return "x"
    text, rest = "", pattern
    while rest:
        _, bracket, after = rest[2:].partition("]")
        if rest[0] == "[" and bracket:
            # Of [abc] and [a-c] the first; of [!abc] one that is hardly among them.
            text += "~" if rest[1] == "!" else rest[1]
            rest = after
        else:
            text += "x" if rest[0] in "*?" else rest[0]
            rest = rest[1:]
    return text
