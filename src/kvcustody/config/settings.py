"""The fields of custody.yaml: what each means, what it may hold, and its default."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    Discriminator,
    Field,
    PrivateAttr,
    StringConstraints,
    Tag,
    ValidationInfo,
    field_serializer,
    field_validator,
)

from kvcustody.config.authorization import AuthorizationSettings
from kvcustody.config.identity import IdentitySettings
from kvcustody.config.places import Location, Places
from kvcustody.config.section import Name, Section
from kvcustody.config.values import CLASSIFICATIONS, NAME_PATTERN, ByteSize, Duration, Fraction

PROVIDERS = ("local", "aws-kms", "pkcs11")
"""Kinds of key providers."""

WorkloadPattern = Annotated[str, StringConstraints(pattern=f"^({NAME_PATTERN}|[*])$", strict=True)]
"""A workload's name, or `*` for all."""

RegionPattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9*?._-]{1,63}$", strict=True)]
"""A region's name, or a pattern of names."""

_SQLITE = "sqlite:///"
_PASSWORD = re.compile(r"(?<=://)([^:/]*):.*@")


class OwnerSettings(Section):
    """The named operating owner, shown in reports."""

    name: str = "unnamed"
    contact: str = ""


class ModelSettings(Section):
    """Which model revision the cache belongs to: `auto` fingerprints the model's files."""

    revision: Annotated[str, Field(min_length=1, max_length=128)] = "auto"


class LocalRoot(Section):
    """A root key in a file that only its owner may read, encrypted or not."""

    provider: Literal["local"] = "local"
    path: Path
    # The passphrase of an encrypted key file. Not in the environment: others can read that.
    passphrase_file: Path | None = None


class AwsKmsRoot(Section):
    """A root key that never leaves AWS KMS; credentials come from where boto3 finds them."""

    provider: Literal["aws-kms"]
    key_id: Annotated[str, Field(min_length=1, max_length=2048)]
    region: str | None = None
    endpoint: str | None = None
    # Grants that AWS has not spread to all of its servers yet.
    grant_tokens: list[str] = Field(default_factory=list)


class Pkcs11Root(Section):
    """A root key that never leaves a hardware security module."""

    provider: Literal["pkcs11"]
    module: Path
    token: Annotated[str, Field(min_length=1, max_length=32)]
    label: Annotated[str, Field(min_length=1, max_length=64)] = "kvcustody"
    pin_file: Path


def _provider_of(keys: object) -> object:
    if isinstance(keys, dict):
        provider = keys.get("provider", "local")
        return provider if isinstance(provider, str) else None
    return getattr(keys, "provider", "local")


_BY_PROVIDER = Discriminator(
    _provider_of,
    custom_error_type="unknown_provider",
    custom_error_message=f"unknown provider; write {', '.join(PROVIDERS[:-1])} or {PROVIDERS[-1]}",
)
RootSettings = Annotated[
    Annotated[LocalRoot, Tag("local")]
    | Annotated[AwsKmsRoot, Tag("aws-kms")]
    | Annotated[Pkcs11Root, Tag("pkcs11")],
    _BY_PROVIDER,
]
"""Where a root key is."""


class _KeyLife(Section):
    """How long keys are used, whatever provider holds the root key."""

    rotate_every: Duration = 7 * 86400.0
    # How long keys go on working from memory when the provider doesn't answer, or denies.
    cached_for: Duration = 3600.0
    # Root keys that may still unwrap, until `kvcustody keys rewrap` is done.
    previous: list[RootSettings] = Field(default_factory=list)


class LocalKeys(LocalRoot, _KeyLife):
    """`keys` with a local root key."""


class AwsKmsKeys(AwsKmsRoot, _KeyLife):
    """`keys` with a root key in AWS KMS."""


class Pkcs11Keys(Pkcs11Root, _KeyLife):
    """`keys` with a root key in a hardware security module."""


KeySettings = Annotated[
    Annotated[LocalKeys, Tag("local")]
    | Annotated[AwsKmsKeys, Tag("aws-kms")]
    | Annotated[Pkcs11Keys, Tag("pkcs11")],
    _BY_PROVIDER,
]
"""Where the root key is, and how long the keys below it are used."""


class _GovernedPlace(Section):
    """What policies may ask of a tier."""

    # The operator's words for it; rules name them label:WORD.
    labels: list[Name] = Field(default_factory=list)
    # The most sensitive level of `classifications` that may lie here; all may if it isn't given.
    clearance: Name | None = None
    region: Name | None = None


class HostSettings(_GovernedPlace):
    """The host-memory tier, through which everything passes."""

    bytes: ByteSize = 8 * 2**30


class TierSettings(_GovernedPlace):
    """A tier beyond host memory. Tiers are looked up in the order in which they are listed."""

    name: Name
    kind: Literal["filesystem"] = "filesystem"
    path: Path
    ttl: Duration = 86400.0
    min_free: Fraction = 0.05


class TenantSettings(Section):
    """A tenant: what its cache is shared within, and how long its blocks live at most."""

    scope: Literal["tenant", "workload", "subject"] = "tenant"
    ttl: Duration | None = None
    # Its level of `classifications`; the most sensitive if it isn't given.
    classification: Name | None = None
    # Patterns of the regions where its data may lie, such as eu-*; anywhere if there are none.
    residency: list[RegionPattern] = Field(default_factory=list)
    # Workloads whose requests may name the data subject they are about; `*` is all.
    act_for_subjects: list[WorkloadPattern] = Field(default_factory=list)


class SharingSettings(Section):
    """Tenants that may use one cache together, where the policy lets them `share`."""

    group: Name
    tenants: Annotated[list[Name], Field(min_length=1)]


class AuditSettings(Section):
    """The audit trail; while it can't be written, `block` stops offloading, `continue` doesn't."""

    path: Path
    on_failure: Literal["block", "continue"] = "block"
    checkpoint_every: Annotated[Duration, Field(le=3600.0)] = 10.0


class FailureSettings(Section):
    """How long a tier may take before its answer counts as a miss."""

    # Beyond a minute, recomputing is faster for any prompt.
    load_deadline: Annotated[Duration, Field(le=60.0)] = 2.0
    lookup_deadline: Annotated[Duration, Field(le=10.0)] = 0.2


class Settings(Section):
    """All of custody.yaml."""

    version: Literal[1]
    deployment: Name
    owner: OwnerSettings = OwnerSettings()
    model: ModelSettings = ModelSettings()
    state: Path
    # May hold a password; see `_leave_out_password`.
    registry: Annotated[str | None, Field(repr=False)] = None
    keys: KeySettings
    identity: IdentitySettings = IdentitySettings()
    host: HostSettings = HostSettings()
    # Levels of data, the least sensitive first.
    classifications: list[Name] = Field(default=list(CLASSIFICATIONS), min_length=1)
    tiers: list[TierSettings] = Field(min_length=1)
    tenants: dict[Name, TenantSettings] = Field(min_length=1)
    sharing: list[SharingSettings] = Field(default_factory=list)
    authorization: AuthorizationSettings
    audit: AuditSettings
    failure: FailureSettings = FailureSettings()
    _places: Places = PrivateAttr(default_factory=Places)

    @property
    def places(self) -> Places:
        """Where the fields stand."""
        return self._places

    def read_from(self, places: Places) -> Self:
        """These settings, with their places."""
        self._places = places
        return self

    @property
    def registry_url(self) -> str:
        """URL of the registry; a SQLite file below `state` unless configured."""
        if self.registry is None:
            return f"sqlite:///{self.state / 'registry.sqlite'}"
        path = self.registry.removeprefix(_SQLITE)
        if path == self.registry or self.places.file is None:
            return self.registry
        return f"{_SQLITE}{self.places.file.parent / path}"

    @field_serializer("registry")
    def _leave_out_password(self, url: str | None) -> str | None:
        """The audit trail has a digest of the settings; it must not help to guess a password."""
        return url and _PASSWORD.sub(r"\1@", url)

    @field_validator("tiers")
    @classmethod
    def _check_tiers(cls, tiers: list[TierSettings]) -> list[TierSettings]:
        names = [tier.name for tier in tiers]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two tiers are named '{min(repeated)}'; give each its own name")
        if "host" in names:
            raise ValueError("'host' names the host-memory tier; choose another name for this tier")
        paths = [tier.path for tier in tiers]
        if shared := {str(path) for path in paths if paths.count(path) > 1}:
            raise ValueError(f"two tiers lie in {min(shared)}; give each its own folder")
        return tiers

    @field_validator("classifications")
    @classmethod
    def _check_levels(cls, levels: list[str]) -> list[str]:
        if repeated := {level for level in levels if levels.count(level) > 1}:
            raise ValueError(f"'{min(repeated)}' is there twice; name each level once")
        return levels

    @field_validator("sharing")
    @classmethod
    def _check_groups(
        cls, sharing: list[SharingSettings], info: ValidationInfo
    ) -> list[SharingSettings]:
        groups = [entry.group for entry in sharing]
        if repeated := {name for name in groups if groups.count(name) > 1}:
            raise ValueError(f"two groups are named '{min(repeated)}'; give each its own name")
        tiers = {"host", *(tier.name for tier in info.data.get("tiers", ()))}
        if taken := tiers.intersection(groups):
            raise ValueError(f"'{min(taken)}' names a tier; choose another name for the group")
        tenants = info.data.get("tenants")
        members = {name for entry in sharing for name in entry.tenants}
        if tenants is not None and (unknown := members - tenants.keys()):
            raise ValueError(f"'{min(unknown)}' is no tenant; `tenants` has {', '.join(tenants)}")
        return sharing

    def unknown_name(self) -> tuple[Location, str] | None:
        """A name that one section has and the section that should declare it lacks, if any.

        Returns:
            Where it stands, and what is wrong with it.

        """
        for place, tenant in self._named_tenants():
            if tenant not in self.tenants:
                allowed = "deny or one" if place[-1] == "anonymous" else "one"
                return place, f"unknown tenant '{tenant}'; write {allowed} of the tenants"
        for place, level in self._named_levels():
            if level is not None and level not in self.classifications:
                levels = ", ".join(self.classifications)
                return place, f"unknown level '{level}'; `classifications` has {levels}"
        return None

    def _named_tenants(self) -> Iterator[tuple[Location, str]]:
        for place, tenant in self.identity.named_tenants():
            yield ("identity", *place), tenant
        for index, tenant in enumerate(self.authorization.audit_only):
            yield ("authorization", "audit_only", index), tenant

    def _named_levels(self) -> Iterator[tuple[Location, str | None]]:
        yield ("host", "clearance"), self.host.clearance
        for index, tier in enumerate(self.tiers):
            yield ("tiers", index, "clearance"), tier.clearance
        for name, tenant in self.tenants.items():
            yield ("tenants", name, "classification"), tenant.classification
