"""The blocks that open."""

from dataclasses import replace

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from reference_sealed_block import DESTROYED, Fields, derive, header
from two_keys import colliding_ciphertext
from vector import Valid, stream

CREATED = 1_750_000_000_000
EXPIRES = CREATED + 3_600_000
LAST_TIME = 2**64 - 1

SECRET = stream("data key", 32)
OTHER_SECRET = stream("another data key", 32)
KEY_ID = stream("key id", 16)
OTHER_KEY_ID = stream("another key id", 16)

FIELDS = Fields(
    key_id=KEY_ID,
    namespace=stream("namespace", 16),
    name=stream("name", 32),
    created=CREATED,
    expires=EXPIRES,
    layout=stream("layout", 32),
    salt=stream("salt", 32),
)
PLAINTEXT = b"Keys and values of a prompt; 47 bytes, 3 blocks"

BASE = Valid("base", "an ordinary block", FIELDS, SECRET, PLAINTEXT, CREATED, {})
EMPTY = replace(
    BASE,
    id="length-0",
    description="no plaintext: header and tag",
    fields=replace(FIELDS, salt=stream("salt of length 0", 32)),
    plaintext=b"",
)
NEWER = replace(
    BASE,
    id="same-block-sealed-again",
    description="the same block of the same namespace, sealed again with another salt",
    fields=replace(FIELDS, salt=stream("another salt", 32), created=CREATED + 1),
    now=CREATED + 1,
)
OTHER_NAME = replace(
    BASE,
    id="another-block",
    description="another block of the same namespace",
    fields=replace(FIELDS, name=stream("another name", 32), salt=stream("salt 3", 32)),
)
OTHER_NAMESPACE = replace(
    BASE,
    id="another-namespace",
    description="a block of the same name in another namespace, with that namespace's own key",
    fields=replace(
        FIELDS,
        key_id=OTHER_KEY_ID,
        namespace=stream("another namespace", 16),
        salt=stream("salt 4", 32),
    ),
    secret=OTHER_SECRET,
)
NEXT_EPOCH = replace(
    BASE,
    id="next-epoch",
    description="the same block under the next epoch's key; the reader knows both keys",
    fields=replace(FIELDS, key_id=OTHER_KEY_ID, salt=stream("salt 5", 32)),
    secret=OTHER_SECRET,
    keys={KEY_ID: SECRET},
)
OLDER_EPOCH = replace(
    BASE,
    id="older-epoch",
    description="a block of an older epoch, while a newer key exists",
    keys={OTHER_KEY_ID: OTHER_SECRET},
)
DESTROYED_NEIGHBOUR = replace(
    BASE,
    id="another-key-destroyed",
    description="the key of another epoch was destroyed",
    keys={OTHER_KEY_ID: DESTROYED},
)
FOREVER = replace(
    BASE,
    id="expires-at-the-last-time",
    description="expires at 2^64-1, one millisecond before it",
    fields=replace(FIELDS, expires=LAST_TIME, salt=stream("salt 6", 32)),
    now=LAST_TIME - 1,
)


def _of_length(length: int) -> Valid:
    seed = f"plaintext of {length}"
    return replace(
        BASE,
        id=f"length-{length}",
        description=f"{length} bytes of plaintext",
        fields=replace(FIELDS, salt=stream(f"salt of length {length}", 32)),
        plaintext=stream(seed, length),
        seed=seed,
    )


LENGTHS = [_of_length(length) for length in (1, 15, 16, 17, 31, 32, 33, 255, 256, 4096, 65535)]
LARGE = [_of_length(length) for length in (65536, 2**20)]
LONGEST_GIVEN = LENGTHS[-1]


def _at(name: str, description: str, now: int, created: int, expires: int) -> Valid:
    fields = replace(FIELDS, created=created, expires=expires, salt=stream(name, 32))
    return replace(
        BASE,
        id=name,
        description=description,
        fields=fields,
        now=now,
        sealable=created <= expires,
    )


TIMES = [
    _at("last-millisecond", "one millisecond before it expires", EXPIRES - 1, CREATED, EXPIRES),
    _at("clock-behind", "the reader's clock is before `created`", CREATED - 1, CREATED, EXPIRES),
    _at("clock-at-zero", "the reader's clock is at 1970", 0, CREATED, EXPIRES),
    _at("first-millisecond-of-1970", "created at 0, expires at 1", 0, 0, 1),
    _at("longest-life", "created at 0, expires at 2^64-1", CREATED, 0, LAST_TIME),
    _at("beyond-2-53", "times that no double holds", 2**53 + 1, 2**53 + 1, 2**53 + 3),
    _at("beyond-2-63", "times that no signed integer holds", 2**63 - 1, 2**63 - 2, 2**63 + 1),
    _at("no-life", "expires when created; opened by a clock behind", CREATED - 1, CREATED, CREATED),
    _at(
        "created-after-expiry",
        "a reader doesn't look at `created`; no conforming writer makes this",
        CREATED,
        EXPIRES + 1,
        EXPIRES,
    ),
]


def _with(name: str, description: str, /, *, secret: bytes = SECRET, **fields: bytes) -> Valid:
    changed = replace(FIELDS, salt=stream(name, 32))
    changed = replace(changed, **fields)  # type: ignore[arg-type]
    return replace(BASE, id=name, description=description, fields=changed, secret=secret)


EXTREMES = [
    _with("key-id-zeros", "the key id is zeros", key_id=bytes(16)),
    _with("key-id-ones", "the key id is ones", key_id=b"\xff" * 16),
    _with("namespace-zeros", "the namespace id is zeros", namespace=bytes(16)),
    _with("name-zeros", "the block's name is zeros", name=bytes(32)),
    _with("name-ones", "the block's name is ones", name=b"\xff" * 32),
    _with("layout-zeros", "the layout digest is zeros", layout=bytes(32)),
    _with("salt-zeros", "the salt is zeros", salt=bytes(32)),
    _with("salt-ones", "the salt is ones", salt=b"\xff" * 32),
    _with("salt-ends-in-zeros", "zeros at the salt's end count", salt=b"s" + bytes(31)),
    _with("secret-begins-with-zeros", "zeros at the key's start", secret=bytes(31) + b"\x01"),
    _with("secret-ends-in-zeros", "zeros at the key's end count", secret=b"\x01" + bytes(31)),
]

CONTENTS = [
    replace(
        BASE,
        id="plaintext-zeros",
        description="48 zero bytes",
        plaintext=bytes(48),
        fields=replace(FIELDS, salt=stream("zeros", 32)),
    ),
    replace(
        BASE,
        id="plaintext-is-a-sealed-block",
        description="the plaintext is itself a sealed block",
        plaintext=BASE.sealed,
        fields=replace(FIELDS, salt=stream("nested", 32)),
    ),
]


def _two_keys() -> Valid:
    """A block whose ciphertext AES-GCM also opens under a key derived from `OTHER_SECRET`."""
    fields = replace(FIELDS, salt=stream("two keys", 32))
    (mine, commitment), (others, _) = (
        derive(secret, fields.salt, fields.namespace, fields.name)
        for secret in (SECRET, OTHER_SECRET)
    )
    head = header(fields, 48, commitment)
    body = colliding_ciphertext((mine, others), head, stream("two keys", 32))
    AESGCM(others).decrypt(bytes(12), body, head)  # the other key opens it, commitment aside
    return replace(
        BASE,
        id="ciphertext-of-two-keys",
        description="AES-GCM alone would open this block under a second data key, too",
        fields=fields,
        plaintext=AESGCM(mine).decrypt(bytes(12), body, head),
    )


TWO_KEYS = _two_keys()

VALID = [
    BASE,
    EMPTY,
    *LENGTHS,
    *LARGE,
    *TIMES,
    FOREVER,
    *EXTREMES,
    *CONTENTS,
    NEWER,
    OTHER_NAME,
    OTHER_NAMESPACE,
    NEXT_EPOCH,
    OLDER_EPOCH,
    DESTROYED_NEIGHBOUR,
    TWO_KEYS,
]
