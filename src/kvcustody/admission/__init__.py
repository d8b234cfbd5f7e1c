"""Admission: what a request may do, decided once when it arrives."""

from kvcustody.admission.admission import Admission
from kvcustody.admission.outcome import Grant, Refusal, RefusalReason
from kvcustody.admission.salts import Salts

__all__ = ["Admission", "Grant", "Refusal", "RefusalReason", "Salts"]
