"""Where custody.yaml puts the registry."""

from pathlib import Path

import pytest

from kvcustody.config import Settings, load_settings

pytestmark = pytest.mark.unit

TEXT = """\
version: 1
deployment: local
state: state
keys: {path: root.key}
tiers: [{name: disk, path: tier}]
tenants: {acme: {}}
authorization: {policy: policy.csv}
audit: {path: audit}
"""


def load(folder: Path, registry: str) -> Settings:
    file = folder / "custody.yaml"
    file.write_text(f"{TEXT}registry: {registry}\n", encoding="utf-8")
    return load_settings(file)


def test_a_relative_file_lies_beside_the_configuration(tmp_path: Path) -> None:
    settings = load(tmp_path, "sqlite:///other.sqlite")
    assert settings.registry_url == f"sqlite:///{tmp_path / 'other.sqlite'}"


def test_a_registry_on_a_server_is_taken_as_it_is_and_its_password_kept_out_of_sight(
    tmp_path: Path,
) -> None:
    url = "postgresql://root:hunter2@db.example/registry?sslmode=verify-full"
    settings = load(tmp_path, url)
    assert settings.registry_url == url
    assert "hunter2" not in repr(settings)
    # The audit trail has a digest of this: from it, nobody may try out passwords.
    dump = settings.model_dump_json()
    assert "root@db.example/registry?sslmode=verify-full" in dump
    assert "hunter2" not in dump
