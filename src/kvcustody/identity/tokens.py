"""API keys: what a caller shows to the gateway; the registry keeps digests only."""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy import Float, Row, bindparam, insert, or_, select, update

from kvcustody.identity.caller import AuthenticationFailure, Rejection
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
_FAILURES: Mapping[str, AuthenticationFailure] = {
    "expired": AuthenticationFailure.EXPIRED_KEY,
    "revoked": AuthenticationFailure.REVOKED_KEY,
}


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
        group: the sharing group whose namespace its requests ask for.
        last_used: seconds since 1970, behind by a minute or so; `None` is never.

    """

    id: str
    principal: Principal
    created: float
    expires: float | None
    revoked: float | None
    admin: bool = False
    group: str | None = None
    last_used: float | None = None

    def state(self, now: float) -> Literal["valid", "expired", "revoked"]:
        """What the key is good for.

        Args:
            now: seconds since 1970.

        """
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"


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
            admin: whether it opens the server's administrative routes.
            group: the sharing group whose namespace its requests ask for.

        Raises:
            UnavailableError: the registry can't be reached.

        """
        key_id = secrets.token_hex(_ID_BYTES)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        record = ApiKey(key_id, principal, self._clock(), expires, None, admin, group)
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

    def authenticate(self, presented: str) -> ApiKey | Rejection:
        """The key that a caller presented, or why it proves nothing.

        Only who knows its secret learns that a key has expired or is revoked.

        Raises:
            UnavailableError: the registry can't be reached.

        """
        parts = _FORM.fullmatch(presented)
        if parts is None:
            return Rejection(AuthenticationFailure.INVALID_KEY)
        key_id, secret = parts.groups()
        with self._registry.read() as connection:
            row = connection.execute(select(api_keys).where(api_keys.c.id == key_id)).first()
        genuine = hmac.compare_digest(row.digest if row else _NO_DIGEST, _digest(secret))
        if row is None or not genuine:
            return Rejection(AuthenticationFailure.INVALID_KEY, key_id)
        record = _record(row)
        state = record.state(self._clock())
        return record if state == "valid" else Rejection(_FAILURES[state], key_id)

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

    def note_use(self, times: Mapping[str, float]) -> None:
        """Note when keys were used; an earlier time than the one known changes nothing.

        Args:
            times: seconds since 1970, by the key's id.

        Raises:
            UnavailableError: the registry can't be reached.

        """
        used = bindparam("used", type_=Float)
        statement = (
            update(api_keys)
            .where(
                api_keys.c.id == bindparam("key_id"),
                or_(api_keys.c.last_used.is_(None), api_keys.c.last_used < used),
            )
            .values(last_used=used)
        )
        # In one order everywhere, so that two gateways don't lock each other's next row.
        rows = [{"key_id": key_id, "used": times[key_id]} for key_id in sorted(times)]
        with self._registry.write() as connection:
            connection.execute(statement, rows)

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
        row.created,
        row.expires,
        row.revoked,
        bool(row.admin),
        row.sharing_group,
        row.last_used,
    )
