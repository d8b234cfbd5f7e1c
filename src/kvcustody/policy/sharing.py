"""Sharing groups: whose requests may use a cache that several tenants have in common."""

from collections.abc import Callable, Mapping
from enum import StrEnum

from kvcustody.identity.principal import Principal
from kvcustody.policy.decisions import Decision


class SharingRefusal(StrEnum):
    """Why a request uses its own namespace and not the sharing group's that it asked for."""

    UNKNOWN_GROUP = "unknown-group"
    NOT_A_MEMBER = "not-a-member"
    DATA_SUBJECT = "data-subject"
    """It is about a person, whose data must stay where they can be erased."""
    POLICY_DENIED = "policy-denied"


class Sharing:
    """Decides who may use a sharing group's namespace.

    Args:
        members: names of each group's tenants, by the group's name.
        subject_tenants: names of the tenants that keep a cache for each data subject.
        may_share: what the policy says, for a principal and a group's name.

    """

    def __init__(
        self,
        members: Mapping[str, frozenset[str]],
        subject_tenants: frozenset[str],
        may_share: Callable[[Principal, str], Decision],
    ) -> None:
        self._members = members
        self._subject_tenants = subject_tenants
        self._may_share = may_share

    def refusal(self, principal: Principal, group: str) -> SharingRefusal | None:
        """Why the principal may not use the group's namespace; `None` if it may."""
        if group not in self._members:
            return SharingRefusal.UNKNOWN_GROUP
        if principal.tenant not in self._members[group]:
            return SharingRefusal.NOT_A_MEMBER
        if principal.subject is not None and principal.tenant in self._subject_tenants:
            return SharingRefusal.DATA_SUBJECT
        if not self._may_share(principal, group).allowed:
            return SharingRefusal.POLICY_DENIED
        return None
