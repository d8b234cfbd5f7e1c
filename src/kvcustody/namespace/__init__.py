"""The namespace stage: whose blocks of which model, under names that reveal nothing."""

from kvcustody.namespace.adapter import Adapter, AdapterFailure, AdapterRevisions
from kvcustody.namespace.namespace import Namespace, Scope
from kvcustody.namespace.revision import ModelRevision, file_identities, fingerprint_model

__all__ = [
    "Adapter",
    "AdapterFailure",
    "AdapterRevisions",
    "ModelRevision",
    "Namespace",
    "Scope",
    "file_identities",
    "fingerprint_model",
]
