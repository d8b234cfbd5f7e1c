"""Write the test vectors: `python tests/vectors/generate.py [FOLDER]`.

Imports nothing of kvcustody: the vectors are a second opinion, made by `reference_sealed_block`
from the document alone. Running it again gives the same bytes.
"""

import json
import sys
from pathlib import Path

from invalid_cases import INVALID
from name_cases import BLOCK_NAMES, NAMESPACES
from reference_sealed_block import field
from valid_cases import VALID
from vector import Json

_FORMAT = "kvcustody sealed block, format 1"


def files() -> dict[str, Json]:
    """The contents of the files, by name.

    Raises:
        AssertionError: a vector isn't what it claims, two have one id, or two messages one key.

    """
    messages = {vector.sealed for vector in VALID}
    if len(messages) != len({field(message, "commitment") for message in messages}):
        raise AssertionError("a block key seals two messages")
    valid = [vector.to_json() for vector in VALID]
    invalid = [vector.to_json() for vector in INVALID]
    namespaces = [case.to_json() for case in NAMESPACES]
    for vectors in (valid, invalid, namespaces, BLOCK_NAMES):
        ids = [vector["id"] for vector in vectors]
        if len(set(map(str, ids))) != len(ids):
            raise AssertionError("two vectors have one id")
    return {
        "valid.json": {"format": _FORMAT, "vectors": valid},
        "invalid.json": {"format": _FORMAT, "vectors": invalid},
        "names.json": {"format": _FORMAT, "namespaces": namespaces, "block_names": BLOCK_NAMES},
    }


def main() -> None:
    """Write the files beside this program, or into the folder that is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    for name, content in files().items():
        text = json.dumps(content, indent=1, ensure_ascii=True)
        (folder / name).write_text(text + "\n", encoding="ascii", newline="\n")


if __name__ == "__main__":
    main()
