"""A double of an identity provider: its keys, the tokens that it signs, and its server."""

import base64
import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from kvcustody.identity.jwt_bearer import ClaimNames, JwtRules

ISSUER = "https://idp.example"
AUDIENCE = "kvcustody"
NOW = 1_700_000_000.0
RULES = JwtRules(
    issuer=ISSUER,
    audience=AUDIENCE,
    algorithms=frozenset({"RS256", "ES256", "EdDSA"}),
    claims=ClaimNames("tenant", "azp", "sub", "custody.group", "custody.admin"),
)

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class IssuerKey:
    """A signing key.

    Args:
        algorithm: `RS256`, `ES256` or `EdDSA`.
        kid: its id.

    """

    def __init__(self, algorithm: str, kid: str | None = None) -> None:
        self.algorithm = algorithm
        self.kid = kid or algorithm.lower()
        self.private: PrivateKey
        if algorithm == "ES256":
            self.private = ec.generate_private_key(ec.SECP256R1())
        elif algorithm == "EdDSA":
            self.private = ed25519.Ed25519PrivateKey.generate()
        else:
            self.private = rsa.generate_private_key(65537, 2048)

    @property
    def entry(self) -> dict[str, Any]:
        """The public key as a key set has it."""
        public: Any = self.private.public_key()
        maker: Any = {"ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}.get(self.algorithm, RSAAlgorithm)
        return {**maker.to_jwk(public, as_dict=True), "kid": self.kid, "use": "sig"}

    @property
    def pem(self) -> bytes:
        """The public key, which everybody has."""
        public = self.private.public_key()
        return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, changes: Mapping[str, Any] = {}, **header: Any) -> str:
        """A token; a claim that is changed to `None` is left out.

        Args:
            changes: claims that differ from those of a good token.
            header: fields of the header that do; `None` leaves one out.

        """
        claims = {name: value for name, value in claims_with(changes).items() if value is not None}
        fields = {"kid": self.kid, **header}
        present = {name: value for name, value in fields.items() if value is not None}
        return jwt.encode(claims, self.private, self.algorithm, present)

    def sign_text(self, claims: str, header: str | None = None) -> str:
        """A token with a good signature over whatever text."""
        head = header or json.dumps({"alg": self.algorithm, "kid": self.kid})
        signed = f"{encode(head)}.{encode(claims)}"
        maker: Any = jwt.get_algorithm_by_name(self.algorithm)
        return f"{signed}.{encode(maker.sign(signed.encode(), self.private))}"


def claims_with(changes: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The claims of a good token, with changes."""
    return {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": NOW + 60,
        "iat": NOW,
        "sub": "anna",
        "tenant": "acme",
        "azp": "chat",
        "jti": "t-1",
        **changes,
    }


def key_set(*keys: IssuerKey, **more: Any) -> bytes:
    """What the provider publishes."""
    return json.dumps({"keys": [key.entry for key in keys], **more}).encode()


def encode(content: str | bytes) -> str:
    """A part of a token."""
    raw = content.encode() if isinstance(content, str) else content
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class KeySetServer:
    """A server that publishes a key set on loopback.

    Args:
        content: the key set.
        certificate: PEM file of a certificate and its key; with it, the server speaks TLS.

    """

    def __init__(self, content: bytes, certificate: Path | None = None) -> None:
        self.content = content
        self.status = 200
        self.location: str | None = None
        self.announced: int | None = None
        self.fetches = 0
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                double.fetches += 1
                self.send_response(double.status)
                if double.location is not None:
                    self.send_header("Location", double.location)
                self.send_header("Content-Length", str(double.announced or len(double.content)))
                self.end_headers()
                self.wfile.write(double.content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/jwks.json"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
