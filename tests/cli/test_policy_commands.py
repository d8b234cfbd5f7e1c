"""`kvcustody policy`, as reviewers and scripts use it."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from command_line import Run, one_line, replaced

pytestmark = pytest.mark.unit

RULES = """\
p, tenants, *, *, store, allow, ttl<=1h
p, tenants, *, *, load, allow
p, acme/hr, *, disk, *, deny
p, *, *, disk, store, deny, lora=any
g, acme, tenants, local
g, globex, tenants, local
"""
TESTS = """\
tests:
  - who: acme/hr
    what: [store, load]
    tier: disk
    expected: deny
    why: Nothing of HR on disk.
"""
# What a terminal obeys: an escape sequence, an 8-bit one, and a change of writing direction.
HOSTILE = "\x1b[2J\x9b31m\u202egnp.exe"


def policy_of(config: Path) -> Path:
    return config.parent / "policies" / "policy.csv"


@pytest.fixture
def site(config: Path) -> Path:
    """A deployment with the rules above."""
    policy_of(config).write_text(RULES, encoding="utf-8")
    return config


@pytest.fixture
def proposed(tmp_path: Path) -> Path:
    """A policy that lets HR's data onto the disk."""
    path = tmp_path / "proposed.csv"
    path.write_text(RULES.replace("p, acme/hr, *, disk, *, deny\n", "# nothing\n"))
    return path


@pytest.fixture
def tested(site: Path) -> Path:
    """A deployment with a test."""
    folder = policy_of(site).parent / "tests"
    folder.mkdir()
    (folder / "hr.yaml").write_text(TESTS, encoding="utf-8")
    return site


def is_harmless(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text)


def test_check_finds_nothing_wrong_with_what_init_writes(config: Path, run: Run) -> None:
    checked = run("policy", "check", "--strict", "-c", config)
    assert checked.code == 0
    assert "0 errors, 0 warnings" in checked.out


def test_check_compares_with_casbin(site: Path, run: Run) -> None:
    assert "compared with Casbin's enforcer: all agree" in run("policy", "check", "-c", site).out
    casbin = run("policy", "check", "-c", site, "--json").json()["casbin"]
    assert 0 < casbin["compared"] <= 200
    assert (casbin["skipped"], casbin["disagreements"]) == (None, [])


def test_check_says_that_it_does_not_compare_many_rules(site: Path, run: Run) -> None:
    rules = [f"p, acme/w{number}, local, disk, load, deny" for number in range(2_001)]
    policy_of(site).write_text("\n".join(["p, *, local, *, *, allow", *rules]))
    checked = run("policy", "check", "-c", site)
    assert (checked.code, "Not compared with Casbin's enforcer" in checked.out) == (0, True)


def test_check_names_every_error_with_its_line(site: Path, run: Run) -> None:
    policy = policy_of(site)
    policy.write_text(
        RULES + "p, umbrella, *, disk, load, allow\nq\np, acme, *, tape, load, deny\n"
    )
    checked = run("policy", "check", "-c", site)
    assert checked.code == 1
    errors = [line for line in checked.out.splitlines() if line.startswith("error: ")]
    assert [line.split(":")[2] for line in errors] == ["7", "8", "9"]
    assert f"error: {policy}:7: who: nobody is 'umbrella'" in errors[0]
    found = run("policy", "check", "-c", site, "--json").json()
    assert (found["ok"], found["policy_version"]) == (False, None)
    assert [(each["line"], each["field"]) for each in found["errors"]] == [
        (7, "who"),
        (8, None),
        (9, "tier"),
    ]


def test_check_exits_with_0_for_warnings_and_with_1_if_they_are_to_count(
    site: Path, run: Run
) -> None:
    policy_of(site).write_text(RULES + "p, acme, local, host, load, allow\n")
    checked = run("policy", "check", "-c", site)
    assert checked.code == 0
    assert f"warning: {policy_of(site)}:7: never has an effect: policy.csv:2 allows" in checked.out
    assert run("policy", "check", "--strict", "-c", site).code == 1
    (warning,) = run("policy", "check", "-c", site, "--json").json()["warnings"]
    assert (warning["kind"], warning["line"]) == ("no-effect", 7)


def test_check_takes_a_proposed_policy(site: Path, run: Run, proposed: Path) -> None:
    assert run("policy", "check", proposed, "-c", site).code == 0
    proposed.write_text("q\n")
    assert run("policy", "check", proposed, "-c", site).code == 1
    assert run("policy", "check", "-c", site).code == 0


def test_check_of_a_policy_that_can_not_be_read_exits_with_2(site: Path, run: Run) -> None:
    assert "none.csv: no such file" in one_line(run("policy", "check", "none.csv", "-c", site))
    assert "none.yaml" in one_line(run("policy", "check", "-c", "none.yaml"))


def test_check_reads_what_windows_wrote(site: Path, run: Run) -> None:
    policy_of(site).write_bytes(b"\xef\xbb\xbf" + RULES.replace("\n", "\r\n").encode())
    assert run("policy", "check", "--strict", "-c", site).code == 0


def test_check_finds_roles_in_a_circle(site: Path, run: Run) -> None:
    policy_of(site).write_text(RULES + "g, tenants, others, local\ng, others, tenants, local\n")
    checked = run("policy", "check", "-c", site)
    assert checked.code == 1
    assert "roles in a circle" in checked.out


def test_check_finds_rules_for_a_tenant_that_was_deleted(site: Path, run: Run) -> None:
    replaced("  globex:", "  # globex:")(site)
    checked = run("policy", "check", "-c", site)
    assert checked.code == 1
    assert f"{policy_of(site)}:6: who: nobody is 'globex'" in checked.out


@pytest.mark.parametrize("field", ["who", "tier", "action", "effect", "terms", "kind"])
def test_what_a_policy_holds_reaches_no_terminal_raw(site: Path, run: Run, field: str) -> None:
    fields = {
        "kind": "p",
        "who": "acme",
        "deployment": "*",
        "tier": "disk",
        "action": "load",
        "effect": "allow",
        "terms": "*",
    }
    fields[field] += HOSTILE
    policy_of(site).write_text(", ".join(fields.values()) + "\n", encoding="utf-8")
    for options in ((), ("--json",)):
        checked = run("policy", "check", "-c", site, *options)
        assert checked.code == 1
        assert is_harmless(checked.out)
        assert "a control character" in checked.out
    explained = one_line(run("policy", "explain", "acme", "disk", "load", "-c", site))
    assert is_harmless(explained)
    asked = one_line(run("policy", "explain", f"acme{HOSTILE}", "disk", "load", "-c", site))
    assert is_harmless(asked)


def test_a_pattern_that_holds_markup_is_shown_and_not_obeyed(
    site: Path, run: Run, tmp_path: Path
) -> None:
    odd = "p, acme, *, disk, load, deny, model=[bold]x*"
    policy_of(site).write_text(f"{RULES}{odd}\n", encoding="utf-8")
    plain = tmp_path / "plain.csv"
    plain.write_text(RULES)
    for command in (
        ("explain", "acme", "disk", "load"),
        ("diff", plain, policy_of(site)),
        ("check",),
    ):
        for options in ((), ("--json",)):
            done = run("policy", *command, "-c", site, *options)
            assert (done.code, is_harmless(done.out)) == (0, True)
    explained = run("policy", "explain", "acme", "disk", "load", "-c", site)
    assert "model=[bold]x*" in explained.out


def test_explain_tells_the_decision_its_rule_and_every_rule_considered(
    site: Path, run: Run
) -> None:
    found = run("policy", "explain", "acme/hr", "disk", "store", "-c", site, "--json").json()
    version = run("policy", "check", "-c", site, "--json").json()["policy_version"]
    assert (found["decision"], found["rule"]) == ("deny", "policy.csv:3")
    assert (found["policy_version"], found["enforced"]) == (version, True)
    assert [(each["rule"], each["counts"], each["why"]) for each in found["considered"]] == [
        ("policy.csv:1", True, "allows, but a denial wins"),
        ("policy.csv:2", False, "another action"),
        ("policy.csv:3", True, "denies"),
        ("policy.csv:4", False, "lora=any doesn't hold: lora is none"),
    ]
    assert found["considered"][2]["text"] == "p, acme/hr, *, disk, *, deny"


def test_explain_tells_the_shortest_life_of_rule_tenant_and_tier(site: Path, run: Run) -> None:
    explain = ("policy", "explain", "acme", "disk", "store", "-c", site, "--json")
    obligations = run(*explain).json()["obligations"]
    assert obligations == {"ttl": 3600, "quota": None, "max_classification": "restricted"}
    policy_of(site).write_text(RULES.replace("ttl<=1h", "ttl<=52w quota<=1GiB"))
    obligations = run(*explain).json()["obligations"]
    assert 0 < obligations["ttl"] < 52 * 7 * 86400
    assert obligations["quota"] == 2**30
    out = run(*explain[:-1]).out
    assert "blocks live at most" in out
    assert "the tenant keeps at most 1GiB there" in out


def test_explain_asks_about_the_model_that_is_named(site: Path, run: Run) -> None:
    explain = ("policy", "explain", "acme", "disk", "store", "-c", site, "--json")
    assert run(*explain).json()["decision"] == "allow"
    assert run(*explain, "--lora", "mine").json()["rule"] == "policy.csv:4"
    with_model = run(*explain, "--model", "llama", "--revision", "1").json()
    assert with_model["decision"] == "allow"


def test_explain_says_what_is_not_enforced(site: Path, run: Run) -> None:
    policy_of(site).write_text("# nothing\n")
    replaced("policy: policies/policy.csv", "policy: policies/policy.csv, mode: audit-only")(site)
    explain = ("policy", "explain", "acme", "disk", "store", "-c", site)
    found = run(*explain, "--json").json()
    assert (found["decision"], found["enforced"], found["rule"]) == ("deny", False, None)
    assert "audit-only: the denial is recorded, not enforced" in run(*explain).out


def test_explain_says_that_host_memory_stands_in_the_way(site: Path, run: Run) -> None:
    policy_of(site).write_text(RULES + "p, *, *, host, store, deny\n")
    out = run("policy", "explain", "acme", "disk", "store", "-c", site).out
    assert "'host' denies it (policy.csv:7)" in out


def test_explain_answers_for_operators(site: Path, run: Run) -> None:
    policy_of(site).write_text(RULES + "p, user:ann, *, *, erase, allow\n")
    for tenant in ("acme", "*"):
        asked = ("policy", "explain", "user:ann", tenant, "erase", "-c", site, "--json")
        assert run(*asked).json()["rule"] == "policy.csv:7"
    other = run("policy", "explain", "user:bob", "acme", "erase", "-c", site)
    assert (other.code, "deny: user:bob erase on acme" in other.out) == (0, True)


def test_explain_denies_a_group_to_a_tenant_that_is_not_in_it(site: Path, run: Run) -> None:
    site.write_text(site.read_text() + "\nsharing: [{group: manuals, tenants: [acme]}]\n")
    policy_of(site).write_text(RULES + "p, *, *, manuals, share, allow\n")
    share = ("manuals", "share", "-c", site)
    assert "allow: " in run("policy", "explain", "acme", *share).out
    denied = run("policy", "explain", "globex", *share).out
    assert "deny: " in denied
    assert "custody.yaml doesn't have the tenant in the group" in denied


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("acmee", "disk", "load"), "WHO: nobody is 'acmee' (did you mean 'acme'?)"),
        (("acme/", "disk", "load"), "WHO: nobody is 'acme/'"),
        (("user:", "disk", "load"), "WHO: nobody is 'user:'"),
        (("acme", "disc", "load"), "TIER: unknown tier 'disc' (did you mean 'disk'?)"),
        (("acme", "disk", "laod"), "ACTION: unknown action 'laod' (did you mean 'load'?)"),
        (("acme", "disk", "*"), "ACTION: unknown action '*'"),
        (("acme", "disk", "share"), "TIER: unknown sharing group 'disk'; custody.yaml has none"),
        (("acme", "disk", "erase"), "TIER: unknown tenant 'disk'"),
        ((f"acme{HOSTILE}", "disk", "load"), "WHO: nobody is 'acme\\x1b[2J\\x9b31m\\u202egnp.exe'"),
    ],
)
def test_explain_refuses_names_that_nothing_has(
    site: Path, run: Run, asked: tuple[str, ...], said: str
) -> None:
    assert said in one_line(run("policy", "explain", *asked, "-c", site))


def test_test_runs_what_lies_beside_the_policy(tested: Path, run: Run) -> None:
    passed = run("policy", "test", "-c", tested)
    assert passed.code == 0
    assert passed.out.startswith("hr.yaml ..\n2 passed in 0.")
    verbose = run("policy", "test", "-v", "-c", tested).out
    assert "hr.yaml:2: acme/hr load on disk: deny passed" in verbose


def test_test_of_a_proposed_policy_fails_with_the_reasons(
    tested: Path, run: Run, proposed: Path
) -> None:
    failed = run("policy", "test", "--policy", proposed, "-c", tested)
    assert failed.code == 1
    assert failed.out.startswith("hr.yaml FF\n")
    for said in (
        "hr.yaml:2: acme/hr store on disk",
        "  Nothing of HR on disk.",
        "  expected deny, got allow",
        "  proposed.csv:1 allows: p, tenants, *, *, store, allow, ttl<=1h",
        "2 failed in 0.",
    ):
        assert said in failed.out
    described = run("policy", "test", "--policy", proposed, "-c", tested, "--json")
    assert described.code == 1
    assert (described.json()["passed"], described.json()["failed"]) == (0, 2)
    assert described.json()["tests"][1]["problems"] == ["expected deny, got allow"]


def test_test_takes_files(site: Path, run: Run, tmp_path: Path) -> None:
    files = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    for file in files:
        file.write_text(TESTS)
    assert "4 passed" in run("policy", "test", *files, "-c", site).out


def test_test_without_tests_is_no_success(site: Path, run: Run) -> None:
    assert "no tests: write *.yaml files there" in one_line(run("policy", "test", "-c", site))
    assert "no such file" in one_line(run("policy", "test", "none.yaml", "-c", site))


def test_test_names_the_line_of_a_mistake(tested: Path, run: Run) -> None:
    file = policy_of(tested).parent / "tests" / "hr.yaml"
    file.write_text(TESTS.replace("acme/hr", "acmee/hr"))
    assert f"{file}:2: tests[0].who: nobody is" in one_line(run("policy", "test", "-c", tested))


def test_junit_reports_are_xml_whatever_tests_are_called(
    tested: Path, run: Run, proposed: Path, tmp_path: Path
) -> None:
    file = policy_of(tested).parent / "tests" / "hr.yaml"
    file.write_text(
        TESTS.replace("Nothing of", '"<b> & ]]> \\e[2J \\0 " #') + "    model: '<&\">'\n"
    )
    report = tmp_path / "junit.xml"
    assert run("policy", "test", "--policy", proposed, "--junit", report, "-c", tested).code == 1
    root = ET.parse(report).getroot()  # noqa: S314 - our own
    assert (root.get("tests"), root.get("failures")) == ("2", "2")
    case = root.findall("./testsuite/testcase")[0]
    assert case.get("name") == 'acme/hr store on disk model=<&">: deny'
    assert (case.get("file"), case.get("line")) == (str(file), "2")
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "expected deny, got allow"
    assert "<b> & ]]> \\x1b[2J \\x00" in (failure.text or "")
    unwritable = tmp_path / "none" / "junit.xml"
    assert "--junit" in one_line(run("policy", "test", "--junit", unwritable, "-c", tested))


def test_diff_tells_which_answers_change(site: Path, run: Run, proposed: Path) -> None:
    found = run("policy", "diff", policy_of(site), proposed, "-c", site)
    assert found.code == 0
    assert [line.split()[:4] for line in found.out.splitlines()[1:-1]] == [
        ["+", "acme/hr", "load", "disk"],
        ["+", "acme/hr", "store", "disk"],
        ["=", "acme/hr", "store", "disk"],
    ]
    described = run("policy", "diff", policy_of(site), proposed, "-c", site, "--json").json()
    assert {"old", "new", "changes"} <= described.keys()
    load, store = described["changes"]
    assert (load["who"], load["tier"], load["action"], load["model"]) == (
        *("acme/hr", "disk", "load"),
        None,
    )
    assert (load["old"], load["new"]) == ("deny", "allow")
    assert (load["old_rule"], load["new_rule"]) == ("policy.csv:3", "proposed.csv:2")
    assert (store["old_limits"], store["new_limits"]) == (None, {"ttl": 3600, "quota": None})
    (stays,) = described["exceptions"]
    assert stays["model"] == {"model": None, "revision": None, "lora": "x"}


def test_diff_exits_with_1_for_a_change_only_if_it_is_asked_to(
    site: Path, run: Run, proposed: Path
) -> None:
    diff = ("policy", "diff", "-c", site, policy_of(site))
    assert run(*diff, proposed, "--exit-code").code == 1
    same = run(*diff, policy_of(site), "--exit-code")
    assert (same.code, same.out) == (0, "no answers change\n")


def test_diff_compares_configurations(site: Path, run: Run) -> None:
    other = site.with_name("other.yaml")
    other.write_text(site.read_text().replace("policy.csv", "policy.csv, audit_only: [acme]"))
    changes = run("policy", "diff", site, other, "--json").json()["changes"]
    assert {each["who"] for each in changes} == {"acme", "acme/hr"}
    assert {(each["old_enforced"], each["new_enforced"]) for each in changes} == {(True, False)}
    assert "deny audit-only (policy.csv:3)" in run("policy", "diff", site, other).out


def test_diff_of_a_policy_with_mistakes_names_the_first(
    site: Path, run: Run, proposed: Path
) -> None:
    proposed.write_text("q\n")
    said = one_line(run("policy", "diff", policy_of(site), proposed, "-c", site))
    assert f"{proposed}:1: a line starts with p or g" in said


@pytest.fixture
def adapted(tested: Path) -> Path:
    """A deployment whose policy an adapter reads."""
    policy = policy_of(tested)
    rules = policy.with_name("rules.csv")
    policy.rename(rules)
    adapter = (
        "adapter: {class: casbin.persist.adapters.file_adapter.FileAdapter, "
        f"arguments: ['{rules}'], refresh: 1m}}"
    )
    replaced("policy: policies/policy.csv", adapter)(tested)
    (policy.parent / "tests").rename(tested.parent / "tests")
    return tested


def test_a_policy_that_an_adapter_reads_is_explained_tested_and_compared(
    adapted: Path, run: Run, proposed: Path
) -> None:
    explained = run("policy", "explain", "acme/hr", "disk", "load", "-c", adapted, "--json").json()
    assert explained["decision"] == "deny"
    assert run("policy", "test", "-c", adapted).code == 0
    assert run("policy", "test", "--policy", proposed, "-c", adapted).code == 1
    changes = run("policy", "diff", adapted, proposed, "-c", adapted, "--json").json()["changes"]
    assert {each["who"] for each in changes} == {"acme/hr"}


def test_check_asks_for_a_file_where_an_adapter_reads_the_policy(
    adapted: Path, run: Run, proposed: Path
) -> None:
    assert "an adapter reads the policy" in one_line(run("policy", "check", "-c", adapted))
    assert run("policy", "check", proposed, "-c", adapted).code == 0
