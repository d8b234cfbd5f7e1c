"""Key providers: each holds a root key and wraps other keys with it."""

from kvcustody.sealing.providers.base import KeyContext, KeyProvider, WrappedKeyError
from kvcustody.sealing.providers.key_file import create_key_file
from kvcustody.sealing.providers.local import LocalKeyProvider

__all__ = ["KeyContext", "KeyProvider", "LocalKeyProvider", "WrappedKeyError", "create_key_file"]
