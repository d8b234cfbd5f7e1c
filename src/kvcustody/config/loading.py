"""Read custody.yaml; whatever is wrong with it becomes one line: file, line, field, remedy."""

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kvcustody.config.places import Location, Places, dotted
from kvcustody.config.section import BASE_DIRECTORY
from kvcustody.config.settings import PROVIDERS, Settings
from kvcustody.config.values import NAME_FORM
from kvcustody.errors import ConfigurationError

CONFIG_ENV = "KVCUSTODY_CONFIG"
"""Environment variable that names custody.yaml."""

# A configuration is a page long; more is a mistake (or a YAML bomb).
_LARGEST_FILE_BYTES = 1 << 20


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


def load_settings(path: Path | None = None) -> Settings:
    """Read and validate custody.yaml.

    Args:
        path: the file; without it, the one that `KVCUSTODY_CONFIG` names, else ./custody.yaml.

    Raises:
        ConfigurationError: the file can't be read or something in it is wrong.

    """
    path = (path or Path(os.environ.get(CONFIG_ENV) or "custody.yaml")).absolute()
    text = _read(path)
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
        raise ConfigurationError("nested too deeply; this is not a custody.yaml", path) from None
    if not isinstance(data, dict):
        raise ConfigurationError("expected fields such as 'version: 1'; see `kvcustody init`", path)
    places = Places(path, lines)
    try:
        settings = Settings.model_validate(data, context={BASE_DIRECTORY: path.parent})
    except ValidationError as error:
        # Where a field is missing and another unknown, the one is the other misspelt.
        details = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        raise _explain(details[0], places) from None
    if (unknown := settings.unknown_name()) is not None:
        field, message = unknown
        raise ConfigurationError(message, path, places.line(field), dotted(field))
    return settings.read_from(places)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise ConfigurationError("larger than 1 MiB; this is not a custody.yaml", path)
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError("not UTF-8 text", path) from None
    except FileNotFoundError:
        raise ConfigurationError("no such file; `kvcustody init` writes one", path) from None
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


def _explain(detail: ErrorDetails, places: Places) -> ConfigurationError:
    # A dictionary's key is reported as (..., key, "[key]"); the key itself is the place.
    parts = [part for part in detail["loc"] if part != "[key]"]
    if parts[:1] == ["keys"]:
        # Pydantic names the kind of provider that it took, which is no field.
        parts = [part for part in parts if part not in PROVIDERS]
        if detail["type"] == "unknown_provider":
            parts.append("provider")
    location: Location = tuple(parts)
    return ConfigurationError(
        _remedy(detail), places.file, places.line(location), dotted(location) or None
    )


def _remedy(detail: ErrorDetails) -> str:
    """Pydantic's message, said to a person who edits YAML."""
    kind, message = detail["type"], detail["msg"]
    if kind == "extra_forbidden":
        return "unknown field; check its spelling and its indentation"
    if kind == "missing":
        return "required field is missing; add it"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind == "less_than_equal":
        return f"at most {detail['ctx']['le']:g}s"
    if kind == "is_instance_of":
        return "write the path of a file or folder, below a home folder that exists"
    if kind == "string_pattern_mismatch":
        return NAME_FORM
    if kind in {"model_type", "dict_type", "model_attributes_type"}:
        return "expected indented fields below this one"
    return f"{message[0].lower()}{message[1:]}"
