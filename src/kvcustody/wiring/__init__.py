"""Wire the stages together from custody.yaml; the one place where collaborators are chosen."""

from kvcustody.wiring.engine import EngineCustody, build_engine
from kvcustody.wiring.gateway import ANONYMOUS_WORKLOAD, build_gateway
from kvcustody.wiring.keys import Keys, audit_key_changes, open_keys
from kvcustody.wiring.policy import LivePolicy, load_decisions, load_sharing, readable_policy
from kvcustody.wiring.preflight import preflight
from kvcustody.wiring.trail import audit_signing_key, open_audit

__all__ = [
    "ANONYMOUS_WORKLOAD",
    "EngineCustody",
    "Keys",
    "LivePolicy",
    "audit_key_changes",
    "audit_signing_key",
    "build_engine",
    "build_gateway",
    "load_decisions",
    "load_sharing",
    "open_audit",
    "open_keys",
    "preflight",
    "readable_policy",
]
