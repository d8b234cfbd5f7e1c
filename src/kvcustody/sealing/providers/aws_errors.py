"""What an error of AWS KMS means for us, and what to do about it."""

from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.sealing.providers.base import WrappedKeyError

# KMS answers so for another key, another context and altered bytes alike.
_NOT_UNWRAPPED = {"InvalidCiphertextException", "IncorrectKeyException"}
# What AccessDeniedException says when not the key that was asked for is at fault.
_OF_ANOTHER_KEY = "The ciphertext refers to"

_CREDENTIALS = (
    "boto3 looks in AWS_ACCESS_KEY_ID, the files of ~/.aws and the role of the machine or container"
)
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_NO_CREDENTIALS = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.TokenRetrievalError,
    exceptions.NoAuthTokenError,
    exceptions.SSOError,
)

_WRONG_CREDENTIALS = "the credentials are wrong, or this machine's clock is; correct them"
_REMEDIES = {
    "DisabledException": "the key is disabled; enable it",
    "NotFoundException": "no such key in this account and region; correct keys.key_id",
    "InvalidArnException": "not a key's ARN; correct keys.key_id",
    "KMSInvalidStateException": (
        "the key's state forbids it; enable it, or cancel its deletion while that is possible"
    ),
    "KeyUnavailableException": "the key is unavailable; check its key store",
    "InvalidKeyUsageException": "the key is not for encryption; use one of ENCRYPT_DECRYPT",
    "InvalidGrantTokenException": "a grant token is invalid; correct keys.grant_tokens",
    "UnrecognizedClientException": _WRONG_CREDENTIALS,
    "InvalidClientTokenId": _WRONG_CREDENTIALS,
    "InvalidSignatureException": _WRONG_CREDENTIALS,
    "SignatureDoesNotMatch": _WRONG_CREDENTIALS,
    "IncompleteSignature": _WRONG_CREDENTIALS,
}
_MISCONFIGURED = (
    exceptions.NoRegionError,
    exceptions.ProfileNotFound,
    exceptions.ConfigParseError,
    exceptions.ConfigNotFound,
    exceptions.ParamValidationError,
    exceptions.InvalidRegionError,
    exceptions.UnknownEndpointError,
    exceptions.EndpointProviderError,
    exceptions.InvalidConfigError,
)

_DENIED_STATUSES = {401, 403}
_BUSY = {"ThrottlingException", "Throttling", "LimitExceededException", "RequestLimitExceeded"}
_BUSY_STATUS = 429
_FIRST_SERVER_STATUS = 500


def explain(error: BotoCoreError | ClientError, operation: str, key_id: str) -> CustodyError:
    """The error to raise in place of boto3's, which may hold the request.

    Args:
        error: boto3's.
        operation: of AWS KMS, such as `Encrypt`.
        key_id: the key as custody.yaml names it.

    """
    what = f"aws-kms: {operation} with key {key_id}"
    if isinstance(error, ClientError):
        return _explain_answer(error, what, operation)
    if isinstance(error, _NO_CREDENTIALS):
        return UnavailableError(f"{what}: no valid AWS credentials; {_CREDENTIALS}")
    if isinstance(error, _MISCONFIGURED):
        return ConfigurationError(
            f"{what}: {type(error).__name__}; correct keys.key_id, keys.region or AWS's "
            "configuration"
        )
    return UnavailableError(
        f"{what}: {type(error).__name__}; check the network and keys.endpoint, and try again"
    )


def _explain_answer(error: ClientError, what: str, operation: str) -> CustodyError:
    answer = error.response.get("Error", {})
    code, message = str(answer.get("Code", "")), str(answer.get("Message", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    denied = code.startswith("AccessDenied") or status in _DENIED_STATUSES
    if code in _NOT_UNWRAPPED or (denied and message.startswith(_OF_ANOTHER_KEY)):
        return WrappedKeyError(
            f"{what}: this key did not wrap the registry's keys; name the key that belongs to the "
            "registry"
        )
    if code in _EXPIRED:
        return UnavailableError(f"{what}: the AWS credentials have expired; {_CREDENTIALS}")
    if code in _REMEDIES:
        return ConfigurationError(f"{what}: {_REMEDIES[code]}")
    if denied:
        return ConfigurationError(
            f"{what}: access denied; allow kms:{operation} in the policy of the key or the role"
        )
    if code in _BUSY or status == _BUSY_STATUS or status >= _FIRST_SERVER_STATUS:
        return UnavailableError(f"{what}: AWS is too busy or at fault (status {status}); try again")
    return ConfigurationError(
        f"{what}: AWS refuses it (status {status}); correct keys.key_id, keys.region or "
        "keys.endpoint"
    )
