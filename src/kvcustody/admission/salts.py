"""Which cache salt a request has: the gateway puts it in, the connector checks it."""

import secrets
from collections.abc import Mapping
from functools import lru_cache

from kvcustody.config import TenantSettings
from kvcustody.identity.principal import Principal
from kvcustody.namespace import Scope

# Some MB; a deployment with more data subjects than this derives again.
_MOST_SALTS = 16_384


def lacks_subject(tenant: TenantSettings, principal: Principal, group: str | None) -> bool:
    """Whether a request names no person, though its tenant keeps each person's cache apart.

    One cache for all who name none would mix persons' data where they can't be erased one by one.
    """
    return tenant.scope == "subject" and principal.subject is None and group is None


class Salts:
    """How the gateway finds the cache salt of a request; the connector checks the same.

    Args:
        tenants: the tenants of custody.yaml.
        deployment: name of the deployment.
        salt_key: the deployment's cache-salt key, 32 bytes.

    """

    def __init__(
        self, tenants: Mapping[str, TenantSettings], deployment: str, salt_key: bytes
    ) -> None:
        self._tenants = tenants
        self._deployment = deployment
        self._salt_key = salt_key
        # A method's own cache would keep this object, and its key, for ever.
        self._salt = lru_cache(_MOST_SALTS)(self._derive)

    def scope(self, principal: Principal, group: str | None = None) -> Scope:
        """Within what a request of the principal may share, or the sharing group that it uses."""
        kind = self._tenants[principal.tenant].scope
        return Scope.of(principal, self._deployment, kind, group)

    def __call__(self, principal: Principal, group: str | None = None) -> str:
        """The cache salt of a principal's scope, or of a sharing group.

        One that nobody else will have, if the principal names no data subject and must.
        """
        if lacks_subject(self._tenants[principal.tenant], principal, group):
            return secrets.token_urlsafe(32)
        return self._salt(principal, group)

    def _derive(self, principal: Principal, group: str | None) -> str:
        return self.scope(principal, group).cache_salt(self._salt_key)
