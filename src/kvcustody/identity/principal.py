"""Who a request is for."""

import unicodedata
from dataclasses import dataclass

_MOST_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a request acts for, as the gateway established it; nothing that a client wrote itself.

    Args:
        tenant: name of a tenant in custody.yaml.
        workload: what the tenant uses the service for, e.g. `default` or `support-bot`.
        subject: the data subject (a person) the request is about, if any.

    Raises:
        ValueError: a name is empty, longer than 256 characters, not in Unicode's normal form C, or
            holds what can't be seen; such a name could pass for another.

    """

    tenant: str
    workload: str
    subject: str | None = None

    def __post_init__(self) -> None:
        for name in (self.tenant, self.workload, self.subject):
            if name is not None and not is_canonical(name):
                raise ValueError("a name of a principal is not canonical")


def is_canonical(name: str) -> bool:
    """Whether a name has one spelling only: NFC, printable, 1 to 256 characters."""
    return (
        0 < len(name) <= _MOST_CHARACTERS
        and name.isprintable()
        and unicodedata.is_normalized("NFC", name)
    )
