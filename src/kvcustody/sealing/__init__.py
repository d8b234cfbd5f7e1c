"""The sealed-block stage: one authenticated format for every tier beyond the host, and its keys."""

from kvcustody.sealing.block import BlockIdentity, open_into, seal_into, sealed_size
from kvcustody.sealing.format import HEADER_BYTES, Header, OpenFailure
from kvcustody.sealing.key_rows import KeyChange
from kvcustody.sealing.key_table import KeyTable, ServiceKey
from kvcustody.sealing.keyring import Keyring
from kvcustody.sealing.maintenance import KeyMaintenance
from kvcustody.sealing.namespace_keys import Epochs, NamespaceKeys
from kvcustody.sealing.roots import RootKeys
from kvcustody.sealing.secret import DataKey, SecretKey

__all__ = [
    "HEADER_BYTES",
    "BlockIdentity",
    "DataKey",
    "Epochs",
    "Header",
    "KeyChange",
    "KeyMaintenance",
    "KeyTable",
    "Keyring",
    "NamespaceKeys",
    "OpenFailure",
    "RootKeys",
    "SecretKey",
    "ServiceKey",
    "open_into",
    "seal_into",
    "sealed_size",
]
