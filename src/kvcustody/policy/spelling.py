"""What somebody may have meant who wrote a name that nothing has."""

from collections.abc import Collection
from difflib import get_close_matches
from itertools import islice

_MOST_LISTED = 10
# Comparing with more takes seconds.
_MOST_COMPARED = 1000


def suggest(value: str, known: Collection[str]) -> str:
    """A question after the name that is most like the value; empty if none is like it."""
    if len(known) > _MOST_COMPARED:
        return ""
    close = get_close_matches(value, known, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def some_of(names: Collection[str]) -> str:
    """Names, separated by commas; of many, the first and how many more there are."""
    more = len(names) - _MOST_LISTED
    text = ", ".join(islice(names, _MOST_LISTED))
    return f"{text} and {more} more" if more > 0 else text
