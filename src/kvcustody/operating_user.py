"""The operating system's name for who runs this process."""

import os
import pwd
import re

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


def operator_name() -> str:
    """How policies name whoever runs this process: `user:NAME`, or `user:NUMBER` without a name."""
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        name = ""
    return f"user:{name if _NAME.fullmatch(name) else number}"
