"""What an operator may do is for the policy to say, command by command and tenant by tenant."""

from contextlib import closing
from pathlib import Path

import pytest

from command_line import Run, one_line
from kvcustody.config import load_settings
from kvcustody.namespace import Namespace, Scope
from kvcustody.operating_user import operator_name
from kvcustody.sealing.inventory import Selection, list_namespaces
from kvcustody.wiring import open_keys

pytestmark = pytest.mark.unit

COMMANDS: dict[str, tuple[str, ...]] = {
    "erase": ("keys", "destroy", "--execute", "--tenant"),
    "rotate": ("keys", "rotate", "--tenant"),
    "audit-read": ("audit", "query", "--tenant"),
}
FOR_ALL: dict[str, list[tuple[str, ...]]] = {
    "rotate": [("keys", "rotate", "--all"), ("keys", "rewrap")],
    "audit-read": [("audit", "query"), ("audit", "tail")],
}


def put_rights(config: Path, *lines: str) -> None:
    """Take the operator's rights of `kvcustody init` away, and give these."""
    policy = config.parent / "policies" / "policy.csv"
    kept = [
        line
        for line in policy.read_text(encoding="utf-8").splitlines()
        if "operators" not in line.split("#")[0]
    ]
    policy.write_text("\n".join([*kept, *lines]), encoding="utf-8")


def use(config: Path) -> None:
    with closing(open_keys(load_settings(config))) as keys:
        for tenant in ("acme", "globex"):
            keys.keyring.namespace_keys(Namespace(Scope("local", tenant), "r", "ab" * 32))


def test_whoever_made_the_deployment_may_do_all(config: Path, run: Run) -> None:
    use(config)
    for command in COMMANDS.values():
        assert run(*command, "acme", "-c", config).code == 0


@pytest.mark.parametrize("action", COMMANDS)
def test_a_right_for_one_tenant_is_none_for_another(config: Path, run: Run, action: str) -> None:
    use(config)
    put_rights(config, f"p, {operator_name()}, local, acme, {action}, allow")
    assert run(*COMMANDS[action], "acme", "-c", config).code == 0
    denied = run(*COMMANDS[action], "globex", "-c", config)
    assert denied.code == 2
    assert f"doesn't let {operator_name()} {action} for tenant 'globex'" in one_line(denied)
    assert f"p, {operator_name()}, local, globex, {action}, allow" in denied.err
    for command in FOR_ALL.get(action, []):
        assert run(*command, "-c", config).code == 2


@pytest.mark.parametrize("action", COMMANDS)
def test_a_right_to_something_else_is_none(config: Path, run: Run, action: str) -> None:
    use(config)
    others = [other for other in COMMANDS if other != action]
    put_rights(config, *(f"p, {operator_name()}, local, *, {other}, allow" for other in others))
    assert run(*COMMANDS[action], "acme", "-c", config).code == 2
    for other in others:
        assert run(*COMMANDS[other], "acme", "-c", config).code == 0


def test_who_may_not_erase_destroys_nothing(config: Path, run: Run) -> None:
    use(config)
    put_rights(config, f"p, {operator_name()}, local, *, audit-read, allow")
    assert run("keys", "destroy", "--tenant", "acme", "--execute", "-c", config).code == 2
    assert run("keys", "destroy", "--tenant", "acme", "-c", config).code == 0, "a dry run"
    with closing(open_keys(load_settings(config))) as keys:
        found = list_namespaces(keys.registry, Selection())
    assert [record.living_keys for record in found] == [1, 1]


def test_a_policy_that_is_broken_lets_nobody_do_anything(config: Path, run: Run) -> None:
    put_rights(config, "p, nobody")
    assert "policy.csv" in one_line(run("audit", "query", "-c", config))


@pytest.mark.parametrize("action", ["rotate", "audit-read"])
def test_a_denial_for_one_tenant_counts_for_what_is_about_all(
    config: Path, run: Run, action: str
) -> None:
    use(config)
    allow = f"p, {operator_name()}, local, *, {action}, allow"
    put_rights(config, allow, f"p, {operator_name()}, local, globex, {action}, deny")
    for command in FOR_ALL[action]:
        assert "tenant 'globex'" in one_line(run(*command, "-c", config))
    assert run(*COMMANDS[action], "acme", "-c", config).code == 0
