"""Opens a local provider, uses it, and closes it, so that a test can search this process's memory.

Takes the key file and perhaps its passphrase file; writes `in use`, waits for a line, writes
`closed`, and waits for another.
"""

import sys
from pathlib import Path

from kvcustody.sealing.providers import KeyContext, LocalKeyProvider

USES = 5


def main() -> None:
    provider = LocalKeyProvider(*map(Path, sys.argv[1:]))
    for number in range(USES):
        context = KeyContext("data key", str(number))
        unwrapped = provider.unwrap(provider.wrap(bytes(32), context), context)
        assert not any(unwrapped)
    sys.stdout.write("in use\n")
    sys.stdout.flush()
    sys.stdin.readline()
    provider.close()
    sys.stdout.write("closed\n")
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main()
