"""`kvcustody keys` and `inspect --verify`, as operators and scripts use them."""

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from command_line import Run, one_line
from kvcustody.config import load_settings
from kvcustody.namespace import Namespace, Scope
from kvcustody.sealing import BlockIdentity, NamespaceKeys, seal_into, sealed_size
from kvcustody.sealing.providers import create_key_file
from kvcustody.wiring import open_keys

pytestmark = pytest.mark.unit

ACME = Namespace(Scope("local", "acme"), "revision-1", "ab" * 32)
GLOBEX = Namespace(Scope("local", "globex", "chat"), "revision-1", "ab" * 32, adapter="cd" * 32)
PLAINTEXT = bytes(1000)
FAR = 4_000_000_000_000


def use(config: Path, namespace: Namespace) -> str:
    """Use a namespace, as an engine does; its identifier."""
    with closing(open_keys(load_settings(config))) as keys:
        return keys.keyring.namespace_keys(namespace).identifier.hex()


def block(config: Path, folder: Path, *, expires: int = FAR) -> Path:
    """A block of acme, stored as an engine stores it."""
    with closing(open_keys(load_settings(config))) as keys:
        return _seal(keys.keyring.namespace_keys(ACME), folder, expires)


def _seal(keys: NamespaceKeys, folder: Path, expires: int) -> Path:
    name = keys.name(b"block")
    assert name is not None
    assert keys.current is not None
    sealed = bytearray(sealed_size(len(PLAINTEXT)))
    identity = BlockIdentity(keys.identifier, name, b"l" * 32)
    seal_into(memoryview(sealed), PLAINTEXT, identity, keys.current, created=0, expires=expires)
    path = folder / keys.identifier.hex() / name.hex()[:2] / f"{name.hex()}.kvb"
    path.parent.mkdir(parents=True)
    path.write_bytes(sealed)
    return path


def audited(config: Path, run: Run, event: str) -> list[dict[str, Any]]:
    lines = run("audit", "query", "--event", event, "-c", config, "--json").out.splitlines()
    return [json.loads(line) for line in lines]


def test_list_tells_namespaces_and_epochs_and_no_secret(config: Path, run: Run) -> None:
    ours, theirs = use(config, ACME), use(config, GLOBEX)
    first, second = run("keys", "list", "-c", config, "--json").json()
    assert (first["namespace"], first["tenant"], first["workload"]) == (ours, "acme", None)
    assert (second["namespace"], second["workload"], second["adapter"]) == (
        theirs,
        "chat",
        "cd" * 32,
    )
    (epoch,) = first["epochs"]
    assert epoch["epoch"] == 1
    assert epoch["root"].startswith("local:")
    assert (epoch["retired"], epoch["destroyed"], first["destroyed"]) == (None, None, None)
    only = run("keys", "list", "--tenant", "globex", "-c", config, "--json").json()
    assert [record["namespace"] for record in only] == [theirs]
    table = run("keys", "list", "-c", config).out
    assert ours in table
    assert "globex/chat" in table


def test_rotate_begins_an_epoch_for_whom_it_was_asked(config: Path, run: Run) -> None:
    ours, _ = use(config, ACME), use(config, GLOBEX)
    done = run("keys", "rotate", "--tenant", "acme", "-c", config, "--json").json()
    assert done == {"rotated": 1, "namespaces": [ours]}
    first, second = run("keys", "list", "-c", config, "--json").json()
    assert [epoch["epoch"] for epoch in first["epochs"]] == [1, 2]
    assert [epoch["retired"] is None for epoch in first["epochs"]] == [False, True]
    assert len(second["epochs"]) == 1
    (event,) = audited(config, run, "key.created")
    assert (event["tenant"], event["epoch"], event["reason"]) == ("acme", 2, "command")
    assert run("keys", "rotate", "--all", "-c", config).code == 0


def test_destroy_is_a_dry_run_until_it_is_told_to_execute(config: Path, run: Run) -> None:
    ours = use(config, ACME)
    use(config, GLOBEX)
    command = ("keys", "destroy", "--tenant", "acme", "-c", config, "--json")
    assert run(*command).json() == {"executed": False, "namespaces": 1, "keys": 1}
    assert all(
        not record["destroyed"] for record in run("keys", "list", "-c", config, "--json").json()
    )
    assert audited(config, run, "key.destroyed") == []
    assert run(*command, "--execute").json() == {"executed": True, "namespaces": 1, "keys": 1}
    first, second = run("keys", "list", "-c", config, "--json").json()
    assert first["destroyed"]
    assert first["epochs"][0]["destroyed"]
    assert not second["destroyed"]
    (event,) = audited(config, run, "key.destroyed")
    assert (event["tenant"], event["namespace"], event["epoch"]) == ("acme", ours, 1)
    assert run(*command, "--execute").json() == {"executed": True, "namespaces": 1, "keys": 0}


def test_destroy_can_mean_one_workload_or_one_namespace(config: Path, run: Run) -> None:
    ours, theirs = use(config, ACME), use(config, GLOBEX)
    other = run(
        "keys", "destroy", "--tenant", "globex", "--workload", "mail", "-c", config, "--json"
    )
    assert other.json()["namespaces"] == 0
    run("keys", "destroy", "--tenant", "globex", "--workload", "chat", "--execute", "-c", config)
    run("keys", "destroy", "--namespace", ours, "--execute", "-c", config)
    listed = run("keys", "list", "-c", config, "--json").json()
    assert {record["namespace"] for record in listed if record["destroyed"]} == {ours, theirs}


def change_root_key(config: Path, *, keep_old: bool) -> None:
    new = config.parent / "keys" / "new.key"
    if not new.exists():
        create_key_file(new)
    previous = ", previous: [{path: keys/root.key}]" if keep_old else ""
    old = "keys: {provider: local, path: keys/root.key}"
    text = config.read_text().replace(", previous: [{path: keys/root.key}]", "")
    text = text.replace(old, "keys: {provider: local, path: keys/new.key}")
    config.write_text(text.replace("keys/new.key}", f"keys/new.key{previous}}}"))


def test_a_new_root_key_takes_over_by_rewrap(config: Path, run: Run) -> None:
    use(config, ACME)
    change_root_key(config, keep_old=False)
    assert "keys.previous" in one_line(run("keys", "rewrap", "-c", config))
    change_root_key(config, keep_old=True)
    done = run("keys", "rewrap", "-c", config, "--json").json()
    assert (done["rewrapped"] > 2, done["failed"]) == (True, 0)
    (event,) = audited(config, run, "keys.rewrapped")
    assert (event["keys"], event["root"]) == (done["rewrapped"], done["root"])
    change_root_key(config, keep_old=False)
    (config.parent / "keys" / "root.key").unlink()
    (record,) = run("keys", "list", "-c", config, "--json").json()
    assert record["epochs"][0]["root"] == done["root"]
    assert run("audit", "verify", "-c", config).code == 0


def test_new_root_makes_the_key_that_the_configuration_describes_and_overwrites_none(
    config: Path, run: Run
) -> None:
    use(config, ACME)
    before = (config.parent / "keys" / "root.key").read_bytes()
    assert "kept" in one_line(run("keys", "new-root", "-c", config))
    assert (config.parent / "keys" / "root.key").read_bytes() == before
    text = config.read_text().replace("path: keys/root.key", "path: keys/other.key")
    config.write_text(text)
    made = run("keys", "new-root", "-c", config, "--json").json()
    assert made["root"].startswith("local:")
    assert (config.parent / "keys" / "other.key").stat().st_mode & 0o777 == 0o600


def test_what_can_not_be_meant_is_refused_in_one_line(config: Path, run: Run) -> None:
    unknown = "0" * 32
    for arguments, text in (
        (("rotate",), "--tenant, --namespace and --all"),
        (("rotate", "--all", "--tenant", "acme"), "--tenant, --namespace and --all"),
        (("rotate", "--tenant", "acmee"), "unknown tenant"),
        (("rotate", "--namespace", unknown), "no such namespace"),
        (("destroy",), "--tenant or --namespace"),
        (("destroy", "--namespace", unknown, "--workload", "w"), "go with --tenant"),
        (("destroy", "--tenant", "acmee", "--execute"), "unknown tenant"),
        (("destroy", "--namespace", unknown, "--execute"), "no such namespace"),
    ):
        assert text in one_line(run("keys", *arguments, "-c", config))


def test_verify_opens_a_good_block_and_says_whose_it_is(
    config: Path, tmp_path: Path, run: Run
) -> None:
    path = block(config, tmp_path)
    shown = run("inspect", path, "--verify", "-c", config, "--json").json()
    assert (shown["verified"], shown["failure"], shown["tenant"]) == (True, None, "acme")
    assert "verified" in run("inspect", path, "--verify", "-c", config).out
    assert "verified" not in run("inspect", path, "--json").json()


@pytest.mark.parametrize(
    ("offset", "failure"), [(300, "tag"), (160, "commitment"), (75, "tag"), (12, "key-unavailable")]
)
def test_verify_names_the_check_that_an_altered_block_fails(
    config: Path, tmp_path: Path, run: Run, offset: int, failure: str
) -> None:
    path = block(config, tmp_path)
    assert run("inspect", path, "--verify", "-c", config).code == 0
    altered = bytearray(path.read_bytes())
    altered[offset] ^= 1
    path.write_bytes(altered)
    result = run("inspect", path, "--verify", "-c", config, "--json")
    assert (result.code, result.json()["failure"]) == (1, failure)
    assert run("inspect", path).code == 0, "the header alone is not judged"


def test_verify_finds_blocks_that_are_moved_cut_old_or_erased(
    config: Path, tmp_path: Path, run: Run
) -> None:
    def failure(path: Path) -> Any:
        result = run("inspect", path, "--verify", "-c", config, "--json")
        assert result.code == 1
        return result.json()["failure"]

    path = block(config, tmp_path)
    moved = path.with_name(f"{'0' * 64}.kvb")
    moved.write_bytes(path.read_bytes())
    assert failure(moved) == "wrong-name"
    elsewhere = tmp_path / ("0" * 32) / "00" / path.name
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_bytes(path.read_bytes())
    assert failure(elsewhere) == "wrong-namespace"
    assert failure(block(config, tmp_path / "old", expires=1)) == "expired"
    renamed = tmp_path / "block"
    renamed.write_bytes(path.read_bytes()[:-1])
    assert failure(renamed) == "truncated"
    os.truncate(renamed, 200)
    assert failure(renamed) == "truncated"
    renamed.write_bytes(b"something else")
    assert failure(renamed) == "not-sealed"
    run("keys", "destroy", "--tenant", "acme", "--execute", "-c", config)
    assert failure(path) == "key-destroyed"
