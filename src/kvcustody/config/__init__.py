"""custody.yaml → frozen settings; the one place that validates configuration."""

from kvcustody.config.authorization import (
    AdapterArguments,
    AdapterSettings,
    Argument,
    AuthorizationSettings,
    SecretFile,
)
from kvcustody.config.connector import connector_config
from kvcustody.config.identity import ClaimSettings, IdentitySettings, JwtSettings
from kvcustody.config.loading import CONFIG_ENV, load_settings
from kvcustody.config.settings import (
    AuditSettings,
    AwsKmsRoot,
    FailureSettings,
    HostSettings,
    KeySettings,
    LocalKeys,
    LocalRoot,
    ModelSettings,
    OwnerSettings,
    Pkcs11Root,
    RootSettings,
    Settings,
    SharingSettings,
    TenantSettings,
    TierSettings,
)

__all__ = [
    "CONFIG_ENV",
    "AdapterArguments",
    "AdapterSettings",
    "Argument",
    "AuditSettings",
    "AuthorizationSettings",
    "AwsKmsRoot",
    "ClaimSettings",
    "FailureSettings",
    "HostSettings",
    "IdentitySettings",
    "JwtSettings",
    "KeySettings",
    "LocalKeys",
    "LocalRoot",
    "ModelSettings",
    "OwnerSettings",
    "Pkcs11Root",
    "RootSettings",
    "SecretFile",
    "Settings",
    "SharingSettings",
    "TenantSettings",
    "TierSettings",
    "connector_config",
    "load_settings",
]
