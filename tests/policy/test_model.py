from pathlib import Path

import pytest

from kvcustody.errors import ConfigurationError
from kvcustody.identity.principal import Principal
from kvcustody.policy import BUILT_IN_MODEL, Decisions, Rule, load_policy
from policy_loading import FACTS

pytestmark = pytest.mark.unit

REPOSITORY = Path(__file__).resolve().parents[2]
ALLOW = "p, acme, local, *, *, allow\n"


def load(folder: Path, policy: str, model: str | None = None) -> Decisions:
    (folder / "policy.csv").write_text(policy, encoding="utf-8")
    model_file = None
    if model is not None:
        model_file = folder / "model.conf"
        model_file.write_text(model, encoding="utf-8")
    return load_policy(
        folder / "policy.csv",
        model_file,
        FACTS,
    )


def refusal(folder: Path, policy: str, model: str | None = None) -> ConfigurationError:
    """What is said of a policy that is refused: always the file, in one line."""
    with pytest.raises(ConfigurationError) as caught:
        load(folder, policy, model)
    culprit = folder / ("policy.csv" if model is None else "model.conf")
    assert caught.value.file == culprit
    assert str(caught.value).startswith(f"{culprit}:")
    assert "\n" not in str(caught.value)
    return caught.value


def allows(decisions: Decisions, tenant: str = "acme") -> bool:
    return decisions.decide(Principal(tenant, "support"))["disk"].load.allowed


def test_the_reference_model_is_the_one_that_is_built_in() -> None:
    reference = REPOSITORY / "policies" / "model.conf"
    built_in = REPOSITORY / "src" / "kvcustody" / "policy" / "model.conf"
    assert reference.read_bytes() == built_in.read_bytes()
    assert built_in.read_text(encoding="utf-8") == BUILT_IN_MODEL


def test_comments_empty_lines_and_spaces_do_not_matter(tmp_path: Path) -> None:
    policy = "# who may what\n\n   \n  # indented\n\tp ,acme,  local , * ,*,allow  \n"
    decision = load(tmp_path, policy).decide(Principal("acme", "support"))["disk"].load
    assert (decision.allowed, decision.rule) == (True, "policy.csv:5")


def test_a_policy_written_on_windows_is_read(tmp_path: Path) -> None:
    assert allows(load(tmp_path, "\ufeff# comment\r\n" + ALLOW.replace("\n", "\r\n")))


def test_an_empty_policy_allows_nothing(tmp_path: Path) -> None:
    assert not allows(load(tmp_path, ""))


def test_the_same_model_as_a_file_decides_the_same(tmp_path: Path) -> None:
    built_in = load(tmp_path, ALLOW)
    from_file = load(tmp_path, ALLOW, BUILT_IN_MODEL)
    assert from_file.version == built_in.version
    assert allows(from_file)


def test_the_version_changes_with_every_change_of_policy_or_model(tmp_path: Path) -> None:
    versions = [
        load(tmp_path, ALLOW).version,
        load(tmp_path, ALLOW + "# a comment\n").version,
        load(tmp_path, ALLOW + ALLOW.replace("acme", "globex")).version,
        load(tmp_path, ALLOW, BUILT_IN_MODEL + "\n").version,
    ]
    assert len(set(versions)) == len(versions)
    assert load(tmp_path, ALLOW).version == versions[0]
    assert all(len(version) == 16 for version in versions)


def test_a_rule_is_found_again_by_file_and_line() -> None:
    assert Rule("p", ("acme",), Path("/etc/kvcustody/policy.csv"), 7).name == "policy.csv:7"


ACTIONS = "store, load, share, serve-peer, erase, rotate, audit-read, policy-write, *"
TIERS = "host, disk, kind:filesystem, kind:memory, label:fast, *"


@pytest.mark.parametrize(
    ("line", "field", "remedy"),
    [
        (
            "p, acme, local, disk, read, allow",
            "action",
            ACTIONS,
        ),
        (
            "p, acme, local, disk, STORE, allow",
            "action",
            ACTIONS,
        ),
        (
            "p, acme, local, tape, load, allow",
            "tier",
            TIERS,
        ),
        ("p, acme, local, disk, load, permit", "effect", "use one of allow, deny"),
        ("p, acme, local, disk, load, Allow", "effect", "use one of allow, deny"),
        ("p, acme, prod, disk, load, allow", "deployment", "use one of local, *"),
        ("g, acme, offloaders, prod", "deployment", "use one of local"),
        ("g, acme, offloaders, *", "deployment", "use one of local"),
    ],
)
def test_an_unknown_word_is_named_with_its_line_and_the_known_ones(
    tmp_path: Path, line: str, field: str, remedy: str
) -> None:
    error = refusal(tmp_path, f"# comment\n{ALLOW}\n{line}\n{ALLOW}")
    assert (error.line, error.field) == (4, field)
    assert error.message.startswith(f"unknown {field} '")
    assert error.message.endswith(remedy)


@pytest.mark.parametrize(
    "line",
    [
        "p",
        "p, acme",
        "p, acme, local, disk, load",
        "p, acme, local, disk, load, allow, *, *",
        "p, , local, disk, load, allow",
        "p, acme, local, disk, load,",
        "p acme local disk load allow",
        "g, acme, offloaders",
        "g, acme, , local",
        "g, acme, offloaders, local, more",
    ],
)
def test_a_wrong_number_of_fields_says_what_belongs_there(tmp_path: Path, line: str) -> None:
    error = refusal(tmp_path, f"{ALLOW}{line}\n")
    assert error.line == 2
    if line.startswith("p,") or line == "p":
        assert error.message == "expected 'p, who, deployment, tier, action, allow|deny[, terms]'"
    elif line.startswith("g,"):
        assert error.message == "expected 'g, member, role, deployment'"
    else:
        assert "starts with p or g" in error.message


@pytest.mark.parametrize("line", ["q, acme, local", "P, acme, local, *, *, allow", "allow"])
def test_a_line_of_an_unknown_kind_is_refused(tmp_path: Path, line: str) -> None:
    error = refusal(tmp_path, f"{ALLOW}{line}\n")
    assert (error.line, error.message) == (
        2,
        f"a line starts with p or g, not '{line.split(',', maxsplit=1)[0]}'",
    )


@pytest.mark.parametrize(
    "line",
    [
        "p, **, local, *, *, deny",
        'p, "acme", local, *, *, deny',
        "p, 'acme', local, *, *, deny",
        "p, acmee, local, *, *, deny",
        "p, Acme, local, *, *, deny",
        "p, acme/, local, *, *, deny",
        "p, acme/*, local, *, *, deny",
        "p, nobodys-role, local, *, *, deny",
        "g, acmee, offloaders, local",
    ],
)
def test_a_rule_about_nobody_is_refused(tmp_path: Path, line: str) -> None:
    """A rule that silently never matches would leave open what its author closed."""
    error = refusal(tmp_path, f"{ALLOW}{line}\n")
    assert (error.line, error.field) == (2, "who")
    assert "write a tenant of custody.yaml (acme, globex), TENANT/WORKLOAD" in error.message


def test_a_field_of_absurd_length_is_refused_with_its_line(tmp_path: Path) -> None:
    error = refusal(tmp_path, f'{ALLOW}p, acme, local, "{"x" * 200_000}", *, allow\n')
    assert error.line == 2


def test_a_missing_policy_says_which_setting_to_correct(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file; correct `authorization`") as caught:
        load_policy(tmp_path / "none.csv", None, FACTS)
    assert caught.value.file == tmp_path / "none.csv"


def test_a_missing_model_says_which_setting_to_correct(tmp_path: Path) -> None:
    (tmp_path / "policy.csv").write_text(ALLOW)
    with pytest.raises(ConfigurationError, match="no such file; correct `authorization`") as caught:
        load_policy(tmp_path / "policy.csv", tmp_path / "none.conf", FACTS)
    assert caught.value.file == tmp_path / "none.conf"


def test_a_policy_that_can_not_be_read_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't be read") as caught:
        load_policy(tmp_path, None, FACTS)
    assert caught.value.file == tmp_path


def test_a_policy_that_is_not_text_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "policy.csv").write_bytes(b"p, acm\xe9, local, *, *, allow\n")
    with pytest.raises(ConfigurationError, match="not UTF-8") as caught:
        load_policy(tmp_path / "policy.csv", None, FACTS)
    assert caught.value.file == tmp_path / "policy.csv"


@pytest.mark.parametrize(
    "model",
    [
        "",
        "nonsense",
        "[request_definition]\nr = sub, dom, tier, act\n",
        BUILT_IN_MODEL.replace("[matchers]", "[watchers]"),
        BUILT_IN_MODEL.replace("g(r.sub, p.sub, r.dom)", "unheard_of(r.sub)"),
        BUILT_IN_MODEL.replace("&& !some(where (p.eft == deny))", ""),
        BUILT_IN_MODEL.replace("act, eft", "act"),
        BUILT_IN_MODEL.replace("g2 = _, _\n", ""),
        BUILT_IN_MODEL.replace(' && (p.eft == "deny" || cleared(r.ctx))', ""),
    ],
    ids=["empty", "nonsense", "half", "section", "matcher", "effect", "field", "g2", "clearance"],
)
def test_a_model_that_says_something_else_is_refused(tmp_path: Path, model: str) -> None:
    """Its author would believe in rules that nobody follows."""
    assert model != BUILT_IN_MODEL
    refusal(tmp_path, ALLOW, model)


def test_comments_and_spaces_in_a_model_do_not_matter(tmp_path: Path) -> None:
    spaced = "# ours\n" + BUILT_IN_MODEL.replace(" && ", "  &&  ").replace("r = sub", "r  =  sub")
    assert allows(load(tmp_path, ALLOW, spaced))
