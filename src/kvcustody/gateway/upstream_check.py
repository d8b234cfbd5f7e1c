"""What can be told of the server behind before the first request, from outside."""

import ipaddress

import httpx

from kvcustody.gateway.upstream import Upstream

_SECONDS = 5.0
# vLLM lists the connector's metrics, even before they have a value.
_CONNECTORS_METRICS = "kvcustody:"


def doubts_about(upstream: Upstream, transport: httpx.BaseTransport | None = None) -> list[str]:
    """What an operator should know; one line each, none if all looks well.

    A server that is still loading its model is no mistake, so nothing here ends the gateway.

    Args:
        upstream: the server behind.
        transport: reaches it; only tests give one.

    """
    doubts = []
    local = _is_local(upstream.url.host)
    if not local and upstream.tls is None:
        doubts.append("prompts and answers go to the server behind in clear text; use https")
    headers = {"authorization": f"Bearer {upstream.api_key}"} if upstream.api_key else {}
    with httpx.Client(
        base_url=upstream.url,
        headers=headers,
        verify=upstream.tls or True,
        trust_env=False,
        timeout=_SECONDS,
        transport=transport,
    ) as client:
        try:
            version = client.get("/version")
            metrics = client.get("/metrics")
        except httpx.HTTPError as error:
            doubts.append(f"the server behind is not reachable yet ({type(error).__name__})")
            return doubts
    if version.status_code != httpx.codes.OK:
        doubts.append(f"the server behind answers /version with {version.status_code}; is it vLLM?")
    elif _CONNECTORS_METRICS not in metrics.text:
        doubts.append(
            "the server behind shows no metrics of CustodyConnector; start it with the "
            "--kv-transfer-config that `kvcustody vllm-config` prints"
        )
    return doubts


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
