"""The store stage: where sealed blocks lie."""

from kvcustody.stores.base import Address, TierStore
from kvcustody.stores.filesystem import FilesystemStore

__all__ = ["Address", "FilesystemStore", "TierStore"]
