import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from kvcustody.config import RootSettings
from kvcustody.errors import ConfigurationError
from kvcustody.sealing.providers import (
    DeadlineProvider,
    LocalKeyProvider,
    blamed_field,
    create_root,
    open_provider,
)

LIBRARIES = {"boto3", "botocore", "pkcs11"}


def settings(**fields: Any) -> RootSettings:
    validated: RootSettings = TypeAdapter(RootSettings).validate_python(fields)
    return validated


def aws() -> RootSettings:
    return settings(provider="aws-kms", key_id="alias/a", region="eu-central-1")


def pkcs11(folder: Path) -> RootSettings:
    return settings(
        provider="pkcs11",
        module=folder / "module.so",
        token="t",  # noqa: S106 - a label
        pin_file=folder / "pin",
    )


@pytest.mark.unit
def test_a_local_root_is_created_and_opened_without_a_deadline(tmp_path: Path) -> None:
    root = settings(path=tmp_path / "root.key")
    create_root(root)
    assert isinstance(open_provider(root), LocalKeyProvider)
    with pytest.raises(ConfigurationError, match="exists already; it is kept"):
        create_root(root)
    assert blamed_field(root) == "path"


@pytest.mark.service
def test_providers_that_may_hang_have_a_deadline(tmp_path: Path) -> None:
    pin_file = tmp_path / "pin"
    pin_file.write_text("1234")
    pin_file.chmod(0o600)
    (tmp_path / "module.so").touch()
    for root, field in ((aws(), "key_id"), (pkcs11(tmp_path), "module")):
        provider = open_provider(root)
        assert isinstance(provider, DeadlineProvider)
        assert blamed_field(root) == field
        provider.close()


@pytest.mark.parametrize(("extra", "library"), [("aws", "boto3"), ("pkcs11", "pkcs11")])
@pytest.mark.unit
def test_a_missing_extra_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str, library: str
) -> None:
    for module in ("aws_kms", "pkcs11"):
        monkeypatch.delitem(sys.modules, f"kvcustody.sealing.providers.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigurationError) as caught:
        open_provider(aws() if extra == "aws" else pkcs11(tmp_path))
    assert str(caught.value) == f"this provider needs pip install 'kvcustody[{extra}]'"


@pytest.mark.unit
def test_a_key_in_aws_is_created_with_its_own_tools() -> None:
    with pytest.raises(ConfigurationError, match="run `aws kms create-key`"):
        create_root(aws())


@pytest.mark.unit
def test_opening_a_local_root_loads_no_library_of_another_provider(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from kvcustody.config import LocalRoot
from kvcustody.sealing.providers import create_root, open_provider
root = LocalRoot(path=Path({str(tmp_path / "root.key")!r}))
create_root(root)
open_provider(root).close()
print(*{{name.split('.')[0] for name in sys.modules}})
"""
    finished = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(finished.stdout.split())
    assert "kvcustody" in loaded
    assert not loaded & LIBRARIES
