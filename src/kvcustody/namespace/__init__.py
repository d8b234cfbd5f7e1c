"""The namespace stage: whose blocks of which model, under names that reveal nothing."""

from kvcustody.namespace.namespace import Namespace, Scope
from kvcustody.namespace.revision import ModelRevision, fingerprint_model

__all__ = ["ModelRevision", "Namespace", "Scope", "fingerprint_model"]
