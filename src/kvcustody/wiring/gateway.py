"""Wire the gateway's side."""

import time
from collections.abc import Callable

from kvcustody.admission import Salts
from kvcustody.config import Settings
from kvcustody.gateway.response_ids import ResponseIds
from kvcustody.gateway.services import ClientParameters, GatewayServices
from kvcustody.identity.assertion import AssertionSigner
from kvcustody.identity.authenticator import Authenticator
from kvcustody.identity.key_usage import KeyUsage
from kvcustody.identity.opening import open_bearer
from kvcustody.identity.principal import Principal
from kvcustody.identity.salt_ticket import SaltTickets
from kvcustody.identity.tokens import KeyStore
from kvcustody.sealing import ServiceKey
from kvcustody.wiring.keys import open_keys
from kvcustody.wiring.policy import LivePolicy, load_sharing
from kvcustody.wiring.trail import open_audit

ANONYMOUS_WORKLOAD = "anonymous"
"""Workload of callers without a key, where custody.yaml maps them to a tenant."""


def build_gateway(
    settings: Settings, clock: Callable[[], float] = time.monotonic
) -> GatewayServices:
    """Wire the gateway's side: authentication, assertions and salts.

    Args:
        settings: custody.yaml.
        clock: monotonic seconds, for what is remembered of credentials.

    Raises:
        ConfigurationError: custody.yaml, or a file that it names, is wrong.
        UnavailableError: the registry can't be reached.

    """
    policy = LivePolicy(settings)
    bearer = open_bearer(settings)
    keys = open_keys(settings)
    audit = open_audit(settings, keys.keyring, "gateway", policy.in_force)
    key_store = KeyStore(keys.registry)
    usage = KeyUsage(key_store)
    anonymous = settings.identity.anonymous

    assertion_key = keys.keyring.service_key(ServiceKey.ASSERTION)
    assertion_ttl = settings.identity.assertion_ttl

    def close() -> None:
        policy.close()
        usage.close()
        audit.close()
        keys.close()

    usage.start()
    policy.watch(audit)
    return GatewayServices(
        authenticator=Authenticator(key_store, usage, bearer, settings.tenants, clock=clock),
        signer=AssertionSigner(assertion_key, settings.deployment, assertion_ttl),
        tickets=SaltTickets(assertion_key, assertion_ttl),
        salts=Salts(
            settings.tenants, settings.deployment, keys.keyring.service_key(ServiceKey.CACHE_SALT)
        ),
        sharing=load_sharing(settings, policy.in_force),
        response_ids=ResponseIds(keys.keyring.service_key(ServiceKey.RESPONSE_IDS)),
        client_parameters=ClientParameters(
            refused=settings.identity.client_parameters == "refuse",
            allowed=frozenset(settings.identity.allowed_parameters),
        ),
        audit=audit,
        anonymous=None if anonymous == "deny" else Principal(anonymous, ANONYMOUS_WORKLOAD),
        tenants=settings.tenants,
        close=close,
    )
