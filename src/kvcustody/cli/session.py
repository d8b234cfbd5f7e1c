"""The key hierarchy and an audit stream, open for the length of a command."""

from typing import Self

from kvcustody.audit import AuditLog
from kvcustody.config import Settings
from kvcustody.wiring import audit_key_changes, open_audit, open_keys, readable_policy


class AuditedKeys:
    """What a command needs that changes keys: whatever it does is in the audit trail.

    Args:
        settings: custody.yaml.

    Raises:
        ConfigurationError: the root key, the registry or the audit folder can't be used.
        UnavailableError: the registry can't be reached.

    """

    def __init__(self, settings: Settings) -> None:
        keys = open_keys(settings)
        try:
            self._audit = open_audit(settings, keys.keyring, "cli", readable_policy(settings))
        except BaseException:
            keys.close()
            raise
        self.keys = keys
        self.audit: AuditLog = self._audit
        audit_key_changes(keys.table, self.audit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._audit.close()
        self.keys.close()
