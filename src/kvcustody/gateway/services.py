"""What the gateway works with; `kvcustody.wiring` makes it from custody.yaml."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvcustody.admission import Salts
from kvcustody.audit import AuditLog
from kvcustody.config import TenantSettings
from kvcustody.gateway.response_ids import ResponseIds
from kvcustody.identity.assertion import AssertionSigner
from kvcustody.identity.authenticator import Authenticator
from kvcustody.identity.principal import Principal
from kvcustody.identity.salt_ticket import SaltTickets
from kvcustody.policy import Sharing


@dataclass(frozen=True, slots=True)
class ClientParameters:
    """What becomes of a client's own words on caches.

    Args:
        refused: whether they end the request, instead of being taken out.
        allowed: names of transfer parameters that a client may set all the same.

    """

    refused: bool
    allowed: frozenset[str]


@dataclass(frozen=True)
class GatewayServices:
    """The gateway's collaborators.

    Args:
        authenticator: finds out who presents a credential.
        signer: signs assertions for the connector.
        tickets: issues salt tickets, where no assertion can travel.
        salts: the cache salt of a principal or sharing group.
        sharing: who may use a sharing group's namespace.
        response_ids: ids of stored responses, and whose they are.
        client_parameters: what becomes of a client's own words on caches.
        audit: the gateway's audit stream.
        anonymous: whom callers without a key are taken for; `None` refuses them.
        tenants: the tenants of custody.yaml.
        close: ends threads and the audit stream, and closes the registry.

    """

    authenticator: Authenticator
    signer: AssertionSigner
    tickets: SaltTickets
    salts: Salts
    sharing: Sharing
    response_ids: ResponseIds
    client_parameters: ClientParameters
    audit: AuditLog
    anonymous: Principal | None
    tenants: Mapping[str, TenantSettings]
    close: Callable[[], None]
