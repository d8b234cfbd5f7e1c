"""What the gateway works with; `kvcustody.wiring` makes it from custody.yaml."""

from collections.abc import Callable
from dataclasses import dataclass

from kvcustody.audit import AuditLog
from kvcustody.identity.assertion import AssertionSigner
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import KeyStore


@dataclass(frozen=True)
class GatewayServices:
    """The gateway's collaborators.

    Args:
        keys: authenticates API keys.
        signer: signs assertions for the connector.
        salts: the cache salt of a principal.
        audit: the gateway's audit stream.
        anonymous: whom callers without a key are taken for; `None` refuses them.
        tenants: names of the tenants in custody.yaml.
        close: ends the audit stream and closes the registry.

    """

    keys: KeyStore
    signer: AssertionSigner
    salts: Callable[[Principal], str]
    audit: AuditLog
    anonymous: Principal | None
    tenants: frozenset[str]
    close: Callable[[], None]
