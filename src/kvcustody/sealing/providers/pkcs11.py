"""A root key that never leaves a hardware security module (HSM). Needs the extra `pkcs11`.

The wrapped form is nonce (12 bytes), ciphertext and tag (16) of CKM_AES_GCM, with the context as
additional data.
"""

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pkcs11
from pkcs11 import Attribute, GCMParams, KeyType, Mechanism, MechanismFlag, ObjectClass

from kvcustody.errors import ConfigurationError, CustodyError
from kvcustody.sealing.providers import pkcs11_errors
from kvcustody.sealing.providers.base import KeyContext, WrappedKeyError
from kvcustody.sealing.providers.secret_files import passphrase_in

_Answer = TypeVar("_Answer")

_KEY_BITS = 256
_IDENTIFIER_BYTES = 16
_NONCE_BYTES = 12
_TAG_BITS = 128
_ROOT_CHARACTERS = 16

# One call of any PKCS#11 library at a time: python-pkcs11 initialises them for a single thread, and
# being logged in belongs to the process.
_LIBRARIES = threading.Lock()
# PINs that a token refused, by token: which version of which PIN file. A token locks itself after a
# few wrong tries, so none is made twice.
_REFUSED: dict[tuple[Path, str], tuple[int, int, int]] = {}


class Pkcs11Provider:
    """Wraps keys with AES-256-GCM inside a token, under a key that can't be taken out of it.

    The token is not touched before the first use.

    Args:
        module: the HSM's PKCS#11 library.
        token: the token's label.
        label: the key's label.
        pin_file: a file with the user's PIN, as private as a key file.

    Raises:
        ConfigurationError: there is no such library, or the PIN file is missing or open to others.

    """

    def __init__(self, module: Path, token: str, label: str, pin_file: Path) -> None:
        self._module = module
        self._token = token
        self._label = label
        self._pin_file = pin_file
        self._session: pkcs11.Session | None = None
        self._key: pkcs11.SecretKey | None = None
        self._root: str | None = None
        self._closed = False
        _check_module(module)
        with passphrase_in(pin_file, "PIN"):
            pass

    def __repr__(self) -> str:
        return f"Pkcs11Provider({self._what})"

    @property
    def _what(self) -> str:
        return f"key {self._label!r} in token {self._token!r}"

    @property
    def root(self) -> str:
        """Identifier of the root key: the token's label and serial number, and the key's id.

        Raises:
            UnavailableError: the token doesn't work.
            ConfigurationError: there is no such token or key, or the PIN is wrong.

        """
        if self._root is None:
            self._root = self._use(self._identify)
        return self._root

    def wrap(self, secret: bytes | bytearray, context: KeyContext) -> bytes:
        """Encrypt a key so that it unwraps only with the same context.

        Raises:
            UnavailableError: the token doesn't work.
            ConfigurationError: there is no such token or key, or the PIN is wrong.

        """
        return self._use(lambda key: _encrypt(key, bytes(secret), context.encode()))

    def unwrap(self, wrapped: bytes, context: KeyContext) -> bytearray:
        """Decrypt a wrapped key; the caller wipes what it gets.

        Raises:
            WrappedKeyError: wrong root key, wrong context, or altered.
            UnavailableError: the token doesn't work.
            ConfigurationError: there is no such token or key, or the PIN is wrong.

        """
        if len(wrapped) <= _NONCE_BYTES + _TAG_BITS // 8:
            raise self._not_unwrapped()
        # What the library returns are bytes, which can't be wiped: they are dropped at once.
        return self._use(lambda key: bytearray(self._decrypt(key, wrapped, context.encode())))

    def close(self) -> None:
        """End the session; nothing works afterwards."""
        with _LIBRARIES:
            self._closed = True
            self._end_session()

    def _use(self, operation: Callable[[pkcs11.SecretKey], _Answer]) -> _Answer:
        with _LIBRARIES:
            if self._closed:
                raise CustodyError(f"pkcs11: the {self._what} is closed; open it anew")
            try:
                try:
                    return operation(self._open_key())
                except pkcs11_errors.SESSION_LOST:
                    # The token was taken out and put back, or another provider in this process
                    # logged out, which ends the login of all of them.
                    self._end_session()
                    return operation(self._open_key())
            except pkcs11.PKCS11Error as error:
                failure = pkcs11_errors.explain(error, self._what, known=self._root is not None)
        raise failure

    def _open_key(self) -> pkcs11.SecretKey:
        if self._key is None:
            self._session = open_session(self._module, self._token, self._pin_file)
            key = self._session.get_key(object_class=ObjectClass.SECRET_KEY, label=self._label)
            self._check(key)
            self._key = key
        return self._key

    def _check(self, key: pkcs11.SecretKey) -> None:
        if key.key_type != KeyType.AES or key.key_length != _KEY_BITS:
            raise ConfigurationError(f"pkcs11: the {self._what} is not one of AES-256; create one")
        if key[Attribute.EXTRACTABLE] or not key[Attribute.SENSITIVE]:
            raise ConfigurationError(
                f"pkcs11: the {self._what} can be taken out of the token; create one that is "
                "sensitive and not extractable"
            )

    def _end_session(self) -> None:
        session, self._session, self._key = self._session, None, None
        if session is not None:
            try:
                session.close()
            except pkcs11.PKCS11Error:
                return  # it was gone already

    def _identify(self, key: pkcs11.SecretKey) -> str:
        if not (identifier := key.id):
            raise ConfigurationError(f"pkcs11: the {self._what} has no id; give it one (CKA_ID)")
        serial = key.session.token.serial.decode("ascii", errors="replace")
        digest = hashlib.sha256(b"kvcustody/1 root key identifier " + identifier).hexdigest()
        root = f"pkcs11:{self._token}/{serial}/{digest[:_ROOT_CHARACTERS]}"
        return "".join(character if character.isprintable() else "?" for character in root)

    def _decrypt(self, key: pkcs11.SecretKey, wrapped: bytes, context: bytes) -> bytes:
        try:
            return _decrypt(key, wrapped, context)
        except pkcs11_errors.NOT_DECRYPTED:
            raise self._not_unwrapped() from None
        except pkcs11_errors.UNCLEAR:
            # SoftHSM says "general error" of altered bytes, others say so of a fault.
            _decrypt(key, _encrypt(key, bytes(_KEY_BITS // 8), context), context)
            raise self._not_unwrapped() from None

    def _not_unwrapped(self) -> WrappedKeyError:
        return WrappedKeyError(
            f"pkcs11: the {self._what} did not wrap the registry's keys; use the one that belongs "
            "to the registry"
        )


def create_token_key(module: Path, token: str, label: str, pin_file: Path) -> None:
    """Generate a root key in a token: random, sensitive, not extractable.

    Args:
        module: the HSM's PKCS#11 library.
        token: the token's label.
        label: the new key's label.
        pin_file: a file with the user's PIN, as private as a key file.

    Raises:
        ConfigurationError: a key has that label already, there is no such token, or the PIN is
            wrong.
        UnavailableError: the token doesn't work.

    """
    what = f"key {label!r} in token {token!r}"
    _check_module(module)
    with _LIBRARIES:
        try:
            with open_session(module, token, pin_file, writing=True) as session:
                if any(True for _ in session.get_objects({Attribute.LABEL: label})):
                    raise ConfigurationError(f"pkcs11: a {what} exists already; it is kept")
                session.generate_key(
                    KeyType.AES,
                    _KEY_BITS,
                    id=os.urandom(_IDENTIFIER_BYTES),
                    label=label,
                    store=True,
                    capabilities=MechanismFlag.ENCRYPT | MechanismFlag.DECRYPT,
                    template={
                        Attribute.SENSITIVE: True,
                        Attribute.EXTRACTABLE: False,
                        Attribute.PRIVATE: True,
                        Attribute.MODIFIABLE: False,
                    },
                )
        except pkcs11.PKCS11Error as error:
            raise pkcs11_errors.explain(error, what, known=False) from None


def open_session(
    module: Path, token: str, pin_file: Path, *, writing: bool = False
) -> pkcs11.Session:
    """Log in to a token. The caller holds the lock.

    Raises:
        ConfigurationError: the library can't be loaded, or the PIN was refused before.
        PKCS11Error: the token refuses.

    """
    try:
        library = pkcs11.lib(str(module))
    except pkcs11.PKCS11Error:
        raise ConfigurationError(
            "pkcs11: no PKCS#11 library that starts; correct keys.module or the library's own "
            "configuration",
            module,
        ) from None
    opened = library.get_token(token_label=token)
    with passphrase_in(pin_file, "PIN") as content:
        try:
            pin = str(content, "utf-8")
        except UnicodeDecodeError:
            raise ConfigurationError("the PIN is not UTF-8; correct it", pin_file) from None
        status = pin_file.stat()
    version = (status.st_ino, status.st_mtime_ns, status.st_size)
    if _REFUSED.get((module, token)) == version:
        raise pkcs11_errors.refused_before(token, pin_file)
    try:
        session = opened.open(rw=writing, user_pin=pin)
    except pkcs11.UserAlreadyLoggedIn:
        session = opened.open(rw=writing)  # another provider of this process did
    except pkcs11_errors.PIN_REFUSED:
        _REFUSED[module, token] = version
        raise
    return session


def _check_module(module: Path) -> None:
    if not module.is_file():
        raise ConfigurationError(
            "no such PKCS#11 library; install the HSM's software, or correct keys.module", module
        )


def _encrypt(key: pkcs11.SecretKey, secret: bytes, context: bytes) -> bytes:
    # Random nonces under one key are safe for 2^32 messages (NIST SP 800-38D, section 8.3).
    nonce = os.urandom(_NONCE_BYTES)
    parameters = GCMParams(nonce, context, _TAG_BITS)
    sealed = key.encrypt(secret, mechanism=Mechanism.AES_GCM, mechanism_param=parameters)
    return nonce + bytes(sealed)


def _decrypt(key: pkcs11.SecretKey, wrapped: bytes, context: bytes) -> bytes:
    parameters = GCMParams(wrapped[:_NONCE_BYTES], context, _TAG_BITS)
    return bytes(
        key.decrypt(wrapped[_NONCE_BYTES:], mechanism=Mechanism.AES_GCM, mechanism_param=parameters)
    )
