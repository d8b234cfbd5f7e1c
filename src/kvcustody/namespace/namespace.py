"""Namespaces: whose blocks of which model, and the keyed names that blocks have within one.

A namespace is a sharing scope × model revision × adapter × KV layout. Its identifier and the names
in it are keyed hashes: two namespaces never share a name, and a name on disk confirms neither a
guessed tenant nor a guessed prompt.
"""

import base64
import hmac
import unicodedata
from dataclasses import dataclass
from typing import Literal

from kvcustody.identity.principal import Principal

ScopeKind = Literal["tenant", "workload", "subject"]

NAMESPACE_ID_BYTES = 16
BLOCK_NAME_BYTES = 32

_SCOPE_DOMAIN = b"kvcustody/1 scope"
_GROUP_DOMAIN = b"kvcustody/1 sharing group"
_NAMESPACE_DOMAIN = b"kvcustody/1 namespace"
_SALT_DOMAIN = b"kvcustody/1 cache salt"


@dataclass(frozen=True, slots=True)
class Scope:
    """Within what a cache may be reused: a tenant, one of its workloads or data subjects, a group.

    Args:
        deployment: name of the deployment.
        tenant: name of the tenant; `None` for a sharing group.
        workload: set when the scope is one workload or one subject of it.
        subject: set when the scope is one data subject.
        group: name of the sharing group, whose tenants reuse each other's blocks.

    """

    deployment: str
    tenant: str | None
    workload: str | None = None
    subject: str | None = None
    group: str | None = None

    @classmethod
    def of(
        cls, principal: Principal, deployment: str, kind: ScopeKind, group: str | None = None
    ) -> "Scope":
        """The scope of a principal whose tenant shares within `kind`, or of a sharing group.

        A principal that names no subject shares with the others of its workload that name none.
        """
        if group is not None:
            return cls(deployment, None, group=group)
        return cls(
            deployment,
            principal.tenant,
            principal.workload if kind != "tenant" else None,
            principal.subject if kind == "subject" else None,
        )

    def encode(self) -> bytes:
        """The scope as unambiguous bytes: each field is tagged present or absent, with length."""
        if self.group is not None:
            return encode_fields(_GROUP_DOMAIN, self.deployment, self.group)
        return encode_fields(
            _SCOPE_DOMAIN, self.deployment, self.tenant, self.workload, self.subject
        )

    def cache_salt(self, key: bytes) -> str:
        """The salt that keeps the GPU prefix cache of this scope apart from all others.

        vLLM mixes it into the first block's hash, so the same prompt hashes differently in each
        scope (vllm/v1/core/kv_cache_utils.py, generate_block_hash_extra_keys).

        Args:
            key: the deployment's salt key, 32 bytes; without it the salt can't be guessed.

        Returns:
            43 characters of URL-safe base64, which vLLM's validate_cache_salt accepts.

        """
        digest = hmac.digest(key, _SALT_DOMAIN + self.encode(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A scope's blocks of one model revision in one KV layout.

    Args:
        scope: within what its blocks are shared.
        model_revision: fingerprint of the model, see `kvcustody.namespace.revision`.
        layout: hex digest of everything that decides what the bytes of a block mean.
        adapter: hex digest of the LoRA adapter's content; `None` for the model alone.

    """

    scope: Scope
    model_revision: str
    layout: str
    adapter: str | None = None

    def identifier(self, key: bytes) -> bytes:
        """The namespace's 16-byte identifier, keyed so that it reveals nothing of the fields.

        Args:
            key: the deployment's namespace key, 32 bytes.

        """
        adapter = () if self.adapter is None else (self.adapter,)
        encoded = encode_fields(
            _NAMESPACE_DOMAIN, self.scope.encode(), self.model_revision, self.layout, *adapter
        )
        return hmac.digest(key, encoded, "sha256")[:NAMESPACE_ID_BYTES]


def encode_fields(domain: bytes, *fields: str | bytes | None) -> bytes:
    """Fields as bytes that no other list of fields encodes to.

    Each field is a presence byte and, if present, its length (4 bytes, big-endian) and its bytes;
    text is NFC-normalised UTF-8, so look-alike encodings of one name are one name.
    """
    parts = [len(domain).to_bytes(4), domain, len(fields).to_bytes(4)]
    for field in fields:
        if field is None:
            parts.append(b"\0")
            continue
        raw = unicodedata.normalize("NFC", field).encode() if isinstance(field, str) else field
        parts += [b"\1", len(raw).to_bytes(4), raw]
    return b"".join(parts)
