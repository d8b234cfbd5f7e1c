"""Check all that custody.yaml names, before minutes are spent on loading a model."""

import os
from contextlib import closing

from kvcustody.audit import check_writable
from kvcustody.config import Settings
from kvcustody.errors import ConfigurationError
from kvcustody.identity.opening import open_bearer
from kvcustody.sealing import ServiceKey
from kvcustody.wiring.keys import open_keys
from kvcustody.wiring.policy import load_decisions
from kvcustody.wiring.tier_stores import open_stores

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where vLLM keeps the host tier


def preflight(settings: Settings) -> None:
    """Check all that custody.yaml names, before minutes are spent on loading a model.

    Raises:
        ConfigurationError: something is wrong; its text says what and where.
        UnavailableError: the registry can't be reached.

    """
    load_decisions(settings)
    open_bearer(settings)
    with settings.places.blame("host", "bytes"):
        _check_shared_memory(settings.host.bytes)
    open_stores(settings)
    with settings.places.blame("audit", "path"):
        check_writable(settings.audit.path)
    with closing(open_keys(settings)) as keys:
        for purpose in ServiceKey:
            keys.keyring.service_key(purpose)


def _check_shared_memory(needed: int) -> None:
    """Check that the host tier fits where vLLM puts it; a container's default is 64 MiB."""
    try:
        status = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return  # vLLM will say what it misses
    size = status.f_blocks * status.f_frsize
    if needed > size:
        raise ConfigurationError(
            f"more than {_SHARED_MEMORY} holds ({size // 2**20} MiB); take less, or enlarge it "
            "(Docker: --shm-size)"
        )
