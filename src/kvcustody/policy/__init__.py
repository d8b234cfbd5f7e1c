"""The policy stage: may this principal store to, or load from, this tier?"""

from kvcustody.policy.decisions import Action, Decision, Decisions, TierDecision
from kvcustody.policy.model import BUILT_IN_MODEL, Rule, load_policy
from kvcustody.policy.sharing import Sharing, SharingRefusal

__all__ = [
    "BUILT_IN_MODEL",
    "Action",
    "Decision",
    "Decisions",
    "Rule",
    "Sharing",
    "SharingRefusal",
    "TierDecision",
    "load_policy",
]
