"""What a key provider does."""

from typing import Protocol

from kvcustody.errors import CustodyError


class WrappedKeyError(CustodyError):
    """A wrapped key doesn't unwrap: another root key wrapped it, or it was altered."""


class KeyProvider(Protocol):
    """Wraps and unwraps 32-byte keys under a root key that never leaves it."""

    def wrap(self, secret: bytes, context: bytes) -> bytes:
        """Encrypt a key so that it unwraps only with the same context.

        Raises:
            UnavailableError: the provider can't be reached.

        """

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Decrypt a wrapped key.

        Raises:
            WrappedKeyError: wrong root key, wrong context, or altered.
            UnavailableError: the provider can't be reached.

        """
