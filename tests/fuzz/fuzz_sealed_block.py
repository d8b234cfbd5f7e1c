"""Coverage-guided fuzzing of the header parser and of `open_into`, with atheris.

    python tests/fuzz/fuzz_sealed_block.py [--plant=BUG] CORPUS [libFuzzer's options]

See README.md here. A finding ends the program with an uncaught exception and leaves the input.
"""

import sys
from pathlib import Path

import atheris

# Run as a program, from wherever: the reference reader lies in a neighbouring folder.
sys.path.append(str(Path(__file__).resolve().parents[1] / "vectors"))

with atheris.instrument_imports(
    include=["kvcustody.sealing", "recipe", "reference_sealed_block", "sealed_block_target"]
):
    from sealed_block_target import check

_PLANT = "--plant="


def main() -> None:
    """Fuzz until libFuzzer's options say that it is enough."""
    arguments = [argument for argument in sys.argv if not argument.startswith(_PLANT)]
    for argument in sys.argv:
        if argument.startswith(_PLANT):
            from planted_bugs import PLANTS  # noqa: PLC0415 - patches nothing unless asked for

            PLANTS[argument.removeprefix(_PLANT)]()
    atheris.Setup(arguments, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
