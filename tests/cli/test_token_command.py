"""`kvcustody token`: keys are made with the rights that were asked for, listed, and revoked."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from command_line import Run, one_line, replaced

pytestmark = pytest.mark.unit


def test_tokens_are_minted_listed_and_revoked_and_the_audit_knows(config: Path, run: Run) -> None:
    minted = run(
        *("token", "mint", "--tenant", "acme", "--workload", "chat", "--subject", "s-1"),
        *("--expires", "90d", "-c", config, "--json"),
    ).json()
    assert minted["key"].startswith("kvc_")
    assert (minted["tenant"], minted["workload"], minted["subject"]) == ("acme", "chat", "s-1")
    assert minted["expires"] is not None
    listed = run("token", "list", "-c", config, "--json").json()
    assert [token["tenant"] for token in listed] == ["acme", "globex", "acme"]
    assert not any("key" in token for token in listed)
    assert run("token", "revoke", minted["id"], "-c", config).code == 0
    assert "revoked already" in one_line(run("token", "revoke", minted["id"], "-c", config))
    unknown = one_line(run("token", "revoke", minted["key"].replace("kvc_", "kvx_"), "-c", config))
    assert minted["key"].split("_", 2)[2] not in unknown
    revoked = run("token", "list", "-c", config, "--json").json()[-1]
    assert revoked["revoked"] is not None
    events = run("audit", "query", "--event", "token.revoked", "-c", config, "--json").out
    assert json.loads(events)["key_id"] == minted["id"]
    assert "revoked" in run("token", "list", "-c", config).out


def test_a_token_has_the_rights_that_it_was_minted_with(config: Path, run: Run) -> None:
    group = "sharing: [{group: manuals, tenants: [acme]}]\nstate: state "
    replaced("state: state ", group)(config)
    mint = ("token", "mint", "-c", config, "--json", "--tenant")
    plain = run(*mint, "acme").json()
    powerful = run(*mint, "acme", "--admin", "--group", "manuals").json()
    assert (plain["admin"], plain["group"]) == (False, None)
    assert (powerful["admin"], powerful["group"]) == (True, "manuals")
    listed = {token["id"]: token for token in run("token", "list", "-c", config, "--json").json()}
    for minted in (plain, powerful):
        stored = listed[minted["id"]]
        assert stored.items() >= {k: v for k, v in minted.items() if k != "key"}.items()
        assert (stored["state"], stored["last_used"]) == ("valid", None)
    *_, event = run("audit", "query", "--event", "token.minted", "-c", config, "--json").out.split(
        "\n"
    )[:-1]
    assert (json.loads(event)["admin"], json.loads(event)["group"]) == (True, "manuals")
    table = run("token", "list", "-c", config).out
    assert [line.split()[-2:] for line in table.splitlines()][-1] == ["yes", "manuals"]


@pytest.mark.parametrize(
    ("tenant", "group", "remedy"),
    [
        ("acme", "other", "unknown group 'other'; `sharing` in custody.yaml has manuals"),
        ("globex", "manuals", "'globex' is not in 'manuals'; it is for acme"),
    ],
)
def test_a_token_for_a_group_that_its_tenant_can_not_use_is_refused(
    config: Path, run: Run, tenant: str, group: str, remedy: str
) -> None:
    mint = ("token", "mint", "-c", config, "--tenant", tenant, "--group", group)
    without = one_line(run(*mint))
    assert "--group: unknown group" in without
    assert "has none" in without
    sharing = "sharing: [{group: manuals, tenants: [acme]}]\nstate: state "
    replaced("state: state ", sharing)(config)
    assert one_line(run(*mint)) == f"kvcustody: --group: {remedy}\n"
    before = run("token", "list", "-c", config, "--json").json()
    assert len(before) == 2


def test_a_token_that_expired_is_listed_as_such(
    config: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("token", "mint", "--tenant", "acme", "--expires", "1h", "-c", config)
    states = [token["state"] for token in run("token", "list", "-c", config, "--json").json()]
    assert states == ["valid", "valid", "valid"]
    later = time.time() + 3601
    monkeypatch.setattr("kvcustody.cli.token.time", SimpleNamespace(time=lambda: later))
    states = [token["state"] for token in run("token", "list", "-c", config, "--json").json()]
    assert states == ["valid", "valid", "expired"]
    assert "expired" in run("token", "list", "-c", config).out


def test_a_token_for_an_unknown_tenant_or_with_an_odd_life_is_refused(
    config: Path, run: Run
) -> None:
    error = one_line(run("token", "mint", "--tenant", "initech", "-c", config))
    assert error == (
        "kvcustody: --tenant: unknown tenant 'initech'; custody.yaml has acme, globex\n"
    )
    error = one_line(run("token", "mint", "--tenant", "acme", "--expires", "soon", "-c", config))
    assert "--expires: " in error
    for option, value in (("--workload", "a/b"), ("--workload", "*"), ("--subject", "a\nb")):
        error = one_line(run("token", "mint", "--tenant", "acme", option, value, "-c", config))
        assert f"{option}: " in error


def test_a_key_without_subject_is_refused_where_each_subject_has_its_cache(
    config: Path, run: Run
) -> None:
    replaced("acme: {scope: tenant}", "acme: {scope: subject}")(config)
    error = one_line(run("token", "mint", "--tenant", "acme", "-c", config))
    assert "--subject: 'acme' keeps a cache for each data subject" in error
    assert run("token", "mint", "--tenant", "acme", "--subject", "s", "-c", config).code == 0


def test_a_key_may_lack_a_subject_where_its_requests_may_name_one(config: Path, run: Run) -> None:
    replaced("acme: {scope: tenant}", "acme: {scope: subject, act_for_subjects: [bot]}")(config)
    mint = ("token", "mint", "--tenant", "acme", "-c", config, "--json", "--workload")
    assert run(*mint, "bot").json()["subject"] is None
    assert "--subject: 'acme' keeps a cache" in one_line(run(*mint, "chat"))


def test_mint_prints_nothing_but_the_key_on_standard_output(config: Path, run: Run) -> None:
    minted = run("token", "mint", "--tenant", "acme", "-c", config)
    assert minted.out.startswith("kvc_")
    assert minted.out.count("\n") == 1
    assert "Shown once" in minted.err
    # A pasted key is as good as its id.
    assert run("token", "revoke", minted.out.strip(), "-c", config).code == 0
