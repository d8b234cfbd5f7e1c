"""A root key that never leaves AWS KMS. Needs the extra `aws`."""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.sealing.providers.aws_errors import explain
from kvcustody.sealing.providers.base import KeyContext, WrappedKeyError
from kvcustody.sealing.providers.quiet_debugging import QuietDebugging

# Short enough that two attempts and the pause between them end within DeadlineProvider's 5 s or
# little after.
_CONNECT_SECONDS = 1
_READ_SECONDS = 2
_ATTEMPTS = 2
# What Decrypt takes (AWS KMS API Reference).
_LARGEST_CIPHERTEXT = 6144
_LONGEST_ROOT = 128
_UNUSABLE = {
    "Disabled": "enable it",
    "PendingDeletion": "cancel its deletion and enable it",
    "PendingReplicaDeletion": "cancel its deletion and enable it",
    "PendingImport": "import its key material",
    "Unavailable": "check its key store",
}
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_ARN_REGION = 3


class AwsKmsProvider:
    """Wraps keys with a symmetric key in AWS KMS, the context being KMS's encryption context.

    Credentials come from where boto3 finds them. Nothing is asked of AWS before the first use.

    Args:
        key_id: the key's id, ARN, alias (`alias/…`) or alias ARN. What an alias names is looked up
            once: pointing it elsewhere takes a restart.
        region: the key's region; `None` for that of the ARN, or else of boto3's configuration.
        endpoint: URL of a KMS endpoint other than the region's own.
        grant_tokens: of grants that AWS has not spread to all of its servers yet.

    Raises:
        ConfigurationError: there is no region, no such profile, or the endpoint isn't protected.

    """

    def __init__(
        self,
        key_id: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        grant_tokens: Sequence[str] = (),
    ) -> None:
        self._key_id = key_id
        self._endpoint = endpoint
        self._grants = {"GrantTokens": list(grant_tokens)} if grant_tokens else {}
        _check_endpoint(endpoint)
        try:
            self._session = boto3.session.Session(region_name=region or _region_in(key_id))
        except BotoCoreError as error:
            raise ConfigurationError(f"aws-kms: {error}; correct AWS's configuration") from None
        if self._session.region_name is None:
            raise ConfigurationError("aws-kms: no region; set keys.region or AWS_REGION")
        # Guards what is made on first use: finding credentials may ask a server and take long.
        self._lock = threading.Lock()
        self._client: Any = None
        self._arn: str | None = None
        self._closed = False
        self._quiet = QuietDebugging("botocore", "boto3", "urllib3")

    def __repr__(self) -> str:
        return f"AwsKmsProvider({self._key_id})"

    @property
    def root(self) -> str:
        """Identifier of the root key, made of its ARN.

        Raises:
            UnavailableError: AWS can't be reached, or there are no valid credentials.
            ConfigurationError: AWS refuses, or has no such key.

        """
        arn = self._key_arn()
        root = f"aws-kms:{arn}"
        if len(root) <= _LONGEST_ROOT:
            return root
        return f"aws-kms:sha256:{hashlib.sha256(arn.encode()).hexdigest()}"

    def wrap(self, secret: bytes | bytearray, context: KeyContext) -> bytes:
        """Encrypt a key so that it unwraps only with the same context.

        Raises:
            UnavailableError: AWS can't be reached, or there are no valid credentials.
            ConfigurationError: AWS refuses, or has no such key.

        """
        answer = self._ask(
            "Encrypt",
            "CiphertextBlob",
            KeyId=self._key_arn(),
            Plaintext=secret,
            EncryptionContext=context.fields(),
        )
        return bytes(answer)

    def unwrap(self, wrapped: bytes, context: KeyContext) -> bytearray:
        """Decrypt a wrapped key; the caller wipes what it gets.

        Raises:
            WrappedKeyError: wrong root key, wrong context, or altered.
            UnavailableError: AWS can't be reached, or there are no valid credentials.
            ConfigurationError: AWS refuses, or has no such key.

        """
        if not 0 < len(wrapped) <= _LARGEST_CIPHERTEXT:
            raise WrappedKeyError(f"aws-kms key {self._key_id}: this is no key that it wrapped")
        # boto3 returns bytes, which can't be wiped: dropping them at once is all that can be done.
        return bytearray(
            self._ask(
                "Decrypt",
                "Plaintext",
                KeyId=self._key_arn(),
                CiphertextBlob=wrapped,
                EncryptionContext=context.fields(),
            )
        )

    def close(self) -> None:
        """Close the connections; nothing works afterwards."""
        with self._lock:
            self._closed = True
            if self._client is not None:
                self._client.close()

    def _key_arn(self) -> str:
        if self._arn is None:
            key = self._ask("DescribeKey", "KeyMetadata", KeyId=self._key_id)
            if key.get("KeySpec") != "SYMMETRIC_DEFAULT":
                raise ConfigurationError(
                    f"aws-kms key {self._key_id}: not a symmetric key for encryption; create one "
                    "of key spec SYMMETRIC_DEFAULT"
                )
            # Said here too: what a refused operation says doesn't name the state.
            if (state := key.get("KeyState", "Enabled")) in _UNUSABLE:
                raise ConfigurationError(
                    f"aws-kms key {self._key_id}: its state is {state}; {_UNUSABLE[state]}"
                )
            self._arn = str(key["Arn"])
        return self._arn

    def _ask(self, operation: str, field: str, **arguments: Any) -> Any:
        """Call AWS; the field of the answer that is wanted."""
        with self._quiet:
            try:
                client = self._open_client()
                answer = self._call(client, operation, {**arguments, **self._grants})
                return answer[field]
            except (BotoCoreError, ClientError) as error:
                # The chain would hold the request, and so the key.
                failure = explain(error, operation, self._key_id)
            except (ResponseParserError, KeyError):
                failure = UnavailableError(
                    f"aws-kms: what answered {operation} is not AWS KMS; check keys.endpoint"
                )
        raise failure

    def _open_client(self) -> Any:
        with self._lock:
            if self._closed:
                raise CustodyError(f"aws-kms key {self._key_id}: closed; open it anew")
            if self._client is None:
                try:
                    client = self._session.client(
                        "kms",
                        endpoint_url=self._endpoint,
                        config=Config(
                            connect_timeout=_CONNECT_SECONDS,
                            read_timeout=_READ_SECONDS,
                            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                        ),
                    )
                except ValueError as error:
                    raise ConfigurationError(f"aws-kms: {error}; correct the endpoint") from None
                # AWS's environment and files may name an endpoint, too.
                _check_endpoint(client.meta.endpoint_url)
                self._client = client
                self._quiet.cover()
            return self._client

    @staticmethod
    def _call(client: Any, operation: str, arguments: Mapping[str, Any]) -> Any:
        calls = {
            "DescribeKey": client.describe_key,
            "Encrypt": client.encrypt,
            "Decrypt": client.decrypt,
        }
        return calls[operation](**arguments)


def _region_in(key_id: str) -> str | None:
    parts = key_id.split(":")
    return parts[_ARN_REGION] or None if parts[0] == "arn" and len(parts) > _ARN_REGION else None


def _check_endpoint(endpoint: str | None) -> None:
    if endpoint is None:
        return
    url = urlsplit(endpoint)
    # AWS gets the keys that it wraps in the clear but for TLS.
    if url.scheme == "https" or (url.scheme == "http" and url.hostname in _LOOPBACK):
        return
    raise ConfigurationError(
        "aws-kms: keys.endpoint (or AWS_ENDPOINT_URL) must begin with https://"
    )
