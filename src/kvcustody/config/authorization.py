"""The section `authorization` of custody.yaml: where the policy comes from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    field_validator,
    model_validator,
)

from kvcustody.config.section import BASE_DIRECTORY, Name, Section, resolve
from kvcustody.config.values import Duration
from kvcustody.errors import ConfigurationError

_SECRET_FILE = "secret_file"  # noqa: S105 - a key of custody.yaml
_ARGUMENTS_FORM = (
    "write a list or fields of plain values (text, numbers, true, false, null) or "
    f"{{{_SECRET_FILE}: PATH}}"
)
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


@dataclass(frozen=True)
class SecretFile:
    """A value that stands in a private file.

    Args:
        path: the file.

    """

    path: Path


Argument = str | int | float | bool | SecretFile | None
"""A value for an adapter's constructor."""


@dataclass(frozen=True)
class AdapterArguments:
    """What an adapter's constructor is given; never shown, for people write passwords there.

    Args:
        positional: in order.
        named: by name.

    """

    positional: tuple[Argument, ...] = field(default=(), repr=False)
    named: Mapping[str, Argument] = field(default_factory=dict, repr=False)


def _parse_arguments(value: object, info: ValidationInfo) -> AdapterArguments:
    base = (info.context or {}).get(BASE_DIRECTORY)
    if isinstance(value, list):
        return AdapterArguments(tuple(_parse_argument(each, base) for each in value))
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return AdapterArguments(
            (), {name: _parse_argument(each, base) for name, each in value.items()}
        )
    raise ValueError(_ARGUMENTS_FORM)


def _parse_argument(value: object, base: Path | None) -> Argument:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict) and list(value) == [_SECRET_FILE]:
        text = value[_SECRET_FILE]
        path = resolve(base or Path(), text) if isinstance(text, str) else None
        if isinstance(path, Path):
            return SecretFile(path)
    raise ValueError(_ARGUMENTS_FORM)


def _without_values(arguments: AdapterArguments) -> list[str | int]:
    """The audit trail has a digest of the settings; it must not help to guess a password."""
    return [len(arguments.positional), *sorted(arguments.named)]


class AdapterSettings(Section):
    """A Casbin adapter that reads the policy, from a database for example."""

    # MODULE.CLASS.
    class_name: Annotated[str, Field(alias="class", max_length=256)]
    arguments: Annotated[
        AdapterArguments, PlainValidator(_parse_arguments), PlainSerializer(_without_values)
    ] = AdapterArguments()
    # SQLAlchemy's adapters take an engine first: for the registry's own database, or for the URL
    # that stands in a private file.
    database: Literal["registry"] | None = None
    url_file: Path | None = None
    # How long a change may go unnoticed.
    refresh: Annotated[Duration, Field(le=3600.0)] = 30.0

    @field_validator("class_name")
    @classmethod
    def _check_class(cls, name: str) -> str:
        if _CLASS.fullmatch(name) is None:
            raise ValueError("write MODULE.CLASS, such as sqlalchemy_adapter.Adapter")
        return name

    @model_validator(mode="after")
    def _check_database(self) -> Self:
        if self.database is not None and self.url_file is not None:
            raise ValueError("write one of `database` and `url_file`, not both")
        return self


class AuthorizationSettings(Section):
    """The Casbin model and policy; without a model, the built-in one is used."""

    model: Path | None = None
    # Where the rules are: in a file, or where an adapter finds them.
    policy: Path | None = None
    adapter: AdapterSettings | None = None
    # `audit-only` records what the policy would deny, and allows it.
    mode: Literal["enforce", "audit-only"] = "enforce"
    # Tenants for whom the mode is `audit-only`, where it is `enforce` for others.
    audit_only: list[Name] = Field(default_factory=list)

    @property
    def policy_file(self) -> Path:
        """The file with the rules.

        Raises:
            ConfigurationError: the rules are in none.

        """
        if self.policy is None:
            raise ConfigurationError("an adapter reads the policy; there is no file of it")
        return self.policy

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.policy is None) == (self.adapter is None):
            raise ValueError("write one of `policy` (a file) and `adapter` (a database)")
        return self
