"""Who a request is for."""

import re
import unicodedata
from dataclasses import dataclass

_MOST_CHARACTERS = 256
# What Python calls printable and nobody sees: Unicode's Default_Ignorable_Code_Point
# (DerivedCoreProperties.txt), without format characters, which aren't printable.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)


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
    """Whether a name has one spelling only: NFC, all of it visible, 1 to 256 characters."""
    return (
        0 < len(name) <= _MOST_CHARACTERS
        and name.isprintable()
        and name == name.strip()
        and _INVISIBLE.search(name) is None
        and unicodedata.is_normalized("NFC", name)
    )
