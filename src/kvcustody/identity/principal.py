"""Who a request is for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a request acts for, as the gateway established it; nothing that a client wrote itself.

    Args:
        tenant: name of a tenant in custody.yaml.
        workload: what the tenant uses the service for, e.g. `default` or `support-bot`.
        subject: the data subject (a person) the request is about, if any.

    """

    tenant: str
    workload: str
    subject: str | None = None
