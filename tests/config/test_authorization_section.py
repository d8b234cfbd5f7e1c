"""Where custody.yaml says that the policy is."""

from pathlib import Path
from typing import Any

import pytest

from kvcustody.config import AdapterArguments, AdapterSettings, SecretFile, Settings
from kvcustody.errors import ConfigurationError
from policy_database import LINE, SECRET, SQLALCHEMY, settings_with

pytestmark = pytest.mark.unit


def adapter_of(folder: Path, **fields: Any) -> AdapterSettings:
    return _adapter(settings_with(folder, {"adapter": {"class": SQLALCHEMY, **fields}}))


def _adapter(settings: Settings) -> AdapterSettings:
    assert settings.authorization.adapter is not None
    return settings.authorization.adapter


def test_an_adapter_is_named_by_its_class(tmp_path: Path) -> None:
    adapter = adapter_of(tmp_path)
    assert adapter.class_name == SQLALCHEMY
    assert adapter.arguments == AdapterArguments()
    assert adapter.refresh == 30.0


def test_arguments_are_a_list_or_have_names(tmp_path: Path) -> None:
    values = ["text", 1, 1.5, True, None, {"secret_file": "key"}]
    read = ("text", 1, 1.5, True, None, SecretFile(tmp_path / "key"))
    assert adapter_of(tmp_path, arguments=values).arguments == AdapterArguments(read)
    named = {f"a{number}": value for number, value in enumerate(values)}
    expected = {f"a{number}": value for number, value in enumerate(read)}
    assert adapter_of(tmp_path, arguments=named).arguments == AdapterArguments((), expected)


def test_a_url_file_lies_beside_the_configuration(tmp_path: Path) -> None:
    assert adapter_of(tmp_path, url_file="policy-db.url").url_file == tmp_path / "policy-db.url"


@pytest.mark.parametrize(
    "arguments",
    [[f"mongodb://root:{SECRET}@db/"], {"password": SECRET}, {"host": "db", "password": SECRET}],
)
def test_what_an_adapter_is_given_is_not_shown(tmp_path: Path, arguments: Any) -> None:
    settings = settings_with(tmp_path, {"adapter": {"class": SQLALCHEMY, "arguments": arguments}})
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings)
    # The audit trail has a digest of this: from it, nobody may try out passwords.
    assert SECRET not in settings.model_dump_json()
    assert SECRET not in repr(settings.model_dump())


def test_settings_with_and_without_an_argument_differ(tmp_path: Path) -> None:
    dumps = {
        adapter_of(tmp_path, arguments=arguments).model_dump_json()
        for arguments in ([], ["x"], {"x": 1}, {"y": 1})
    }
    assert len(dumps) == 4


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "authorization: write one of `policy` (a file) and `adapter` (a database)"),
        (
            {"policy": "policy.csv", "adapter": {"class": SQLALCHEMY}},
            "authorization: write one of `policy` (a file) and `adapter` (a database)",
        ),
        ({"adapter": {}}, "authorization.adapter.class: required field is missing; add it"),
        (
            {"adapter": {"class": "Adapter"}},
            "authorization.adapter.class: write MODULE.CLASS, such as sqlalchemy_adapter.Adapter",
        ),
        (
            {"adapter": {"class": "os;system.x"}},
            "authorization.adapter.class: write MODULE.CLASS, such as sqlalchemy_adapter.Adapter",
        ),
        (
            {"adapter": {"class": SQLALCHEMY, "database": "registry", "url_file": "x"}},
            "authorization.adapter: write one of `database` and `url_file`, not both",
        ),
        (
            {"adapter": {"class": SQLALCHEMY, "database": f"postgresql://root:{SECRET}@db/x"}},
            "authorization.adapter.database: input should be 'registry'",
        ),
        (
            {"adapter": {"class": SQLALCHEMY, "refresh": "2h"}},
            "authorization.adapter.refresh: at most 3600s",
        ),
        (
            {"adapter": {"class": SQLALCHEMY, "arguments": SECRET}},
            "authorization.adapter.arguments: write a list or fields of plain values",
        ),
        (
            {"adapter": {"class": SQLALCHEMY, "arguments": [[SECRET]]}},
            "authorization.adapter.arguments: write a list or fields of plain values",
        ),
        (
            {"adapter": {"class": SQLALCHEMY, "arguments": {"x": {"secret_file": 1}}}},
            "authorization.adapter.arguments: write a list or fields of plain values",
        ),
        (
            {"adapter": {"class": SQLALCHEMY, "arguments": [{"secret_file": ""}]}},
            "authorization.adapter.arguments: write a list or fields of plain values",
        ),
        (
            {"adapter": {"class": SQLALCHEMY, "password": SECRET}},
            "authorization.adapter.password: unknown field",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_field_and_without_what_was_written(
    tmp_path: Path, section: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings_with(tmp_path, section)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'custody.yaml'}:{LINE}: {message}")
    assert SECRET not in text
    assert len(text.splitlines()) == 1


def test_who_asks_for_the_file_of_a_policy_in_a_database_is_told(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, {"adapter": {"class": SQLALCHEMY}})
    with pytest.raises(ConfigurationError, match="an adapter reads the policy"):
        _ = settings.authorization.policy_file
