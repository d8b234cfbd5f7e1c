"""One of several processes that add the same and different rows at once; see test_race.py.

Arguments: the registry's URL, this process's name, threads, rows. Waits for a line on stdin; prints
as JSON which of the shared rows it added.
"""

import json
import sys
import threading

from kvcustody.registry import open_registry
from kvcustody.registry.schema import service_keys


def main(url: str, name: str, threads: int, rows: int) -> None:
    """Add rows."""
    print("ready", flush=True)  # noqa: T201 - read by the test
    sys.stdin.readline()
    registry = open_registry(url)
    won: list[tuple[int, str]] = []
    together = threading.Barrier(threads)

    def work(thread: int) -> None:
        me = f"{name}-{thread}"
        together.wait()
        for row in range(rows):
            with registry.write() as connection:
                for purpose in (f"shared-{row}", f"{me}-{row}"):
                    added = registry.insert_if_absent(
                        connection,
                        service_keys,
                        purpose=purpose,
                        wrapped=me.encode(),
                        created=0.0,
                    )
                    if added:
                        won.append((row, purpose))

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    registry.close()
    print(json.dumps(won))  # noqa: T201 - read by the test


if __name__ == "__main__":
    # A busy disk may take longer to commit than a scheduler is ready to wait.
    import kvcustody.registry.sqlite

    kvcustody.registry.sqlite._LOCK_WAIT_SECONDS = 20
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
