"""custody.yaml → frozen settings; the one place that validates configuration."""

from kvcustody.config.loading import CONFIG_ENV, load_settings
from kvcustody.config.settings import (
    AuditSettings,
    AuthorizationSettings,
    FailureSettings,
    HostSettings,
    IdentitySettings,
    KeySettings,
    ModelSettings,
    OwnerSettings,
    Settings,
    TenantSettings,
    TierSettings,
)

__all__ = [
    "CONFIG_ENV",
    "AuditSettings",
    "AuthorizationSettings",
    "FailureSettings",
    "HostSettings",
    "IdentitySettings",
    "KeySettings",
    "ModelSettings",
    "OwnerSettings",
    "Settings",
    "TenantSettings",
    "TierSettings",
    "load_settings",
]
