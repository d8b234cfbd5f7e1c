"""From `keys` in custody.yaml to a provider, and to a new root key.

What an extra brings is imported when it is used: most deployments have neither boto3 nor an HSM.
"""

from kvcustody.config import AwsKmsRoot, LocalRoot, Pkcs11Root, RootSettings
from kvcustody.errors import ConfigurationError
from kvcustody.sealing.providers.base import KeyProvider
from kvcustody.sealing.providers.deadline import DeadlineProvider
from kvcustody.sealing.providers.key_file import create_key_file
from kvcustody.sealing.providers.local import LocalKeyProvider
from kvcustody.sealing.providers.secret_files import passphrase_in


def open_provider(settings: RootSettings) -> KeyProvider:
    """Open the provider of a root key; one that may hang comes with a deadline for each call.

    Args:
        settings: `keys`, or an item of `keys.previous`.

    Raises:
        ConfigurationError: a file is missing, open to others or damaged, the passphrase is wrong,
            or the provider's extra is not installed.

    """
    if isinstance(settings, LocalRoot):
        return LocalKeyProvider(settings.path, settings.passphrase_file)
    if isinstance(settings, AwsKmsRoot):
        return DeadlineProvider(_aws_kms(settings), settings.provider)
    return DeadlineProvider(_pkcs11(settings), settings.provider)


def create_root(settings: RootSettings) -> None:
    """Create the root key that the settings name; an existing one is kept.

    Args:
        settings: `keys` of the custody.yaml that will use it.

    Raises:
        ConfigurationError: there is one already, or it can't be created, or not by us.
        UnavailableError: the provider can't be reached.

    """
    if isinstance(settings, AwsKmsRoot):
        raise ConfigurationError(
            "a key in AWS KMS is created with AWS's tools: run `aws kms create-key`, give it an "
            "alias with `aws kms create-alias`, and write that to keys.key_id"
        )
    if isinstance(settings, Pkcs11Root):
        try:
            from kvcustody.sealing.providers.pkcs11 import create_token_key  # noqa: PLC0415
        except ImportError:
            raise _missing_extra("pkcs11") from None
        create_token_key(settings.module, settings.token, settings.label, settings.pin_file)
    elif settings.passphrase_file is None:
        create_key_file(settings.path)
    else:
        with passphrase_in(settings.passphrase_file) as passphrase:
            create_key_file(settings.path, passphrase)


def blamed_field(settings: RootSettings) -> str:
    """The field of `keys` to name when its provider can't be opened."""
    if isinstance(settings, LocalRoot):
        return "path"
    return "key_id" if isinstance(settings, AwsKmsRoot) else "module"


def _aws_kms(settings: AwsKmsRoot) -> KeyProvider:
    try:
        from kvcustody.sealing.providers.aws_kms import AwsKmsProvider  # noqa: PLC0415
    except ImportError:
        raise _missing_extra("aws") from None
    return AwsKmsProvider(
        settings.key_id,
        region=settings.region,
        endpoint=settings.endpoint,
        grant_tokens=settings.grant_tokens,
    )


def _pkcs11(settings: Pkcs11Root) -> KeyProvider:
    try:
        from kvcustody.sealing.providers.pkcs11 import Pkcs11Provider  # noqa: PLC0415
    except ImportError:
        raise _missing_extra("pkcs11") from None
    return Pkcs11Provider(settings.module, settings.token, settings.label, settings.pin_file)


def _missing_extra(extra: str) -> ConfigurationError:
    return ConfigurationError(f"this provider needs pip install 'kvcustody[{extra}]'")
