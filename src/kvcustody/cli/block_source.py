"""Where a sealed block is read from on the command line: a file, or an object in S3."""

from http.client import INTERNAL_SERVER_ERROR, TOO_MANY_REQUESTS
from pathlib import Path
from typing import Any

from kvcustody.errors import ConfigurationError, UnavailableError

_S3 = "s3://"


def read_block(source: str, most_bytes: int | None = None) -> bytes:
    """Read a block.

    Args:
        source: path of a file, or `s3://BUCKET/KEY`; credentials, region and endpoint are found
            where boto3 looks for them (for an endpoint: AWS_ENDPOINT_URL).
        most_bytes: read no more than that many from the start.

    Raises:
        ConfigurationError: there is no such block, or it may not be read.
        UnavailableError: the server can't be reached.

    """
    if source.startswith(_S3):
        return _read_object(source, most_bytes)
    path = Path(source)
    try:
        with path.open("rb") as file:
            return file.read(-1 if most_bytes is None else most_bytes)
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", path) from None


def _read_object(url: str, most_bytes: int | None) -> bytes:
    bucket, _, key = url.removeprefix(_S3).partition("/")
    if not (bucket and key):
        raise ConfigurationError("write s3://BUCKET/KEY", Path(url))
    try:
        import boto3  # noqa: PLC0415 - only those who use S3 need it
        from botocore.exceptions import (  # noqa: PLC0415 - as above
            BotoCoreError,
            ClientError,
            NoRegionError,
            ParamValidationError,
            ProfileNotFound,
        )
    except ImportError:
        raise ConfigurationError("S3 needs boto3; pip install 'kvcustody[aws]'") from None
    arguments: dict[str, Any] = {"Bucket": bucket, "Key": key}
    if most_bytes is not None:
        arguments["Range"] = f"bytes=0-{most_bytes - 1}"
    try:
        content = boto3.client("s3").get_object(**arguments)["Body"].read()
    except ValueError as error:  # an endpoint that is no URL
        raise ConfigurationError(f"{url}: {error}") from None
    except (ParamValidationError, NoRegionError, ProfileNotFound) as error:
        raise ConfigurationError(f"{url}: {' '.join(str(error).split())}") from None
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "unknown")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status == TOO_MANY_REQUESTS or status >= INTERNAL_SERVER_ERROR:
            raise UnavailableError(f"{url}: S3 answers {code}; try again later") from None
        raise ConfigurationError(
            f"S3 answers {code}; check bucket, key and rights: {url}"
        ) from None
    except BotoCoreError as error:
        raise UnavailableError(f"{url}: can't be read: {error}") from None
    return bytes(content)
