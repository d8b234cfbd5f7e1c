"""Where the fields of custody.yaml stand: an error that is found later still names its line."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvcustody.errors import ConfigurationError

Location = tuple[int | str, ...]


@dataclass(frozen=True)
class Places:
    """The lines of a configuration file.

    Args:
        file: the file; `None` for settings that came from none.
        lines: 1-based line of every key and list item, by its location.

    """

    file: Path | None = None
    lines: Mapping[Location, int] = field(default_factory=dict)

    def line(self, location: Location) -> int:
        """The line of a location, or of the nearest one around it."""
        while location and location not in self.lines:
            # A key that is a number in YAML stands among the lines as text.
            as_text = (*location[:-1], str(location[-1]))
            location = as_text if as_text in self.lines else location[:-1]
        return self.lines.get(location, 1)

    @contextmanager
    def blame(self, *location: int | str) -> Iterator[None]:
        """Make an error inside name the field that led to it.

        Args:
            location: of the field, such as `"tiers", 0, "path"`.

        Raises:
            ConfigurationError: one was raised inside.

        """
        try:
            yield
        except ConfigurationError as error:
            if self.file is None or error.file == self.file:
                raise
            culprit = ConfigurationError(error.message, error.file, error.line)
            raise ConfigurationError(
                str(culprit), self.file, self.line(location), dotted(location)
            ) from None


def dotted(location: Location) -> str:
    """A location as people write it: `tiers[0].path`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    # A key may hold a line break or a terminal's control characters.
    return text if text.isprintable() else repr(text)
