"""Put the policy in force, and keep it up to date."""

from contextlib import suppress

from kvcustody.audit import AuditLog
from kvcustody.config import Settings
from kvcustody.errors import ConfigurationError, CustodyError
from kvcustody.policy import (
    Decisions,
    PolicyFiles,
    PolicyInForce,
    PolicySource,
    PolicyWatch,
    Sharing,
)
from kvcustody.policy.rules import never_pause
from kvcustody.wiring.policy_adapter import open_adapter_policy


def open_policy_source(settings: Settings) -> PolicySource:
    """Where the policy comes from: a file or an adapter; nothing is read yet.

    Raises:
        ConfigurationError: the adapter's class can't be used.

    """
    adapter = settings.authorization.adapter
    return PolicyFiles(settings) if adapter is None else open_adapter_policy(settings, adapter)


def load_decisions(settings: Settings) -> Decisions:
    """Read and compile the policy.

    Raises:
        ConfigurationError: the policy or the model is wrong.
        UnavailableError: where the policy is can't be reached.

    """
    return open_policy_source(settings).load(never_pause)


def readable_policy(settings: Settings) -> PolicyInForce | None:
    """The policy, for the audit records of commands that must work without one, too."""
    with suppress(CustodyError):
        return PolicyInForce(load_decisions(settings))
    return None


def load_sharing(settings: Settings, policy: PolicyInForce) -> Sharing:
    """Who may use which sharing group's namespace."""
    return Sharing(
        {entry.group: frozenset(entry.tenants) for entry in settings.sharing},
        frozenset(name for name, tenant in settings.tenants.items() if tenant.scope == "subject"),
        policy.may_share,
    )


class LivePolicy:
    """The policy in force, which follows its source from `watch` on.

    Args:
        settings: custody.yaml.

    Raises:
        ConfigurationError: the policy or the model is wrong.
        UnavailableError: where the policy is can't be reached.

    """

    def __init__(self, settings: Settings) -> None:
        self._source = open_policy_source(settings)
        # Before the policy is read: what changes from now on is a new version.
        self._signature = self._source.signature()
        self.in_force = PolicyInForce(self._source.load(never_pause))
        self._watch: PolicyWatch | None = None

    def watch(self, audit: AuditLog) -> None:
        """Follow the source; new versions, and refused ones, are in the audit trail."""

        def loaded(previous: str) -> None:
            audit.record(
                "policy.loaded",
                action="load",
                outcome="ok",
                policy_version=self.in_force.version,
                previous=previous,
            )

        def rejected(error: CustodyError) -> None:
            place = error if isinstance(error, ConfigurationError) else None
            audit.record(
                "policy.rejected",
                action="load",
                outcome="failed",
                policy_version=self.in_force.version,
                reason=str(error) if place is None else place.message,
                file=str(place.file) if place and place.file else None,
                line=place.line if place else None,
                field=place.field if place else None,
            )

        self._watch = PolicyWatch(
            self.in_force,
            self._source,
            self._signature,
            on_loaded=loaded,
            on_rejected=rejected,
        )
        self._watch.start()

    def close(self) -> None:
        """Stop following the source."""
        if self._watch is not None:
            self._watch.close()
