"""The catalogue of events: what may be recorded, and nothing else.

A field that the catalogue does not know is not written: a prompt, token or key can't slip into the
trail by an oversight, only by a change of this file.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

COMMON_FIELDS = (
    "tenant",
    "workload",
    "action",
    "tier",
    "outcome",
    "reason",
    "policy_version",
    "request_id",
)
"""Fields of every event; `null` where one does not apply."""

CHAIN_FIELDS = ("time", "seq", "stream", "event", "prev")
"""Fields that the writer adds: when, which record of which stream, and the link backwards."""

OPENING = "stream.opened"
CHECKPOINT = "audit.checkpoint"
GAP = "audit.gap"
INVALID = "audit.invalid"

EVENTS: Mapping[str, tuple[str, ...]] = {
    # the trail itself
    OPENING: ("deployment", "kind", "version", "process", "checkpoint_every"),
    CHECKPOINT: ("records", "final", "signature"),
    GAP: ("dropped",),
    INVALID: ("rejected_event", "rejected_fields"),
    # the engine
    "engine.started": ("model_revision", "layout", "config_digest", "tiers"),
    "engine.stopped": (),
    # requests, in the engine
    "request.admitted": ("namespace", "group", "adapter", "tiers", "rules", "unenforced"),
    "request.ungoverned": (),
    # blocks
    "blocks.stored": ("blocks", "bytes", "failed"),
    "blocks.loaded": ("blocks", "bytes", "failed"),
    "blocks.dropped": ("blocks", "why"),
    "block.rejected": ("block", "check"),
    # the gateway
    "auth.failed": ("client", "key_id", "suppressed"),
    "request.accepted": ("path", "key_id", "group"),
    "request.refused": ("path", "key_id", "suppressed"),
    "parameters.removed": ("names",),
    "sharing.refused": ("group",),
    # keys and policy
    "key.created": ("namespace", "key_id", "epoch"),
    "key.destroyed": ("namespace", "key_id", "epoch"),
    "keys.rewrapped": ("keys", "failed", "root"),
    "token.minted": ("key_id", "admin", "group"),
    "token.revoked": ("key_id",),
    "policy.loaded": ("previous",),
    "policy.rejected": ("file", "line", "field"),
}
"""The fields that an event has beyond the common ones."""

_TEXT = {"type": ["string", "null"]}
_DIGEST = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def event_schema() -> dict[str, Any]:
    """JSON Schema of a record; `audit/schema/event.schema.json` is this, written out."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvcustody audit event",
        "type": "object",
        "required": [*CHAIN_FIELDS, *COMMON_FIELDS],
        "properties": {
            "time": {"type": "string", "format": "date-time"},
            "seq": {"type": "integer", "minimum": 1},
            "stream": {"type": "string"},
            "event": {"enum": list(EVENTS)},
            "prev": _DIGEST,
            **dict.fromkeys(COMMON_FIELDS, _TEXT),
        },
        "oneOf": [
            {
                "properties": {
                    "event": {"const": name},
                    **dict.fromkeys(CHAIN_FIELDS[:3] + CHAIN_FIELDS[4:], True),
                    **dict.fromkeys(COMMON_FIELDS + fields, True),
                },
                "additionalProperties": False,
            }
            for name, fields in EVENTS.items()
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(event_schema(), indent=2) + "\n")
