"""The command line as people and scripts use it: output, errors as one line, exit codes."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Run, one_line, replaced
from kvcustody.sealing import DataKey
from kvcustody.sealing.block import BlockIdentity, seal_into, sealed_size

pytestmark = pytest.mark.unit

JWT = (
    "jwt: {issuer: i, audience: a, jwks: absent.json, algorithms: [RS256], "
    "claims: {tenant: t, workload: w}}"
)


def test_init_writes_a_deployment_that_works_and_mints_two_keys(tmp_path: Path, run: Run) -> None:
    made = run("init", tmp_path / "site", "--json").json()
    assert [key["tenant"] for key in made["api_keys"]] == ["acme", "globex"]
    assert all(key["key"].startswith(f"kvc_{key['id']}_") for key in made["api_keys"])
    root = tmp_path / "site"
    assert (root / "keys" / "root.key").stat().st_mode & 0o777 == 0o600
    for folder in ("keys", "state", "tier", "audit"):
        assert (root / folder).stat().st_mode & 0o777 == 0o700, folder
    assert run("vllm-config", "-c", made["config"]).code == 0
    assert run("audit", "verify", "-c", made["config"]).code == 0


def test_init_overwrites_nothing(config: Path, run: Run) -> None:
    before = {path: path.read_bytes() for path in config.parent.rglob("*") if path.is_file()}
    assert "exists already; nothing was overwritten" in one_line(run("init", config.parent))
    assert before == {
        path: path.read_bytes() for path in config.parent.rglob("*") if path.is_file()
    }


def test_vllm_config_is_what_vllm_takes(config: Path, run: Run) -> None:
    plain = json.loads(run("vllm-config", "-c", config).out)
    assert plain == run("vllm-config", "-c", config, "--json").json()
    assert plain == {
        "kv_connector": "CustodyConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"custody": str(config)},
    }


def test_vllm_config_leaves_no_trace_in_the_audit_trail(config: Path, run: Run) -> None:
    before = sorted(path.name for path in (config.parent / "audit").iterdir())
    run("vllm-config", "-c", config)
    run("token", "list", "-c", config)
    assert sorted(path.name for path in (config.parent / "audit").iterdir()) == before


def test_a_relative_registry_lies_beside_the_configuration(
    config: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced("state: state ", "registry: sqlite:///other.db\nstate: state ")(config)
    monkeypatch.chdir(tmp_path)
    assert run("token", "list", "-c", config).code == 0
    assert (config.parent / "other.db").is_file()
    assert not (tmp_path / "other.db").exists()


def test_a_segment_that_is_no_file_of_the_trail_is_passed_over(config: Path, run: Run) -> None:
    (config.parent / "audit" / "x.jsonl").symlink_to("/proc/self/mem")
    assert run("audit", "tail", "-c", config).code == 0
    assert run("audit", "query", "-c", config).code == 0


def test_audit_verify_finds_a_changed_record_and_exits_1(config: Path, run: Run) -> None:
    intact = run("audit", "verify", "-c", config, "--json")
    assert (intact.code, intact.json()["ok"]) == (0, True)
    (segment,) = (config.parent / "audit").iterdir()
    segment.write_text(segment.read_text().replace('"acme"', '"umbrella"'))
    changed = run("audit", "verify", "-c", config, "--json")
    assert changed.code == 1
    (finding,) = changed.json()["findings"]
    assert finding == {"kind": "edited", "file": str(segment), "line": 3, "seq": 3}
    for_people = run("audit", "verify", "-c", config)
    assert for_people.code == 1
    assert f"{segment}:3: edited (seq 3)" in for_people.out
    assert "NOT intact" in for_people.out


def test_an_outsider_verifies_with_the_public_key_alone(
    config: Path, run: Run, tmp_path: Path
) -> None:
    public = tmp_path / "audit.pem"
    public.write_text(run("audit", "public-key", "-c", config).out)
    (config.parent / "keys" / "root.key").unlink()
    arguments = ("--directory", config.parent / "audit", "--public-key", public)
    assert run("audit", "verify", *arguments).code == 0
    public.write_text("nonsense")
    assert "not a PEM public key" in one_line(run("audit", "verify", *arguments))


def test_tables_are_whole_where_nobody_watches(config: Path, run: Run) -> None:
    assert "…" not in run("token", "list", "-c", config).out


def test_audit_tail_and_query_print_one_event_a_line(config: Path, run: Run) -> None:
    tail = run("audit", "tail", "-n", "2", "-c", config, "--json").out.splitlines()
    assert [json.loads(line)["event"] for line in tail] == ["token.minted", "audit.checkpoint"]
    query = run("audit", "query", "--tenant", "globex", "-c", config).out
    assert query.count("\n") == 1
    assert 'tenant="globex"' in query


def test_inspect_shows_a_blocks_header_without_any_key(tmp_path: Path, run: Run) -> None:
    plaintext = bytes(1000)
    sealed = bytearray(sealed_size(len(plaintext)))
    seal_into(
        memoryview(sealed),
        plaintext,
        BlockIdentity(b"n" * 16, b"b" * 32, bytes(32)),
        DataKey(b"k" * 16, bytes(32)),
        created=1_000,
        expires=2_000,
    )
    block = tmp_path / "block.kvb"
    block.write_bytes(sealed)
    shown = run("inspect", block, "--json").json()
    assert shown["namespace"] == (b"n" * 16).hex()
    assert shown["name"] == (b"b" * 32).hex()
    assert shown["plaintext_bytes"] == 1000
    assert {"format", "key_id", "created", "expires"} <= shown.keys()
    block.write_bytes(b"not a block")
    assert "block.kvb" in one_line(run("inspect", block))


def test_model_fingerprint_tells_the_revision_and_its_inputs(tmp_path: Path, run: Run) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    first = run("model", "fingerprint", tmp_path, "--json").json()
    assert {"config.json", "model.safetensors"} <= first["inputs"].keys()
    (tmp_path / "model.safetensors").write_bytes(b"retrained")
    second = run("model", "fingerprint", tmp_path, "--json").json()
    assert first["revision"] != second["revision"]


def spoil_key(config: Path) -> None:
    (config.parent / "keys" / "root.key").unlink()


def open_key_to_all(config: Path) -> None:
    (config.parent / "keys" / "root.key").chmod(0o644)


def damage_key(config: Path) -> None:
    key = config.parent / "keys" / "root.key"
    key.write_text(key.read_text()[:-8])


def unknown_action(config: Path) -> None:
    with (config.parent / "policies" / "policy.csv").open("a") as policy:
        policy.write("p, acme, local, *, fly, allow\n")


def unknown_tier(config: Path) -> None:
    with (config.parent / "policies" / "policy.csv").open("a") as policy:
        policy.write("p, acme, local, moon, load, allow\n")


def missing_policy(config: Path) -> None:
    (config.parent / "policies" / "policy.csv").unlink()


def unwritable_tier(config: Path) -> None:
    tier = config.parent / "tier"
    tier.rmdir()
    tier.write_text("a file")


def unwritable_audit(config: Path) -> None:
    replaced("audit: {path: audit", "audit: {path: custody.yaml/audit")(config)


def broken_registry(config: Path) -> None:
    (config.parent / "state" / "registry.sqlite").write_bytes(b"not a database" * 100)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (spoil_key, "custody.yaml:7: keys.path: {root}/keys/root.key: no such key file; restore"),
        (
            open_key_to_all,
            "custody.yaml:7: keys.path: {root}/keys/root.key: others may read it (mode 0644)",
        ),
        (damage_key, "custody.yaml:7: keys.path: {root}/keys/root.key: the key file is damaged"),
        (unknown_action, "policies/policy.csv:15: action: unknown action 'fly'; use one of"),
        (unknown_tier, "policies/policy.csv:15: tier: unknown tier 'moon'; "),
        (missing_policy, "policies/policy.csv: "),
        (
            replaced("host: {bytes", "host: {size: 1, bytes"),
            "custody.yaml:9: host.size: unknown field",
        ),
        (replaced("bytes: 1GiB", "bytes: [1]"), "custody.yaml:9: host.bytes: write a size with"),
        (replaced("version: 1", "version: one"), "custody.yaml:2: version: "),
        (replaced("path: tier,", "path: 7,"), "custody.yaml:11: tiers[0].path: "),
        (replaced("ttl: 24h", "ttl: tomorrow"), "custody.yaml:11: tiers[0].ttl: "),
        (
            replaced("bytes: 1GiB", "bytes: 900TiB"),
            "custody.yaml:9: host.bytes: more than /dev/shm",
        ),
        (replaced("path: tier,", "path: /proc/kv,"), "custody.yaml:11: tiers[0].path: /proc/kv: "),
        (replaced("load_deadline: 2s", "load_deadline: 1h"), "failure.load_deadline: at most 60s"),
        (replaced("lookup_deadline: 200ms", "lookup_deadline: 1m"), "lookup_deadline: at most 10s"),
        (replaced("assertion_ttl: 60s", "assertion_ttl: 1d"), "assertion_ttl: at most 3600s"),
        (
            replaced("checkpoint_every: 10s", "checkpoint_every: 1d"),
            "checkpoint_every: at most 3600s",
        ),
        (replaced("revision: auto", "revision: ''"), "custody.yaml:5: model.revision: "),
        (
            replaced("path: tier, ttl: 24h", "path: tier}\n  - {name: b, path: tier, ttl: 24h"),
            "custody.yaml:10: tiers: two tiers lie in {root}/tier; give each its own folder",
        ),
        (
            replaced("tier, ttl: 24h", "tier, kind: filesystem, ttl: 24h"),
            "tiers[0].kind: written twice",
        ),
        (
            replaced("state: state ", "registry: 'sqlite:///a.db?x=1'\nstate: state "),
            "custody.yaml:6: registry: this version supports sqlite:///PATH",
        ),
        (
            replaced("state: state ", "registry: sqlite+aiosqlite:///a.db\nstate: state "),
            "custody.yaml:6: registry: this version supports sqlite:///PATH",
        ),
        (replaced("state: state ", "state2: state "), "custody.yaml:"),
        (replaced("deployment: local ", "deployment: [local "), "custody.yaml:"),
        (unwritable_tier, "custody.yaml:11: tiers[0].path: {root}/tier: the tier's folder can't"),
        (unwritable_audit, "custody.yaml:16: audit.path: "),
        (
            replaced("anonymous: deny", f"anonymous: deny, {JWT}"),
            "custody.yaml:8: identity.jwt.jwks: {root}/absent.json: no such file",
        ),
        (broken_registry, "custody.yaml:6: state: {root}/state/registry.sqlite: not a usable"),
    ],
)
@pytest.mark.parametrize("command", [("vllm-config",), ("serve", "any-model")])
def test_bad_input_is_one_line_with_its_place_and_exit_code_2_before_vllm_starts(
    config: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    *,
    command: tuple[str, ...],
    spoil: Callable[[Path], None],
    expected: str,
) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("vLLM was started")

    monkeypatch.setattr(os, "execve", never)
    spoil(config)
    error = one_line(run(*command, "-c", config))
    assert expected.format(root=config.parent) in error
    assert f"kvcustody: {config.parent}/" in error


def test_serve_starts_vllm_with_connector_gateway_and_the_callers_arguments(
    config: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    def execve(_path: str, command: list[str], environment: dict[str, str]) -> None:
        started.append((command, environment))

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    assert run("serve", "my/model", "-c", config, "--", "--port", "8123").code == 0
    ((command, environment),) = started
    assert command[1:5] == ["-m", "kvcustody.vllm.command", "serve", "my/model"]
    assert command[command.index("--middleware") + 1] == "kvcustody.gateway.CustodyGateway"
    assert json.loads(command[command.index("--kv-transfer-config") + 1]) == json.loads(
        run("vllm-config", "-c", config).out
    )
    assert command[-2:] == ["--port", "8123"]
    assert command[command.index("--shutdown-timeout") + 1] == "5"
    assert environment["KVCUSTODY_CONFIG"] == str(config)


@pytest.mark.parametrize(
    "argument",
    [
        "--kv-transfer-config",
        "--kv-transfer-config={}",
        "--kv_transfer_config",
        "--kv-transfer-conf={}",
        "--kv-transfer-config.kv_connector=OffloadingConnector",
        "--kv-offloading-size",
        "--kv_offloading_size=4",
        "--grpc",
        "--headless",
        "--api-key=x",
    ],
)
def test_serve_refuses_what_would_undo_custody(
    config: Path, run: Run, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("vLLM was started"))
    error = one_line(run("serve", "m", "-c", config, "--", argument, "{}"))
    assert "leave it out: " in error


@pytest.mark.parametrize("variable", ["VLLM_API_KEY", "VLLM_USE_RUST_FRONTEND"])
def test_serve_refuses_an_environment_that_would_undo_custody(
    config: Path, run: Run, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("vLLM was started"))
    monkeypatch.setenv(variable, "1")
    assert f"{variable}: unset it: " in one_line(run("serve", "m", "-c", config))


def test_without_vllm_serve_says_what_to_install(
    config: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    error = one_line(run("serve", "m", "-c", config))
    assert "pip install 'kvcustody[vllm]'" in error


def test_a_missing_configuration_says_how_to_get_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVCUSTODY_CONFIG", raising=False)
    error = one_line(run("vllm-config"))
    assert error.endswith("custody.yaml: no such file; `kvcustody init` writes one\n")


def test_a_locked_registry_is_exit_code_3(
    config: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcustody.registry.sqlite._LOCK_WAIT_SECONDS", 0.05)
    monkeypatch.setattr("kvcustody.registry.upgrading._START_WAIT_SECONDS", 0.05)
    other = sqlite3.connect(config.parent / "state" / "registry.sqlite")
    other.execute("BEGIN EXCLUSIVE")
    result = run("vllm-config", "-c", config)
    other.close()
    assert (result.code, result.err.count("\n")) == (3, 1)
    assert "locked by another process" in result.err


def test_the_program_starts_without_loading_vllm_torch_or_a_browser_of_modules() -> None:
    program = (
        "import sys, kvcustody.cli.app; "
        "sys.exit(bool({'vllm', 'torch', 'httpx', 'numpy'} & sys.modules.keys()))"
    )
    finished = subprocess.run([sys.executable, "-c", program], check=False)  # noqa: S603 - ours
    assert finished.returncode == 0
