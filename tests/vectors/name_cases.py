"""Namespace identifiers and block names, and who must share one with whom."""

from dataclasses import dataclass

from reference_sealed_block import (
    block_name,
    encode_group,
    encode_namespace,
    encode_scope,
    namespace_identifier,
)
from vector import Json, stream

NAMESPACE_KEY = bytes(range(32))
NAMING_KEY = stream("naming key", 32)
OTHER_NAMING_KEY = stream("another naming key", 32)
LAYOUT = stream("layout", 32).hex()
REVISION = "sha256:" + "ab" * 32
COMPOSED, DECOMPOSED = "Caf\u00e9", "Cafe\u0301"


@dataclass(frozen=True, slots=True)
class NamespaceCase:
    """A namespace's fields; cases of one `same_as` have one identifier, all others differ."""

    id: str
    description: str
    deployment: str = "support-eu"
    tenant: str | None = "acme"
    workload: str | None = None
    subject: str | None = None
    model_revision: str = REVISION
    layout: str = LAYOUT
    key: bytes = NAMESPACE_KEY
    group: str | None = None
    adapter: str | None = None
    same_as: str = ""

    def to_json(self) -> Json:
        if self.tenant is None:
            scope = encode_group(self.deployment, self.group or "")
        else:
            scope = encode_scope(self.deployment, self.tenant, self.workload, self.subject)
        encoded = encode_namespace(scope, self.model_revision, self.layout, self.adapter)
        return {
            "id": self.id,
            "description": self.description,
            "same_as": self.same_as or self.id,
            "key": self.key.hex(),
            "deployment": self.deployment,
            "tenant": self.tenant,
            "workload": self.workload,
            "subject": self.subject,
            "group": self.group,
            "model_revision": self.model_revision,
            "adapter": self.adapter,
            "layout": self.layout,
            "encoded_scope": scope.hex(),
            "encoded_namespace": encoded.hex(),
            "identifier": namespace_identifier(self.key, encoded).hex(),
        }


N = NamespaceCase
NAMESPACES = [
    N("worked-example", "the document's worked example", "eu", "acme", None, None, "r1", "l1"),
    N("tenant", "a tenant's scope"),
    N("workload", "a workload's scope", workload="chat"),
    N("subject", "a data subject's scope", workload="chat", subject="alice"),
    N("subject-absent", "no subject, in a workload whose scope is its subjects", workload="alice"),
    N("workload-empty", "an empty workload is not an absent one", workload=""),
    N("subject-empty", "an empty subject is not an absent one", workload="chat", subject=""),
    N("both-empty", "both are empty", workload="", subject=""),
    N("subject-alone", "a subject without a workload", subject="chat"),
    N("moved-right", "letters moved from one field to the next", tenant="acm", workload="e"),
    N("moved-left", "letters moved to the field before", "support-eua", "cme"),
    N("swapped", "deployment and tenant changed places", "acme", "support-eu"),
    N("bar", "a separator within a name", tenant="acme|chat"),
    N("bar-split", "the same around the separator", tenant="acme", workload="|chat"),
    N("slash", "a path within a name", tenant="acme/chat"),
    N("nul", "a zero byte within a name", tenant="acme\x00chat"),
    N("newline", "a line's end within a name", tenant="acme\n"),
    N("space", "a blank at the end of a name", tenant="acme "),
    N("forged-field", "a name that holds an encoded field", tenant="acme\x01\x00\x00\x00\x04chat"),
    N("forged-absence", "a name that holds two absent fields", tenant="acme\x00\x00"),
    N("none-as-text", "the text None is a name", workload="None"),
    N("composed", "é as one character (NFC)", tenant=COMPOSED, same_as="composed"),
    N("decomposed", "é as e and accent (NFD): one name", tenant=DECOMPOSED, same_as="composed"),
    N("unaccented", "without the accent", tenant="Cafe"),
    N("ligature", "NFC keeps the ligature fi apart from f and i", tenant="\ufb01n"),
    N("no-ligature", "f and i", tenant="fin"),
    N("full-width", "NFC keeps full-width letters apart", tenant="\uff41cme"),
    N("cyrillic", "a Cyrillic letter that looks like a Latin one", tenant="\u0430cme"),
    N("zero-width", "a character that nobody sees", tenant="ac\u200bme"),
    N("capital", "case counts", tenant="Acme"),
    N("angstrom", "the unit's sign is the letter (NFC)", tenant="\u212b", same_as="angstrom"),
    N("a-with-ring", "the letter", tenant="\u00c5", same_as="angstrom"),
    N("hangul-jamo", "syllables in parts", tenant="\u1112\u1161\u11ab", same_as="hangul"),
    N("hangul", "and as one character", tenant="\ud55c", same_as="hangul"),
    N("astral", "a character beyond 16 bits", tenant="\U0001f511"),
    N("long", "a name of 300 bytes", tenant="a" * 300),
    N("other-revision", "another model revision", model_revision="sha256:" + "ac" * 32),
    N("other-layout", "another layout", layout=stream("engine", 32).hex()),
    N("layout-upper-case", "a layout is lower-case hex: this is another", layout=LAYOUT.upper()),
    N("other-deployment", "another deployment", "support-us"),
    N("adapter", "with a LoRA adapter", adapter="cd" * 32),
    N("other-adapter", "with another adapter", adapter="ce" * 32),
    N("adapter-empty", "an empty adapter is not the model alone", adapter=""),
    N("adapter-in-layout", "an adapter's digest after the layout's", layout=LAYOUT + "cd" * 32),
    N("group", "a sharing group's scope", tenant=None, group="manuals"),
    N("group-like-tenant", "a group that is called like a tenant", tenant=None, group="acme"),
    N("other-group", "another group", tenant=None, group="manual"),
    N("group-composed", "a group in NFC", tenant=None, group=COMPOSED, same_as="group-composed"),
    N("group-decomposed", "and NFD", tenant=None, group=DECOMPOSED, same_as="group-composed"),
    N("group-adapter", "a group and an adapter", tenant=None, group="manuals", adapter="cd" * 32),
    N("other-key", "the same fields in a deployment with another key", key=bytes(32)),
]


def _name(case: str, description: str, key: bytes, block_hash: bytes, group: int) -> Json:
    return {
        "id": case,
        "description": description,
        "naming_key": key.hex(),
        "block_hash": block_hash.hex(),
        "group": group,
        "name": block_name(key, block_hash, group).hex(),
    }


HASH = stream("block hash", 32)
BLOCK_NAMES = [
    _name("ordinary", "a block of group 0", NAMING_KEY, HASH, 0),
    _name("group-1", "the same tokens in KV group 1", NAMING_KEY, HASH, 1),
    _name("group-last", "the last group there is", NAMING_KEY, HASH, 2**32 - 1),
    _name("group-256", "groups are big-endian", NAMING_KEY, HASH, 256),
    _name("other-namespace", "the same block elsewhere", OTHER_NAMING_KEY, HASH, 0),
    _name("hash-zeros", "a hash of zeros", NAMING_KEY, bytes(32), 0),
    _name("one-bit", "one bit of the hash", NAMING_KEY, bytes([HASH[0] ^ 1]) + HASH[1:], 0),
    _name("shorter-hash", "a 16-byte hash", NAMING_KEY, HASH[:16], 0),
    _name("no-hash", "an empty hash", NAMING_KEY, b"", 0),
    _name("group-in-hash", "a hash that ends like a group", NAMING_KEY, HASH + bytes(4), 0),
]
