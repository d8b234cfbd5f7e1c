"""The deployments in `policies/` are ready to be copied: right, tested, without a useless rule."""

from pathlib import Path

import pytest

from command_line import Run

pytestmark = pytest.mark.unit

POLICIES = Path(__file__).resolve().parents[2] / "policies"
DEPLOYMENTS = sorted(path.parent.name for path in POLICIES.glob("*/custody.yaml"))


def test_there_is_one_for_each_kind_of_deployment() -> None:
    assert DEPLOYMENTS == ["regulated", "saas", "shared-corpus", "single-tenant"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_its_policy_has_no_mistake_and_agrees_with_casbin(run: Run, deployment: str) -> None:
    config = POLICIES / deployment / "custody.yaml"
    checked = run("policy", "check", "--strict", "--json", "-c", config)
    assert checked.code == 0, checked.out
    report = checked.json()
    assert (report["errors"], report["warnings"]) == ([], [])
    assert report["casbin"]["compared"] > 10
    assert report["casbin"]["disagreements"] == []


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_its_policy_tests_pass_and_fail_for_an_empty_policy(
    run: Run, deployment: str, tmp_path: Path
) -> None:
    config = POLICIES / deployment / "custody.yaml"
    assert run("policy", "test", "-c", config).code == 0
    empty = tmp_path / "empty.csv"
    empty.write_text("# nobody may do anything\n")
    assert run("policy", "test", "--policy", empty, "-c", config).code == 1
