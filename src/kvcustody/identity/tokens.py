"""API keys: what a caller shows to the gateway; the registry keeps digests only."""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import Row, insert, select, update

from kvcustody.identity.principal import Principal
from kvcustody.registry import Registry
from kvcustody.registry.schema import api_keys

_PREFIX = "kvc"
_ID_BYTES = 6
# 256 random bits: nothing to guess, so a plain hash protects them as well as a slow one would.
_SECRET_BYTES = 32
_FORM = re.compile(rf"{_PREFIX}_([0-9a-f]{{{2 * _ID_BYTES}}})_([A-Za-z0-9_-]{{43}})", re.ASCII)
# Compared with when the id is unknown, so that an unknown id costs what a wrong secret costs.
_NO_DIGEST = bytes(hashlib.sha256().digest_size)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of an API key, without its secret.

    Args:
        id: public part of the key; may be logged.
        principal: whom it proves.
        created: seconds since 1970.
        expires: seconds since 1970; `None` is never.
        revoked: seconds since 1970; `None` is not revoked.
        admin: whether it opens the server's administrative routes.
        group: the sharing group that it asks for.
        last_used: seconds since 1970, to the minute; `None` is never.

    """

    id: str
    principal: Principal
    created: float
    expires: float | None
    revoked: float | None
    admin: bool
    group: str | None
    last_used: float | None


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key; the only time that its text exists here."""

    record: ApiKey
    key: str = field(repr=False)


class KeyStore:
    """The API keys in the registry.

    Args:
        registry: where digests are kept.
        clock: seconds since 1970.

    """

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.time) -> None:
        self._registry = registry
        self._clock = clock

    def mint(
        self,
        principal: Principal,
        *,
        expires: float | None,
        admin: bool = False,
        group: str | None = None,
    ) -> MintedKey:
        """Make a key for a principal.

        Args:
            principal: whom the key proves.
            expires: end of its life, seconds since 1970; `None` is never.
            admin: whether the key opens the server's administrative routes.
            group: the sharing group that requests with the key ask for.

        Raises:
            UnavailableError: the registry can't be reached.

        """
        key_id = secrets.token_hex(_ID_BYTES)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        record = ApiKey(
            key_id,
            principal,
            created=self._clock(),
            expires=expires,
            revoked=None,
            admin=admin,
            group=group,
            last_used=None,
        )
        with self._registry.write() as connection:
            connection.execute(
                insert(api_keys).values(
                    id=key_id,
                    digest=_digest(secret),
                    tenant=principal.tenant,
                    workload=principal.workload,
                    subject=principal.subject,
                    created=record.created,
                    expires=expires,
                    admin=admin,
                    sharing_group=group,
                )
            )
        return MintedKey(record, f"{_PREFIX}_{key_id}_{secret}")

    def authenticate(self, presented: str) -> ApiKey | None:
        """The key that a caller presented, if it is genuine, not expired and not revoked.

        Raises:
            UnavailableError: the registry can't be reached.

        """
        parts = _FORM.fullmatch(presented)
        if parts is None:
            return None
        key_id, secret = parts.groups()
        with self._registry.read() as connection:
            row = connection.execute(select(api_keys).where(api_keys.c.id == key_id)).first()
        genuine = hmac.compare_digest(row.digest if row else _NO_DIGEST, _digest(secret))
        if row is None or not genuine or row.revoked is not None:
            return None
        if row.expires is not None and row.expires <= self._clock():
            return None
        return _record(row)

    def revoke(self, key_id: str) -> bool:
        """Make a key useless at once; whether there was such a valid key.

        Raises:
            UnavailableError: the registry can't be reached.

        """
        with self._registry.write() as connection:
            result = connection.execute(
                update(api_keys)
                .where(api_keys.c.id == key_id, api_keys.c.revoked.is_(None))
                .values(revoked=self._clock())
            )
        return result.rowcount == 1

    def list(self) -> list[ApiKey]:
        """All keys, oldest first.

        Raises:
            UnavailableError: the registry can't be reached.

        """
        with self._registry.read() as connection:
            rows = connection.execute(select(api_keys).order_by(api_keys.c.created)).all()
        return [_record(row) for row in rows]


def key_id_of(presented: str) -> str | None:
    """The public id in what a caller presented; `None` if it hasn't the form of a key."""
    parts = _FORM.fullmatch(presented)
    return parts.group(1) if parts else None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _record(row: Row[tuple[object, ...]]) -> ApiKey:
    principal = Principal(row.tenant, row.workload, row.subject)
    return ApiKey(
        row.id,
        principal,
        created=row.created,
        expires=row.expires,
        revoked=row.revoked,
        admin=row.admin is True,
        group=row.sharing_group,
        last_used=row.last_used,
    )
