"""Open the stores of the tiers."""

from kvcustody.config import Settings
from kvcustody.stores import FilesystemStore


def open_stores(settings: Settings) -> list[FilesystemStore]:
    """Open the store of each tier.

    Raises:
        ConfigurationError: a tier's folder can't be used.

    """
    stores = []
    for index, tier in enumerate(settings.tiers):
        with settings.places.blame("tiers", index, "path"):
            stores.append(FilesystemStore(tier.path, min_free=tier.min_free))
    return stores
