"""What a tier store does: it keeps sealed blocks and knows nothing of tenants, keys or policy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Address:
    """Where a block lies.

    Args:
        namespace: 16 bytes.
        name: 32 bytes.

    """

    namespace: bytes
    name: bytes


class TierStore(Protocol):
    """Keeps sealed blocks by address. All methods may block and are called from worker threads.

    Every method raises `StoreError` when its I/O fails; a block that isn't there is no error.
    """

    def put(self, address: Address, sealed: memoryview) -> None:
        """Keep a sealed block; readers see all of it or none of it. Replaces an older one."""

    def get(self, address: Address, buffer: memoryview) -> int | None:
        """Read a sealed block into `buffer`.

        Returns:
            Bytes read, at most `len(buffer)` (a longer block is cut there); `None` without a block.

        """

    def exists(self, address: Address) -> bool:
        """Whether a block lies at the address."""

    def delete(self, address: Address) -> bool:
        """Remove a block; whether there was one."""

    def addresses(self) -> Iterator[Address]:
        """All blocks, in no order; those put or deleted meanwhile may or may not be among them."""
