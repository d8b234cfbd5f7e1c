"""Ids of stored responses, which say to whom they belong without saying who that is.

vLLM gives a stored response to whoever knows its id. The gateway chooses the id: a random part and
a code that binds it to the scope of whoever asked. So ownership needs no table, and holds over
restarts and for all gateways of a deployment.
"""

import hmac
import re
import secrets

from kvcustody.namespace import Scope

PREFIX = "resp_"
"""How vLLM's own ids of responses begin."""

_DOMAIN = b"kvcustody/1 response id"
_PART_BYTES = 16
_FORM = re.compile(rf"{PREFIX}([0-9a-f]{{32}})([0-9a-f]{{32}})", re.ASCII)


class ResponseIds:
    """Issues ids, and tells whose they are.

    Args:
        key: the deployment's key for this, 32 bytes.

    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, owner: Scope) -> str:
        """A new id without its prefix: 64 hexadecimal digits."""
        random = secrets.token_hex(_PART_BYTES)
        return random + self._code(random, owner)

    def belongs(self, response_id: str, owner: Scope) -> bool:
        """Whether a response is the owner's.

        Args:
            response_id: what a client named, with its prefix.
            owner: the client's own scope.

        """
        form = _FORM.fullmatch(response_id)
        return form is not None and hmac.compare_digest(self._code(form[1], owner), form[2])

    def _code(self, random: str, owner: Scope) -> str:
        content = _DOMAIN + random.encode() + owner.encode()
        return hmac.digest(self._key, content, "sha256")[:_PART_BYTES].hex()
