"""Run the command line, then stay alive so that a test can look at this process's memory."""

import sys

from kvcustody.cli import app

if __name__ == "__main__":
    try:
        app.main()
    except SystemExit as stop:
        print(f"exit {stop.code or 0}", flush=True)  # noqa: T201 - the test waits for it
    else:
        print("exit 0", flush=True)  # noqa: T201 - as above
    sys.stdin.readline()
