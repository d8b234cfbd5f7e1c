"""Read custody.yaml; whatever is wrong with it becomes one line: file, line, field, remedy."""

import os
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kvcustody.config.documents import DocumentKind, read_document
from kvcustody.config.places import Location, Places, dotted
from kvcustody.config.section import BASE_DIRECTORY
from kvcustody.config.settings import PROVIDERS, Settings
from kvcustody.config.values import NAME_FORM
from kvcustody.errors import ConfigurationError

CONFIG_ENV = "KVCUSTODY_CONFIG"
"""Environment variable that names custody.yaml."""

# A configuration is a page long.
_CUSTODY_YAML = DocumentKind(
    "a custody.yaml",
    most_mebibytes=1,
    missing="no such file; `kvcustody init` writes one",
    empty="expected fields such as 'version: 1'; see `kvcustody init`",
)


def load_settings(path: Path | None = None) -> Settings:
    """Read and validate custody.yaml.

    Args:
        path: the file; without it, the one that `KVCUSTODY_CONFIG` names, else ./custody.yaml.

    Raises:
        ConfigurationError: the file can't be read or something in it is wrong.

    """
    path = (path or Path(os.environ.get(CONFIG_ENV) or "custody.yaml")).absolute()
    document = read_document(path, _CUSTODY_YAML)
    places = document.places
    try:
        settings = Settings.model_validate(document.data, context={BASE_DIRECTORY: path.parent})
    except ValidationError as error:
        # Where a field is missing and another unknown, the one is the other misspelt.
        details = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        raise explain_invalid(details[0], places) from None
    if (unknown := settings.unknown_name()) is not None:
        field, message = unknown
        raise ConfigurationError(message, path, places.line(field), dotted(field))
    return settings.read_from(places)


def explain_invalid(detail: ErrorDetails, places: Places) -> ConfigurationError:
    """What Pydantic found, as a line with its place."""
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
