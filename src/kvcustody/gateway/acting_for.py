"""What a request says of itself beyond its credential: the data subject, and a sharing group."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kvcustody.config import TenantSettings
from kvcustody.gateway.replies import Refused
from kvcustody.identity.caller import Caller
from kvcustody.identity.principal import Principal, is_canonical

SUBJECT_HEADER = b"x-custody-subject"
SHARE_HEADER = b"x-custody-share"

Headers = Sequence[tuple[bytes, bytes]]

_ANY_WORKLOAD = "*"
# Where clients of OpenAI name the person they ask for, the newer field first.
_SUBJECT_FIELDS = ("safety_identifier", "user")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request's headers ask for.

    Args:
        subject: the data subject that the request is about.
        group: the sharing group whose namespace it would use.

    """

    subject: str | None
    group: str | None


def read_headers(headers: Headers) -> Asked:
    """What the headers ask for.

    Raises:
        Refused: a header is there twice, or is not text.

    """
    return Asked(_read(headers, SUBJECT_HEADER), _read(headers, SHARE_HEADER))


def principal_of(
    caller: Caller, tenant: TenantSettings, asked: Asked, fields: Mapping[str, Any]
) -> Principal:
    """For whom a request is: the caller's principal, with the data subject that it may name.

    A header goes before the body's field. The body's fields count only for workloads that may act
    for subjects; others use them for purposes of their own.

    Args:
        caller: who asks.
        tenant: the caller's tenant.
        asked: what the headers say.
        fields: the body.

    Raises:
        Refused: the caller may not act for the subject.

    """
    own = caller.principal
    may_name = not {_ANY_WORKLOAD, own.workload}.isdisjoint(tenant.act_for_subjects)
    named = asked.subject
    if named is None and may_name:
        named = _named_in_body(fields)
    if named is None or named == own.subject:
        return own
    if not may_name or own.subject is not None:
        raise Refused(
            HTTPStatus.FORBIDDEN,
            "subject_not_allowed",
            "This credential may not act for the data subject that the request names.",
        )
    return Principal(own.tenant, own.workload, named)


def _named_in_body(fields: Mapping[str, Any]) -> str | None:
    metadata = fields.get("metadata")
    values = [fields.get(name) for name in _SUBJECT_FIELDS]
    if isinstance(metadata, dict):
        values.append(metadata.get("user_id"))  # Anthropic's
    named = next((value for value in values if isinstance(value, str) and value), None)
    return None if named is None else _canonical(named)


def _read(headers: Headers, wanted: bytes) -> str | None:
    values = [value for name, value in headers if name.lower() == wanted]
    if not values:
        return None
    try:
        (value,) = values
        return _canonical(value.decode("utf-8"))
    except ValueError:
        raise _unreadable(wanted.decode()) from None


def _canonical(name: str) -> str:
    name = unicodedata.normalize("NFC", name.strip())
    if not is_canonical(name):
        raise _unreadable("The data subject")
    return name


def _unreadable(what: str) -> Refused:
    return Refused(
        HTTPStatus.BAD_REQUEST,
        "invalid_name",
        f"{what} must be given once, as 1 to 256 printable characters.",
    )
