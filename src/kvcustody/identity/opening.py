"""Make what verifies bearer tokens from custody.yaml."""

from kvcustody.config import Settings
from kvcustody.errors import ConfigurationError, UnavailableError
from kvcustody.identity.jwks import KeySet, parse_key_set
from kvcustody.identity.jwks_source import fetch_from
from kvcustody.identity.jwt_bearer import ClaimNames, JwtBearer, JwtRules


def open_bearer(settings: Settings) -> JwtBearer | None:
    """What verifies bearer tokens; `None` if custody.yaml takes none.

    A provider that is away now is no mistake: its keys are fetched when they are needed.

    Raises:
        ConfigurationError: the key set's place is none, or its file holds no key set.

    """
    jwt = settings.identity.jwt
    if jwt is None:
        return None
    with settings.places.blame("identity", "jwt", "jwks"):
        fetch = fetch_from(jwt.jwks)
        if "://" not in jwt.jwks:
            try:
                keys = parse_key_set(fetch())
            except UnavailableError as error:
                raise ConfigurationError(str(error)) from None
            if not keys:
                raise ConfigurationError("the key set has no keys")
    names = jwt.claims
    rules = JwtRules(
        issuer=jwt.issuer,
        audience=jwt.audience,
        algorithms=frozenset(jwt.algorithms),
        claims=ClaimNames(
            tenant=names.tenant,
            workload=names.workload,
            subject=names.subject,
            group=names.group,
            admin=names.admin,
        ),
        tenants=jwt.tenants,
        leeway=jwt.leeway,
    )
    return JwtBearer(rules, KeySet(fetch))
