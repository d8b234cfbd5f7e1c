"""What a key provider does."""

from dataclasses import dataclass
from typing import Protocol

from kvcustody.errors import CustodyError


class WrappedKeyError(CustodyError):
    """A wrapped key doesn't unwrap: another root key wrapped it, or it was altered."""


@dataclass(frozen=True, slots=True)
class KeyContext:
    """What a wrapped key is for; it unwraps only with the same context.

    Args:
        purpose: kind of key, e.g. `data key`.
        subject: which one, as text that is safe to show: identifiers, never names of people.

    """

    purpose: str
    subject: str

    def encode(self) -> bytes:
        """The context as bytes, for providers that authenticate bytes."""
        return f"kvcustody/1 {self.purpose} {self.subject}".encode()

    def fields(self) -> dict[str, str]:
        """The context as text fields, for providers that authenticate and log such."""
        return {"kvcustody-purpose": self.purpose, "kvcustody-subject": self.subject}


class KeyProvider(Protocol):
    """Wraps and unwraps 32-byte keys under a root key that never leaves it.

    Methods are called from worker threads, several at once.
    """

    @property
    def root(self) -> str:
        """Identifier of the root key: printable, at most 128 characters, no secret.

        Raises:
            UnavailableError: the provider can't be reached.
            ConfigurationError: the provider refuses, or has no such key.

        """

    def wrap(self, secret: bytes | bytearray, context: KeyContext) -> bytes:
        """Encrypt a key so that it unwraps only with the same context.

        Raises:
            UnavailableError: the provider can't be reached; trying again later may help.
            ConfigurationError: the provider refuses.

        """

    def unwrap(self, wrapped: bytes, context: KeyContext) -> bytearray:
        """Decrypt a wrapped key; the caller wipes what it gets.

        Raises:
            WrappedKeyError: wrong root key, wrong context, or altered.
            UnavailableError: the provider can't be reached; trying again later may help.
            ConfigurationError: the provider refuses.

        """

    def close(self) -> None:
        """Wipe the root key from memory, or end the session; nothing works afterwards."""
