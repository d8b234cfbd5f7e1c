"""Where an identity provider publishes its keys: a file, or an HTTPS address."""

import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from kvcustody.errors import ConfigurationError, UnavailableError

# A provider has a handful of keys of about a kilobyte.
LARGEST_BYTES = 256 * 2**10
_TIMEOUT_SECONDS = 5.0
_PART_BYTES = 16 * 2**10
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def fetch_from(place: str, clock: Callable[[], float] = time.monotonic) -> Callable[[], bytes]:
    """What fetches a key set.

    Args:
        place: path of a file, or a URL: `https:`, or `http:` on this machine alone.
        clock: monotonic seconds.

    Returns:
        A function that gives the key set's bytes, or raises `UnavailableError`.

    Raises:
        ConfigurationError: the place is neither.

    """
    if "://" not in place:
        return lambda: _read(Path(place))
    try:
        parts = urlsplit(place)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or not place.isprintable() or " " in place:
        raise ConfigurationError("not a URL; write https://HOST/PATH, or the path of a file")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("leave user and password out of the URL; key sets are public")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK):
        raise ConfigurationError(
            "use https: whoever can change the key set on its way can be any caller"
        )
    # Neither a proxy of the environment nor a redirection may choose whose keys are believed.
    opener = build_opener(ProxyHandler({}), _NoRedirection())
    return lambda: _download(opener, place, host, clock)


class _NoRedirection(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow none; the opener then raises an HTTPError."""


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise UnavailableError(f"{path}: no such file")
        with path.open("rb") as file:
            return _bounded(file.read(LARGEST_BYTES + 1), str(path))
    except OSError as error:
        raise UnavailableError(f"{path}: can't be read: {error.strerror}") from None


def _download(opener: OpenerDirector, url: str, host: str, clock: Callable[[], float]) -> bytes:
    deadline = clock() + _TIMEOUT_SECONDS
    request = Request(url, headers={"Accept": "application/json"})  # noqa: S310 - checked by fetch_from
    try:
        response: HTTPResponse
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
            content = b""
            while len(content) <= LARGEST_BYTES and (part := response.read1(_PART_BYTES)):
                content += part
                if clock() > deadline:
                    raise UnavailableError(f"{host}: no complete answer in time")
            if response.length:
                raise UnavailableError(f"{host}: the answer ended too early")
    except HTTPError as error:
        error.close()
        raise UnavailableError(f"{host}: answered {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        # A ValueError: headers that make no sense. No text of the other side is repeated.
        raise UnavailableError(f"{host}: can't be reached ({type(error).__name__})") from None
    return _bounded(content, host)


def _bounded(content: bytes, place: str) -> bytes:
    if len(content) > LARGEST_BYTES:
        raise UnavailableError(f"{place}: larger than {LARGEST_BYTES // 2**10} KiB")
    return content
