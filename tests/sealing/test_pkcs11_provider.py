import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pkcs11
import pytest
from pkcs11 import Attribute, KeyType

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.sealing.providers import KeyContext, WrappedKeyError
from kvcustody.sealing.providers.pkcs11 import Pkcs11Provider, create_token_key, open_session
from softhsm import MODULE, PIN, SoftHsm

pytestmark = pytest.mark.service

SECRET = bytes(range(32))
CONTEXT = KeyContext("data key", "one")


class Token:
    """A token with a root key in it."""

    def __init__(self, hsm: SoftHsm) -> None:
        self.hsm = hsm
        self.label = hsm.create_token()
        hsm.notice_tokens()
        self.pin_file = hsm.pin_file()
        create_token_key(MODULE, self.label, "root", self.pin_file)

    def provider(self, **other: Any) -> Pkcs11Provider:
        settings = {"module": MODULE, "token": self.label, "label": "root"}
        return Pkcs11Provider(**{**settings, "pin_file": self.pin_file, **other})

    def generate(self, label: str, bits: int = 256, **template: Any) -> None:
        """Put another key into the token, as an HSM's administrator may."""
        attributes = {Attribute[name.upper()]: value for name, value in template.items()}
        with open_session(MODULE, self.label, self.pin_file, writing=True) as session:
            session.generate_key(
                KeyType.AES, bits, label=label, id=b"1", store=True, template=attributes
            )


@pytest.fixture(scope="module")
def token(softhsm: SoftHsm) -> Token:
    return Token(softhsm)


@pytest.fixture
def provider(token: Token) -> Iterator[Pkcs11Provider]:
    provider = token.provider()
    yield provider
    provider.close()


def refusal(provider: Pkcs11Provider, kind: type[CustodyError] = ConfigurationError) -> str:
    """The text of the error that wrapping raises."""
    with pytest.raises(kind) as caught:
        provider.wrap(SECRET, CONTEXT)
    text = str(caught.value)
    assert "\n" not in text
    assert PIN not in repr(caught.value)
    return text


def test_a_root_key_never_leaves_the_token(token: Token) -> None:
    with open_session(MODULE, token.label, token.pin_file) as session:
        key = session.get_key(label="root")
        for claim in ("SENSITIVE", "ALWAYS_SENSITIVE", "NEVER_EXTRACTABLE", "LOCAL", "PRIVATE"):
            assert key[Attribute[claim]]
        with pytest.raises(pkcs11.AttributeSensitive):
            assert key[Attribute.VALUE]
        assert (key.key_type, key.key_length) == (KeyType.AES, 256)


def test_the_root_names_token_and_key(token: Token, provider: Pkcs11Provider) -> None:
    kind, _, rest = provider.root.partition(":")
    label, _serial, digest = rest.split("/")
    assert (kind, label, len(digest)) == ("pkcs11", token.label, 16)
    assert token.provider().root == provider.root


def test_a_key_that_exists_is_kept(token: Token, provider: Pkcs11Provider) -> None:
    wrapped = provider.wrap(SECRET, CONTEXT)
    with pytest.raises(ConfigurationError, match="exists already; it is kept"):
        create_token_key(MODULE, token.label, "root", token.pin_file)
    assert provider.unwrap(wrapped, CONTEXT) == SECRET


def test_a_missing_key_says_how_to_create_it(token: Token) -> None:
    text = refusal(token.provider(label="nobody"))
    assert text == (
        f"pkcs11: key 'nobody' in token '{token.label}': no such key; create it with "
        "`kvcustody keys new-root`"
    )


def test_a_missing_token_is_named(token: Token) -> None:
    text = refusal(token.provider(token="nowhere"))  # noqa: S106 - a label
    assert "token 'nowhere': no such token; connect or initialise it" in text


@pytest.mark.parametrize("kind", ["missing", "text", "library"])
def test_a_module_that_is_none_is_named(token: Token, tmp_path: Path, kind: str) -> None:
    module = tmp_path / "module.so"
    if kind == "text":
        module.write_text("no library")
    if kind == "library":
        module = Path(sys.modules["_ssl"].__file__ or "")
    with pytest.raises(ConfigurationError, match=r"correct keys\.module") as caught:
        token.provider(module=module).wrap(SECRET, CONTEXT)
    assert caught.value.file == module


def test_a_wrong_pin_is_tried_once(token: Token) -> None:
    pin_file = token.hsm.pin_file("wrong-pin")
    code = f"""
from pathlib import Path
from kvcustody.errors import ConfigurationError
from kvcustody.sealing.providers import KeyContext
from kvcustody.sealing.providers.pkcs11 import Pkcs11Provider
file = Path({str(pin_file)!r})
def wrap():
    provider = Pkcs11Provider(Path({str(MODULE)!r}), {token.label!r}, "root", file)
    provider.wrap(bytes(32), KeyContext("data key", "one"))
for _ in range(20):
    try:
        wrap()
    except ConfigurationError as error:
        print(error)
file.write_text({PIN!r})
wrap()
print("right")
"""
    finished = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    first, *others, last = finished.stdout.splitlines()
    assert "the token refuses the PIN; correct the PIN file" in first
    again = f"{pin_file}: the token {token.label!r} refused this PIN before, so it is not tried "
    assert [other.startswith(again) for other in others] == [True] * 19
    assert last == "right"
    assert "wrong-pin" not in finished.stdout


def test_a_pin_file_is_as_private_as_a_key_file(token: Token) -> None:
    pin_file = token.hsm.pin_file()
    pin_file.chmod(0o644)
    with pytest.raises(ConfigurationError, match=r"others may read it \(mode 0644\)"):
        token.provider(pin_file=pin_file)
    pin_file.unlink()
    with pytest.raises(ConfigurationError, match="no such PIN file; put the PIN into it"):
        token.provider(pin_file=pin_file)


@pytest.mark.parametrize(
    ("bits", "template", "remedy"),
    [
        (128, {}, "is not one of AES-256; create one"),
        (256, {"extractable": True}, "can be taken out of the token"),
        (256, {"sensitive": False}, "can be taken out of the token"),
    ],
)
def test_a_key_that_protects_less_is_refused(
    token: Token, bits: int, template: dict[str, bool], remedy: str
) -> None:
    label = f"weak-{bits}-{'-'.join(template)}"
    token.generate(label, bits, **template)
    assert remedy in refusal(token.provider(label=label))


def test_two_keys_of_one_label_are_refused(token: Token) -> None:
    for _ in range(2):
        token.generate("twice", sensitive=True, extractable=False)
    assert "several keys have that label" in refusal(token.provider(label="twice"))


def test_a_lost_session_is_opened_anew(token: Token, provider: Pkcs11Provider) -> None:
    wrapped = provider.wrap(SECRET, CONTEXT)
    token.hsm.notice_tokens()  # as if the token was taken out and put back
    assert provider.unwrap(wrapped, CONTEXT) == SECRET
    other = token.provider()
    assert other.unwrap(wrapped, CONTEXT) == SECRET
    provider.close()  # which logs out all of this process
    assert other.unwrap(wrapped, CONTEXT) == SECRET
    other.close()


def test_a_token_that_vanishes_is_unavailable_until_it_is_back(softhsm: SoftHsm) -> None:
    token = Token(softhsm)
    provider = token.provider()
    assert provider.root
    wrapped = provider.wrap(SECRET, CONTEXT)
    with softhsm.no_tokens():
        softhsm.notice_tokens()
        assert "NoSuchToken; check the HSM" in refusal(provider, UnavailableError)
    softhsm.notice_tokens()
    assert provider.unwrap(wrapped, CONTEXT) == SECRET
    provider.close()


def test_several_threads_share_a_provider(provider: Pkcs11Provider) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        context = KeyContext("data key", str(number))
        for turn in range(20):
            secret = bytes([number, turn]) * 16
            assert provider.unwrap(provider.wrap(secret, context), context) == secret
        done.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(done) == list(range(8))


@pytest.mark.parametrize("wrapped", [b"", b"x" * 12, b"x" * 28, b"x" * 60, b"x" * 5000])
def test_foreign_bytes_never_unwrap(provider: Pkcs11Provider, wrapped: bytes) -> None:
    with pytest.raises(WrappedKeyError, match="use the one that belongs to the registry"):
        provider.unwrap(wrapped, CONTEXT)
    assert provider.unwrap(provider.wrap(SECRET, CONTEXT), CONTEXT) == SECRET
