"""Audit: what was decided and done, hash-chained and signed, so that an outsider can verify it."""

from kvcustody.audit.query import read_events
from kvcustody.audit.unenforced import UnenforcedUse, find_unenforced
from kvcustody.audit.verify import Finding, VerificationReport, verify_directory
from kvcustody.audit.writer import AuditLog, AuditWriter, check_writable

__all__ = [
    "AuditLog",
    "AuditWriter",
    "Finding",
    "UnenforcedUse",
    "VerificationReport",
    "check_writable",
    "find_unenforced",
    "read_events",
    "verify_directory",
]
