"""The operating system's name for who runs this process."""

import os
import pwd
import re

OPERATOR = "user:"
"""How policies' names for operators begin."""
OPERATOR_FORM = re.compile(r"user:[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
"""An operator's name."""


def operator_name() -> str:
    """How policies name whoever runs this process: `user:NAME`, or `user:NUMBER` without a name."""
    number = os.getuid()
    try:
        name = f"{OPERATOR}{pwd.getpwuid(number).pw_name}"
    except KeyError:
        name = ""
    return name if OPERATOR_FORM.fullmatch(name) else f"{OPERATOR}{number}"
