"""The server behind the reverse proxy: where it is, and how it is reached."""

import ssl
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import httpx

from kvcustody.errors import ConfigurationError
from kvcustody.gateway.replies import Refused

API_KEY_ENV = "KVCUSTODY_UPSTREAM_API_KEY"
"""Holds what vLLM was given as `--api-key`; an option would show in the list of processes."""

_URL_OPTION = "--upstream"
_CA_OPTION = "--upstream-ca"
# What RFC 3986 lets stand in a path as it is.
_PATH_CHARACTERS = "/:@!$&'()*+,;="


UPSTREAM_AWAY = Refused(
    HTTPStatus.BAD_GATEWAY,
    "upstream_unreachable",
    "The server behind the gateway can't be reached.",
)
UPSTREAM_REFUSES_US = Refused(
    HTTPStatus.BAD_GATEWAY,
    "upstream_refused_gateway",
    "The server behind the gateway doesn't take the gateway's API key; its operator must correct "
    "that.",
)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server behind.

    Args:
        url: its base, without a `/` at the end.
        tls: how its certificate is checked; `None` for http.
        api_key: what it wants to see from us, if anything.

    """

    url: httpx.URL
    tls: ssl.SSLContext | None = None
    api_key: str | None = field(default=None, repr=False)

    @property
    def host(self) -> bytes:
        """The value of `Host`."""
        return self.url.netloc

    def target(self, path: str, query: bytes) -> bytes:
        """What stands in the request line.

        Written anew from the path that the gateway judged: whoever reads it next, reads that path.

        Args:
            path: decoded path.
            query: query string as it came.

        """
        encoded = self.url.path.rstrip("/") + quote(path, safe=_PATH_CHARACTERS)
        return encoded.encode() + (b"?" + query if query else b"")

    def websocket_uri(self, path: str, query: bytes) -> str:
        """Where a websocket is opened; arguments as for `target`."""
        scheme = "wss" if self.tls else "ws"
        return f"{scheme}://{self.host.decode()}{self.target(path, query).decode('latin-1')}"


def parse_upstream(url: str, ca: Path | None = None, api_key: str | None = None) -> Upstream:
    """Check and take the options that describe the server behind.

    Args:
        url: its base URL.
        ca: certificates (PEM) that its own may be signed by; `None` for the system's.
        api_key: what it wants to see from us, if anything.

    Raises:
        ConfigurationError: one of them is wrong.

    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise ConfigurationError("this is no URL", field=_URL_OPTION) from None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigurationError("give it as http://HOST:PORT or https://…", field=_URL_OPTION)
    if parsed.userinfo:
        raise ConfigurationError(
            f"leave out user and password; ${API_KEY_ENV} is for the server's API key",
            field=_URL_OPTION,
        )
    if parsed.query or parsed.fragment:
        raise ConfigurationError("leave out all after '?' and '#'", field=_URL_OPTION)
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigurationError("it holds what no header can carry", field=f"${API_KEY_ENV}")
    return Upstream(parsed, _tls(parsed.scheme, ca), api_key)


def _tls(scheme: str, ca: Path | None) -> ssl.SSLContext | None:
    if scheme == "http":
        if ca is not None:
            raise ConfigurationError("the upstream's URL is not https", field=_CA_OPTION)
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError):
        raise ConfigurationError(
            "no certificates (PEM) can be read there", file=ca, field=_CA_OPTION
        ) from None
