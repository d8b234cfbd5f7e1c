"""`kvcustody policy report`: what audit-only let through."""

from contextlib import closing
from pathlib import Path

import pytest

from command_line import Run, one_line
from kvcustody.config import load_settings
from kvcustody.wiring import open_audit, open_keys

pytestmark = pytest.mark.unit


def admit(config: Path, tenant: str, *uses: tuple[str, str, str | None]) -> None:
    """Record a request as the engine does."""
    settings = load_settings(config)
    with closing(open_keys(settings)) as keys:
        audit = open_audit(settings, keys.keyring, "engine", None)
        audit.record(
            "request.admitted",
            tenant=tenant,
            workload="chat",
            policy_version="v1",
            unenforced=[
                {"tier": tier, "action": action, "rule": rule} for tier, action, rule in uses
            ],
        )
        audit.close()


def test_what_was_let_through_is_counted_by_who_and_rule(config: Path, run: Run) -> None:
    for _ in range(2):
        admit(config, "acme", ("disk", "store", "policy.csv:3"))
    admit(config, "globex", ("host", "load", None))
    first, second = run("policy", "report", "-c", config, "--json").json()
    assert (first["tenant"], first["requests"], first["rule"]) == ("acme", 2, "policy.csv:3")
    assert (second["tenant"], second["tier"], second["rule"]) == ("globex", "host", None)
    (only,) = run("policy", "report", "--tenant", "globex", "-c", config, "--json").json()
    assert only == second
    table = run("policy", "report", "-c", config).out
    assert "policy.csv:3" in table
    assert "no rule allows it" in table


def test_nothing_let_through_is_said_so(config: Path, run: Run) -> None:
    admit(config, "acme")
    assert run("policy", "report", "-c", config, "--json").json() == []
    assert run("policy", "report", "-c", config).out.startswith("Nothing: ")


def test_who_may_not_read_the_trail_gets_no_report(config: Path, run: Run) -> None:
    policy = config.parent / "policies" / "policy.csv"
    text = policy.read_text(encoding="utf-8")
    policy.write_text(text.replace("audit-read, allow", "audit-read, deny"), encoding="utf-8")
    assert "audit-read" in one_line(run("policy", "report", "-c", config))
