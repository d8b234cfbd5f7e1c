"""Models to ask about: one that each pattern in a policy matches, and their combinations."""

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from kvcustody.policy.facts import UNKNOWN_MODEL, ModelFacts
from kvcustody.policy.terms import MODEL_FACTS, Terms

# Of one tenant's rules; more come from policies that nobody could review by samples.
_MOST_SAMPLES = 100
# What stands for no adapter, and for any.
_ADAPTER_WORDS = {"none": None, "any": "x"}
_WILDCARDS = str.maketrans("*?", "xx")


class ModelSamples(NamedTuple):
    """Models to ask about.

    Args:
        models: without the unknown one.
        complete: whether they are there in every combination.

    """

    models: tuple[ModelFacts, ...]
    complete: bool


def sample_models(terms: Iterable[Terms]) -> ModelSamples:
    """Models that conditions tell apart."""
    found: dict[str, dict[str | None, None]] = {fact: {None: None} for fact in MODEL_FACTS}
    for each in terms:
        for condition in each.conditions:
            if condition.fact in MODEL_FACTS:
                for alternative in condition.text.partition("=")[2].split("|"):
                    found[condition.fact][_sample(condition.fact, alternative)] = None
    names, revisions, adapters = found["model"], found["revision"], found["lora"]
    complete = len(names) * len(revisions) * len(adapters) <= _MOST_SAMPLES + 1
    if complete:
        models = [ModelFacts(*each) for each in product(names, revisions, adapters)]
    else:
        models = [ModelFacts(name=name) for name in names]
        models += [ModelFacts(revision=revision) for revision in revisions]
        models += [ModelFacts(lora=adapter) for adapter in adapters]
    different = dict.fromkeys(model for model in models if model != UNKNOWN_MODEL)
    return ModelSamples(tuple(different), complete)


def _sample(fact: str, pattern: str) -> str | None:
    """A name that a pattern matches."""
    if fact == "lora" and pattern in _ADAPTER_WORDS:
        return _ADAPTER_WORDS[pattern]
    return pattern.translate(_WILDCARDS)
