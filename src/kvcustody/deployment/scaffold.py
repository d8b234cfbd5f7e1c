"""Write a working deployment; nothing that exists is overwritten."""

from importlib.resources import files
from pathlib import Path

from kvcustody.config import load_settings
from kvcustody.errors import ConfigurationError
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import KeyStore, MintedKey
from kvcustody.operating_user import operator_name
from kvcustody.policy import BUILT_IN_MODEL
from kvcustody.private_folders import make_private_folder
from kvcustody.sealing.providers import create_key_file
from kvcustody.wiring import open_audit, open_keys, readable_policy

SAMPLE_TENANTS = ("acme", "globex")
SAMPLE_WORKLOAD = "default"

_TEMPLATES = files("kvcustody.deployment") / "templates"
_FOLDERS = ("keys", "policies", "state", "tier", "audit")


def init_deployment(config: Path) -> list[MintedKey]:
    """Write a deployment below the folder of `config`, and mint a key for each sample tenant.

    Raises:
        ConfigurationError: a file exists already or can't be written; nothing is overwritten.

    """
    _write_files(config)
    settings = load_settings(config)
    keys = open_keys(settings)
    audit = open_audit(settings, keys.keyring, "cli", readable_policy(settings))
    try:
        store = KeyStore(keys.registry)
        minted = [
            store.mint(Principal(tenant, SAMPLE_WORKLOAD), expires=None)
            for tenant in SAMPLE_TENANTS
        ]
        for key in minted:
            audit.record(
                "token.minted",
                tenant=key.record.principal.tenant,
                workload=key.record.principal.workload,
                action="mint",
                outcome="ok",
                key_id=key.record.id,
            )
    finally:
        audit.close()
        keys.close()
    return minted


def _policy() -> str:
    text = (_TEMPLATES / "policy.csv").read_text(encoding="utf-8")
    return f"{text}g, {operator_name()}, operators, local\n"


def _write_files(config: Path) -> None:
    root = config.parent
    contents = {
        config: (_TEMPLATES / "custody.yaml").read_text(encoding="utf-8"),
        root / "policies" / "policy.csv": _policy(),
        root / "policies" / "model.conf": BUILT_IN_MODEL,
    }
    key_file = root / "keys" / "root.key"
    for path in (*contents, key_file):
        if path.exists():
            raise ConfigurationError("exists already; nothing was overwritten", path)
    try:
        root.mkdir(parents=True, exist_ok=True)
        for folder in _FOLDERS:
            make_private_folder(root / folder)
        for path, text in contents.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigurationError(f"can't be written: {error.strerror}", root) from None
    create_key_file(key_file)
