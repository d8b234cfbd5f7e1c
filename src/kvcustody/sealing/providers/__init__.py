"""Key providers: each holds a root key and wraps other keys with it."""

from kvcustody.sealing.providers.base import KeyContext, KeyProvider, WrappedKeyError
from kvcustody.sealing.providers.deadline import DeadlineProvider
from kvcustody.sealing.providers.key_file import create_key_file
from kvcustody.sealing.providers.local import LocalKeyProvider
from kvcustody.sealing.providers.opening import blamed_field, create_root, open_provider

__all__ = [
    "DeadlineProvider",
    "KeyContext",
    "KeyProvider",
    "LocalKeyProvider",
    "WrappedKeyError",
    "blamed_field",
    "create_key_file",
    "create_root",
    "open_provider",
]
