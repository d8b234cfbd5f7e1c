"""The policy stage: may this principal store to, or load from, this tier?"""

from kvcustody.policy.adapter_source import AdapterPolicy, CasbinAdapter
from kvcustody.policy.decisions import Action, Decision, Decisions, Question, TierDecision
from kvcustody.policy.facts import HOST_TIER, UNKNOWN_MODEL, Facts, ModelFacts
from kvcustody.policy.in_force import PolicyInForce, PolicySource, PolicyWatch
from kvcustody.policy.loading import PolicyFiles, facts_of, load_policy
from kvcustody.policy.model import BUILT_IN_MODEL
from kvcustody.policy.rules import Rule
from kvcustody.policy.sharing import Sharing, SharingRefusal
from kvcustody.policy.terms import Limits

__all__ = [
    "BUILT_IN_MODEL",
    "HOST_TIER",
    "UNKNOWN_MODEL",
    "Action",
    "AdapterPolicy",
    "CasbinAdapter",
    "Decision",
    "Decisions",
    "Facts",
    "Limits",
    "ModelFacts",
    "PolicyFiles",
    "PolicyInForce",
    "PolicySource",
    "PolicyWatch",
    "Question",
    "Rule",
    "Sharing",
    "SharingRefusal",
    "TierDecision",
    "facts_of",
    "load_policy",
]
