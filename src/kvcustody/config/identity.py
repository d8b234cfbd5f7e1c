"""The section `identity` of custody.yaml: how callers are identified."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from kvcustody.config.places import Location
from kvcustody.config.section import BASE_DIRECTORY, Name, Section, resolve
from kvcustody.config.values import Duration

_FILE = "file:"

ClaimName = Annotated[str, Field(min_length=1, max_length=256)]
"""A claim of a token, or a dotted path to one."""
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
"""A signature that only the issuer can make."""


class ClaimSettings(Section):
    """Which claims of a token say for whom it is."""

    tenant: ClaimName
    workload: ClaimName
    subject: ClaimName | None = None
    group: ClaimName | None = None
    # Only `true` itself makes an administrator.
    admin: ClaimName | None = None


class JwtSettings(Section):
    """Bearer tokens of an identity provider."""

    issuer: Annotated[str, Field(min_length=1, max_length=2048)]
    audience: Annotated[str, Field(min_length=1, max_length=2048)]
    # The path of a file, or a URL.
    jwks: Annotated[str, Field(min_length=1, max_length=2048)]
    algorithms: Annotated[list[Algorithm], Field(min_length=1)]
    claims: ClaimSettings
    # Tenants by the claim's value, where it isn't the tenant's name.
    tenants: dict[str, Name] | None = None
    # How far the clocks of the provider and of this host may differ.
    leeway: Annotated[Duration, Field(le=300.0)] = 30.0

    @field_validator("jwks")
    @classmethod
    def _resolve_file(cls, place: str, info: ValidationInfo) -> str:
        if place.startswith(_FILE):
            path = place.removeprefix(_FILE)
            # file:PATH, file:///PATH and file://localhost/PATH (RFC 8089).
            path = path.removeprefix("//localhost").removeprefix("//")
        elif "://" in place:
            return place
        else:
            path = place
        base = (info.context or {}).get(BASE_DIRECTORY)
        return path if base is None else str(resolve(base, path))


class IdentitySettings(Section):
    """How callers are identified; `anonymous` is `deny` or the tenant for callers without a key."""

    anonymous: Name = "deny"
    # How long a request may wait for the engine; also how long a leaked assertion is any good.
    assertion_ttl: Annotated[Duration, Field(le=3600.0)] = 60.0
    # What becomes of a request whose client says itself whose cache it uses, or from where.
    client_parameters: Literal["remove", "refuse"] = "remove"
    # Transfer parameters that a client may set all the same; they choose nobody's cache.
    allowed_parameters: list[Literal["max_load_tokens"]] = Field(default_factory=list)
    jwt: JwtSettings | None = None

    def named_tenants(self) -> Iterator[tuple[Location, str]]:
        """Tenants that this section names, and where; they must be among `tenants`."""
        if self.anonymous != "deny":
            yield ("anonymous",), self.anonymous
        if self.jwt is not None:
            for claim, tenant in (self.jwt.tenants or {}).items():
                yield ("jwt", "tenants", claim), tenant
