"""What an error of a PKCS#11 library means for us, and what to do about it."""

from pathlib import Path

from pkcs11 import exceptions

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError

SESSION_LOST = (
    exceptions.SessionHandleInvalid,
    exceptions.SessionClosed,
    exceptions.ObjectHandleInvalid,
    exceptions.KeyHandleInvalid,
    exceptions.UserNotLoggedIn,
    exceptions.DeviceRemoved,
    exceptions.DeviceError,
    exceptions.TokenNotPresent,
)
"""The session is over; a new one may work."""

NOT_DECRYPTED = (
    exceptions.EncryptedDataInvalid,
    exceptions.EncryptedDataLenRange,
    exceptions.DataInvalid,
    exceptions.DataLenRange,
)
"""The bytes are not what this key made."""

UNCLEAR = (exceptions.GeneralError, exceptions.FunctionFailed, exceptions.ArgumentsBad)
"""The bytes or the token are at fault."""

PIN_REFUSED = (exceptions.PinIncorrect, exceptions.PinInvalid, exceptions.PinLenRange)
"""The PIN is wrong, and a token counts how often."""

_INCAPABLE = (
    exceptions.MechanismInvalid,
    exceptions.MechanismParamInvalid,
    exceptions.FunctionNotSupported,
    exceptions.KeyTypeInconsistent,
)

_REMEDIES: list[
    tuple[type[exceptions.PKCS11Error] | tuple[type[exceptions.PKCS11Error], ...], str]
] = [
    (PIN_REFUSED, "the token refuses the PIN; correct the PIN file, the token locks itself soon"),
    (exceptions.PinLocked, "the PIN is locked; unlock it with the token's own tools"),
    (exceptions.PinExpired, "the PIN has expired; set a new one with the token's own tools"),
    (exceptions.NoSuchKey, "no such key; create it with `kvcustody keys new-root`"),
    (exceptions.MultipleObjectsReturned, "several keys have that label; rename or remove some"),
    (exceptions.MultipleTokensReturned, "several tokens have that label; rename or remove some"),
    (_INCAPABLE, "the token doesn't encrypt with AES-GCM and this key; use a key for that"),
]


def explain(error: exceptions.PKCS11Error, what: str, *, known: bool) -> CustodyError:
    """The error to raise in place of the library's.

    Args:
        error: the library's.
        what: the key and its token.
        known: whether the key was there before: then a token that isn't may come back.

    """
    for kinds, remedy in _REMEDIES:
        if isinstance(error, kinds):
            return ConfigurationError(f"pkcs11: {what}: {remedy}")
    if isinstance(error, exceptions.NoSuchToken) and not known:
        return ConfigurationError(
            f"pkcs11: {what}: no such token; connect or initialise it, or correct keys.token"
        )
    return UnavailableError(
        f"pkcs11: {what}: {type(error).__name__}; check the HSM and its connection"
    )


def refused_before(token: str, pin_file: Path) -> ConfigurationError:
    """The error for a PIN that is not tried a second time."""
    return ConfigurationError(
        f"the token {token!r} refused this PIN before, so it is not tried again; correct it",
        pin_file,
    )
