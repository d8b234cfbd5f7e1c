"""What every section of custody.yaml shares."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationInfo, model_validator

from kvcustody.config.values import NAME_PATTERN

BASE_DIRECTORY = "base_directory"
"""Key in the validation context: the folder that relative paths start from."""

Name = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN}$", strict=True)]
"""A name of a tenant, tier or group."""


class Section(BaseModel):
    """Frozen, and a misspelt field is an error, not a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _resolve_paths(cls, data: object, info: ValidationInfo) -> object:
        """Make relative paths start from the folder of custody.yaml, wherever the process runs."""
        base = (info.context or {}).get(BASE_DIRECTORY)
        if base is None or not isinstance(data, dict):
            return data
        resolved = dict(data)
        for name, field in cls.model_fields.items():
            if field.annotation in (Path, Path | None) and isinstance(data.get(name), str):
                resolved[name] = resolve(base, data[name])
        return resolved


def resolve(base: Path, text: str) -> Path | str:
    """A path, relative to a folder unless it is absolute.

    Args:
        base: the folder.
        text: what somebody wrote.

    Returns:
        The path; the text itself if it is none.

    """
    if not text or "\0" in text:
        return text  # which is no path, and refused as such
    try:
        return base / Path(text).expanduser()
    except RuntimeError:
        return text  # ~ of a user that is not known here
