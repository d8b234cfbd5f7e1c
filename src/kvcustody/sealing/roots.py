"""Root keys: the current one wraps; it and those before it unwrap, until all is rewrapped."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvcustody.sealing.providers.base import KeyContext, KeyProvider, WrappedKeyError


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A key as the registry holds it.

    Args:
        root: identifier of the root key that wrapped it; `None` before that was recorded.
        ciphertext: what the provider made of it.

    """

    root: str | None
    ciphertext: bytes


class RootKeys:
    """Wraps with the current root key, and unwraps with that which wrapped.

    Args:
        current: provider of the root key in use.
        previous: providers of older root keys, which only unwrap.

    """

    def __init__(self, current: KeyProvider, previous: Sequence[KeyProvider] = ()) -> None:
        self._current = current
        self._previous = tuple(previous)

    @property
    def current(self) -> str:
        """Identifier of the current root key.

        Raises:
            CustodyError: the provider can't be reached or refuses.

        """
        return self._current.root

    def wrap(self, secret: bytes | bytearray, context: KeyContext) -> Wrapped:
        """Encrypt a key under the current root key; it unwraps only with the same context.

        Raises:
            CustodyError: the provider can't be reached or refuses.

        """
        return Wrapped(self._current.root, self._current.wrap(secret, context))

    def unwrap(self, wrapped: Wrapped, context: KeyContext) -> bytearray:
        """Decrypt a key with the root key that wrapped it.

        Raises:
            WrappedKeyError: no configured root key wrapped it, or it was altered.
            CustodyError: the provider can't be reached or refuses.

        """
        providers = (self._current, *self._previous)
        if wrapped.root is not None:
            providers = tuple(each for each in providers if each.root == wrapped.root)
        for provider in providers[:-1]:
            try:
                return provider.unwrap(wrapped.ciphertext, context)
            except WrappedKeyError:
                continue
        if not providers:
            raise WrappedKeyError(
                f"the registry's keys are wrapped by the root key {wrapped.root}, and custody.yaml "
                f"has {self._current.root}; correct `keys`, or list the other under keys.previous"
            )
        return providers[-1].unwrap(wrapped.ciphertext, context)

    def close(self) -> None:
        """Wipe the root keys from memory."""
        for provider in (self._current, *self._previous):
            provider.close()
