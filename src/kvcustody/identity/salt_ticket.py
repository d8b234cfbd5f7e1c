"""Salt tickets: how the gateway proves a cache salt where no assertion can travel.

Some endpoints (pooling, scoring, beam search) take a cache salt and nothing else that reaches the
connector. Their salt is a ticket: the scope's salt, when the ticket expires, and a code that binds
both to one request id. The connector takes the salt out again. A ticket lets a request read the GPU
prefix cache of its own scope; it admits to no tier.
"""

import base64
import hmac
import re
import time
from collections.abc import Callable

_DOMAIN = b"kvcustody/1 salt ticket"
_CODE_BYTES = 16
_PARTS = re.compile(r"[-_]")
_FORM = re.compile(r"([A-Za-z0-9_-]{43})\.([0-9]{1,12})\.([A-Za-z0-9_-]{22})", re.ASCII)
# Gateway and engine may run on two hosts whose clocks differ a little.
_CLOCK_SKEW_SECONDS = 5.0


class SaltTickets:
    """Issues and opens salt tickets.

    Args:
        key: the deployment's assertion key, 32 bytes.
        ttl: life of a ticket in seconds.
        clock: seconds since 1970.

    """

    def __init__(self, key: bytes, ttl: float, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._ttl = ttl
        self._clock = clock

    def issue(self, salt: str, request_id: str) -> str:
        """A ticket for one request; at most 79 characters (vLLM takes 128).

        Args:
            salt: cache salt of the request's scope, 43 characters.
            request_id: id that the engine's request id will contain; letters and digits.

        """
        expires = int(self._clock() + self._ttl)
        return f"{salt}.{expires}.{self._code(salt, expires, request_id)}"

    def open(self, cache_salt: str, engine_request_id: str) -> tuple[str, str] | None:
        """The salt and the gateway's request id; `None` if this is no valid ticket.

        Args:
            cache_salt: what the engine has for a salt.
            engine_request_id: the engine's id of the request.

        """
        form = _FORM.fullmatch(cache_salt)
        if form is None:
            return None
        salt, expires, code = form[1], int(form[2]), form[3]
        if self._clock() > expires + _CLOCK_SKEW_SECONDS:
            return None
        for part in _PARTS.split(engine_request_id):
            if hmac.compare_digest(self._code(salt, expires, part), code):
                return salt, part
        return None

    def _code(self, salt: str, expires: int, request_id: str) -> str:
        # Neither salt nor time holds the separator, so no two tickets have one text.
        text = f"{salt}|{expires}|{request_id}".encode(errors="surrogatepass")
        digest = hmac.digest(self._key, _DOMAIN + text, "sha256")[:_CODE_BYTES]
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
