"""Read a YAML file that people write; every mistake in it is found again by its line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvcustody.config.places import Location, Places, dotted
from kvcustody.errors import ConfigurationError


@dataclass(frozen=True)
class Document:
    """What a YAML file holds.

    Args:
        data: its fields.
        places: where they stand.

    """

    data: dict[Any, Any]
    places: Places


@dataclass(frozen=True)
class DocumentKind:
    """What a file should be, for the error that says that it isn't.

    Args:
        name: such as `custody.yaml`.
        most_mebibytes: more is a mistake (or a YAML bomb).
        missing: what to do if there is no such file.
        empty: what to write if there are no fields in it.

    """

    name: str
    most_mebibytes: int
    missing: str
    empty: str


class _Loader(yaml.SafeLoader):
    """YAML as data only: no aliases (a bomb needs them), no key twice (one would win silently)."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]  # untyped in the stubs
            raise yaml.constructor.ConstructorError(
                None,
                None,
                "aliases (*name) are not supported; write the value out",
                event.start_mark,
            )
        return super().compose_node(parent, index)


def read_document(path: Path, kind: DocumentKind) -> Document:
    """Read a YAML file.

    Args:
        path: the file.
        kind: what it should be.

    Raises:
        ConfigurationError: it can't be read, or is no YAML with fields.

    """
    text = _read(path, kind)
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines = _line_numbers(node, path)
            data = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise ConfigurationError(f"not valid YAML: {error.problem}", path, line) from None
    except (yaml.YAMLError, ValueError) as error:
        # A ValueError: what looks like a date or a number to YAML, but is none (2024-13-45).
        raise ConfigurationError(f"not valid YAML: {error}".splitlines()[0], path) from None
    except RecursionError:
        raise ConfigurationError(f"nested too deeply; this is not {kind.name}", path) from None
    if not isinstance(data, dict):
        raise ConfigurationError(kind.empty, path)
    return Document(data, Places(path, lines))


def _read(path: Path, kind: DocumentKind) -> str:
    try:
        if path.stat().st_size > kind.most_mebibytes << 20:
            raise ConfigurationError(
                f"larger than {kind.most_mebibytes} MiB; this is not {kind.name}", path
            )
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError("not UTF-8 text", path) from None
    except FileNotFoundError:
        raise ConfigurationError(kind.missing, path) from None
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", path) from None


def _line_numbers(node: yaml.Node | None, file: Path) -> dict[Location, int]:
    """1-based line of every key and list item below `node`, by its location.

    Raises:
        ConfigurationError: a mapping holds the same key twice.

    """
    lines: dict[Location, int] = {}

    def walk(node: yaml.Node, location: Location) -> None:
        lines.setdefault(location, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                below = (*location, str(key.value))
                if below in lines:
                    raise ConfigurationError(
                        f"written twice (first on line {lines[below]}); keep one",
                        file,
                        key.start_mark.line + 1,
                        dotted(below),
                    )
                lines[below] = key.start_mark.line + 1
                walk(value, below)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                walk(value, (*location, index))

    if node is not None:
        walk(node, ())
    return lines
