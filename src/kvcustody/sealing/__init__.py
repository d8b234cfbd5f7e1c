"""The sealed-block stage: one authenticated format for every tier beyond the host, and its keys."""

from kvcustody.sealing.block import BlockIdentity, DataKey, open_into, seal_into, sealed_size
from kvcustody.sealing.format import HEADER_BYTES, Header, OpenFailure
from kvcustody.sealing.keys import Keyring, NamespaceKeys, ServiceKey

__all__ = [
    "HEADER_BYTES",
    "BlockIdentity",
    "DataKey",
    "Header",
    "Keyring",
    "NamespaceKeys",
    "OpenFailure",
    "ServiceKey",
    "open_into",
    "seal_into",
    "sealed_size",
]
