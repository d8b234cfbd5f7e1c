from pathlib import Path

import pytest
from pydantic import ValidationError

from kvcustody.config import CONFIG_ENV, LocalKeys, Settings, load_settings
from kvcustody.errors import ConfigurationError

pytestmark = pytest.mark.unit

# Line numbers matter: the tests below count on them.
GOOD = """\
version: 1
deployment: support-eu
state: state
keys:
  path: keys/root.key
identity:
  anonymous: deny
host:
  bytes: 1GiB
tiers:
  - name: disk
    path: /var/tier
    ttl: 24h
    min_free: 5%
  - name: archive
    path: archive
tenants:
  acme:
    scope: workload
    ttl: 12h
  globex: {}
authorization:
  policy: policies/policy.csv
audit:
  path: audit
"""
SHORTEST = """\
version: 1
deployment: local
state: state
keys: {path: root.key}
tiers: [{name: disk, path: tier}]
tenants: {acme: {}}
authorization: {policy: policy.csv}
audit: {path: audit}
"""
TEMPLATE = Path(__file__).resolve().parents[2] / "src/kvcustody/deployment/templates/custody.yaml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "custody.yaml"


def load(file: Path, text: str = GOOD) -> Settings:
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def refusal(file: Path, text: str | None = None) -> ConfigurationError:
    """What is said of a file that is refused: one line that starts with the place."""
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file)
    error = caught.value
    assert error.file == file
    assert str(error).startswith(f"{file}:{error.line}: " if error.line else f"{file}: ")
    assert len(str(error).splitlines()) == 1
    assert str(error).isprintable()
    assert "pydantic" not in str(error)
    return error


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_a_good_file_gives_what_it_says(file: Path) -> None:
    settings = load(file)
    assert settings.version == 1
    assert settings.deployment == "support-eu"
    assert settings.host.bytes == 2**30
    disk, archive = settings.tiers
    assert (disk.name, disk.kind, disk.path) == ("disk", "filesystem", Path("/var/tier"))
    assert (disk.ttl, disk.min_free) == (86400.0, 0.05)
    assert archive.name == "archive"
    assert list(settings.tenants) == ["acme", "globex"]
    assert (settings.tenants["acme"].scope, settings.tenants["acme"].ttl) == ("workload", 43200.0)


def test_what_a_file_leaves_out_has_the_documented_defaults(file: Path) -> None:
    settings = load(file, SHORTEST)
    assert settings.identity.anonymous == "deny"
    assert settings.identity.assertion_ttl == 60.0
    assert settings.model.revision == "auto"
    assert settings.host.bytes == 8 * 2**30
    assert (settings.tiers[0].ttl, settings.tiers[0].min_free) == (86400.0, 0.05)
    assert (settings.tenants["acme"].scope, settings.tenants["acme"].ttl) == ("tenant", None)
    assert settings.authorization.model is None
    assert (settings.audit.on_failure, settings.audit.checkpoint_every) == ("block", 10.0)
    assert (settings.failure.load_deadline, settings.failure.lookup_deadline) == (2.0, 0.2)


def test_relative_paths_start_from_the_folder_of_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    settings = load(file)
    assert settings.state == tmp_path / "state"
    assert isinstance(settings.keys, LocalKeys)
    assert settings.keys.path == tmp_path / "keys" / "root.key"
    assert settings.tiers[1].path == tmp_path / "archive"
    assert settings.authorization.policy == tmp_path / "policies" / "policy.csv"
    assert settings.audit.path == tmp_path / "audit"


def test_a_path_may_start_from_the_home_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    assert load(file, changed("state: state", "state: ~/state")).state == Path("/home/alice/state")


def test_the_registry_lies_below_state_unless_configured(file: Path, tmp_path: Path) -> None:
    assert load(file).registry_url == f"sqlite:///{tmp_path / 'state' / 'registry.sqlite'}"
    configured = load(file, GOOD + "registry: sqlite:////srv/registry.sqlite\n")
    assert configured.registry_url == "sqlite:////srv/registry.sqlite"


def test_settings_can_not_be_changed(file: Path) -> None:
    settings = load(file)
    with pytest.raises(ValidationError):
        settings.deployment = "another"


def test_the_template_of_init_is_a_good_file(file: Path) -> None:
    settings = load(file, TEMPLATE.read_text(encoding="utf-8"))
    assert settings.identity.anonymous == "deny"
    assert settings.audit.on_failure == "block"


def test_a_file_with_a_byte_order_mark_is_read(file: Path) -> None:
    assert load(file, "\ufeff" + GOOD).deployment == "support-eu"


def test_the_environment_names_the_file_unless_the_caller_does(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(file)
    other = tmp_path / "other.yaml"
    other.write_text(changed("support-eu", "other"))
    monkeypatch.setenv(CONFIG_ENV, str(other))
    assert load_settings().deployment == "other"
    assert load_settings(file).deployment == "support-eu"
    monkeypatch.delenv(CONFIG_ENV)
    monkeypatch.chdir(tmp_path)
    assert load_settings().deployment == "support-eu"


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "remedy"),
    [
        ("deny", "deny\n  client_parameters: drop", 8, "identity.client_parameters", "'refuse'"),
        (
            "deny",
            "deny\n  allowed_parameters: [remote_host]",
            8,
            "identity.allowed_parameters[0]",
            "'max_load_tokens'",
        ),
        ("{}", "{act_for_subjects: ['a b']}", 21, "tenants.globex.act_for_subjects[0]", "letters"),
        (
            "host:",
            "sharing: [{group: a b, tenants: [acme]}]\nhost:",
            8,
            "sharing[0].group",
            "letters",
        ),
        ("host:", "sharing: [{group: m, tenants: []}]\nhost:", 8, "sharing[0].tenants", "1 item"),
        ("  min", "  colour: red\n    min", 14, "tiers[0].colour", "check its spelling"),
        ("host:", "hosts: {}\nhost:", 8, "hosts", "check its spelling"),
        ("    scope:", "    scopes:", 19, "tenants.acme.scopes", "check its spelling"),
        ("version: 1", "version: 2", 1, "version", "should be 1"),
        ("version: 1", "version: '1'", 1, "version", "should be 1"),
        ("support-eu", "12", 2, "deployment", "valid string"),
        ("support-eu", "support eu", 2, "deployment", "letters, digits"),
        ("support-eu", "a" * 64, 2, "deployment", "letters, digits"),
        ("support-eu", "''", 2, "deployment", "letters, digits"),
        ("support-eu", '"eu\\n"', 2, "deployment", "letters, digits"),
        ("support-eu", "ев", 2, "deployment", "letters, digits"),
        ("name: disk", "name: ../disk", 11, "tiers[0].name", "letters, digits"),
        ("path: /var/tier", "path: 7", 12, "tiers[0].path", ""),
        ("    path: archive\n", "", 15, "tiers[1].path", "missing; add it"),
        ("  path: keys/root.key", "  provider: local", 4, "keys.path", "missing; add it"),
        ("  path: keys/root.key", "  path: k\n  provider: kms", 6, "keys.provider", "aws-kms"),
        ("scope: workload", "scope: group", 19, "tenants.acme.scope", "'workload' or 'subject'"),
        ("ttl: 24h", "ttl: 24", 13, "tiers[0].ttl", "with its unit, such as"),
        ("ttl: 24h", "ttl: 24 hours", 13, "tiers[0].ttl", "with its unit, such as"),
        ("ttl: 12h", "ttl: 0s", 20, "tenants.acme.ttl", "longer than zero"),
        ("ttl: 12h", "ttl: -5s", 20, "tenants.acme.ttl", "with its unit, such as"),
        ("bytes: 1GiB", "bytes: lots", 9, "host.bytes", "with its unit, such as"),
        ("bytes: 1GiB", "bytes: 0", 9, "host.bytes", "larger than zero"),
        ("bytes: 1GiB", "bytes: true", 9, "host.bytes", "with its unit, such as"),
        ("min_free: 5%", "min_free: 0.05", 14, "tiers[0].min_free", "percentage"),
        ("min_free: 5%", "min_free: 100%", 14, "tiers[0].min_free", "percentage"),
        ("  bytes: 1GiB", "  - 1GiB", 8, "host", "expected indented fields"),
        ("keys:\n  path: keys/root.key", "keys:", 4, "keys", "expected indented fields"),
        ("  globex: {}", "  globex:", 21, "tenants.globex", "expected indented fields"),
        ("  globex: {}", "  glo bex: {}", 21, "tenants.glo bex", "letters, digits"),
        (
            "  path: audit",
            "  path: audit\n  on_failure: stop",
            26,
            "audit.on_failure",
            "'continue'",
        ),
    ],
)
def test_a_wrong_value_is_named_with_line_field_and_remedy(
    file: Path, *, old: str, new: str, line: int, field: str, remedy: str
) -> None:
    error = refusal(file, changed(old, new))
    assert (error.line, error.field) == (line, field)
    assert remedy in error.message


def test_a_name_that_is_a_number_is_named_with_its_line(file: Path) -> None:
    error = refusal(file, changed("  globex: {}", "  42: {}"))
    assert error.line == 21
    assert error.field is not None
    assert "42" in error.field


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("version: 1\n", "version"),
        ("deployment: support-eu\n", "deployment"),
        ("state: state\n", "state"),
        ("keys:\n  path: keys/root.key\n", "keys"),
        ("authorization:\n  policy: policies/policy.csv\n", "authorization"),
        ("audit:\n  path: audit\n", "audit"),
    ],
)
def test_a_missing_section_is_named(file: Path, section: str, field: str) -> None:
    error = refusal(file, changed(section, ""))
    assert (error.line, error.field) == (1, field)
    assert error.message == "required field is missing; add it"


@pytest.mark.parametrize("name", ["tiers", "tenants"])
@pytest.mark.parametrize("empty", ["", " []", " {}", " 5"])
def test_a_deployment_needs_a_tier_and_a_tenant(file: Path, name: str, empty: str) -> None:
    kept = {"tiers": "tenants: {acme: {}}\n", "tenants": "tiers: [{name: disk, path: tier}]\n"}
    rest = SHORTEST.replace("tiers: [{name: disk, path: tier}]\ntenants: {acme: {}}\n", kept[name])
    error = refusal(file, rest + f"{name}:{empty}\n")
    assert (error.line, error.field) == (8, name)


@pytest.mark.parametrize(
    ("old", "new", "lines", "named"),
    [
        ("name: archive", "name: disk", (10, 15), "two tiers are named 'disk'"),
        ("name: archive", "name: host", (10, 15), "'host' names the host-memory tier"),
        ("anonymous: deny", "anonymous: nobody", (7, 7), "unknown tenant 'nobody'"),
        (
            "host:",
            "sharing: [{group: m, tenants: [nobody]}]\nhost:",
            (8, 8),
            "'nobody' is no tenant",
        ),
        ("host:", "sharing: [{group: disk, tenants: [acme]}]\nhost:", (8, 8), "names a tier"),
        ("host:", "sharing: [{group: host, tenants: [acme]}]\nhost:", (8, 8), "names a tier"),
        (
            "host:",
            "sharing: [{group: m, tenants: [acme]}, {group: m, tenants: [globex]}]\nhost:",
            (8, 8),
            "two groups are named 'm'",
        ),
    ],
    ids=[
        "tiers of one name",
        "a tier named host",
        "anonymous",
        "a group of nobody",
        "a group named as a tier",
        "a group named host",
        "groups of one name",
    ],
)
def test_values_that_contradict_each_other_are_named_with_line_and_field(
    file: Path, old: str, new: str, lines: tuple[int, int], named: str
) -> None:
    error = refusal(file, changed(old, new))
    assert named in error.message
    assert error.field is not None
    assert error.line in lines


def test_sharing_subjects_and_harmless_parameters_are_read(file: Path) -> None:
    text = changed("{}", "{act_for_subjects: [bot, '*']}").replace(
        "anonymous: deny", "allowed_parameters: [max_load_tokens]"
    )
    settings = load(file, f"{text}sharing: [{{group: manuals, tenants: [acme, globex]}}]\n")
    assert settings.tenants["globex"].act_for_subjects == ["bot", "*"]
    assert settings.tenants["acme"].act_for_subjects == []
    assert settings.identity.allowed_parameters == ["max_load_tokens"]
    assert [(entry.group, entry.tenants) for entry in settings.sharing] == [
        ("manuals", ["acme", "globex"])
    ]


def test_anonymous_callers_may_be_given_to_a_tenant(file: Path) -> None:
    settings = load(file, changed("anonymous: deny", "anonymous: acme"))
    assert settings.identity.anonymous == "acme"


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "first"),
    [
        ("state: state", "state: a\nstate: b", 4, "state", 3),
        ("    ttl: 24h", "    ttl: 24h\n    ttl: 7d", 14, "tiers[0].ttl", 13),
        ("  globex: {}", "  globex: {}\n  'acme': {}", 22, "tenants.acme", 18),
        ("  globex: {}", "  globex: {ttl: 1h, ttl: 2h}", 21, "tenants.globex.ttl", 21),
    ],
)
def test_a_key_written_twice_is_refused_and_no_value_wins(
    file: Path, *, old: str, new: str, line: int, field: str, first: int
) -> None:
    error = refusal(file, changed(old, new))
    assert (error.line, error.field) == (line, field)
    assert error.message == f"written twice (first on line {first}); keep one"


def test_an_alias_is_refused(file: Path) -> None:
    error = refusal(file, changed("  globex: {}", "  one: &one {}\n  globex: *one"))
    assert error.line == 22
    assert "aliases (*name) are not supported; write the value out" in error.message


def test_a_yaml_bomb_is_refused(file: Path) -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{after}: &{after} [*{before}, *{before}]\n"
        for before, after in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert refusal(file, bomb).line == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("version: [1", 2),
        ("version: 1\n\tstate: x\n", 2),
        ("version: 1\nstate: 'x\n", 3),
        ("version: 1\n---\nversion: 1\n", 2),
        ("version: 1\nstate: !!python/object/apply:os.system [id]\n", 2),
        ("version: 1\n? [a]\n: b\n", 2),
        ("version: %1\n", 1),
    ],
)
def test_broken_yaml_is_named_with_its_line(file: Path, text: str, line: int) -> None:
    error = refusal(file, text)
    assert error.line in {line, line - 1}
    assert error.message.startswith("not valid YAML: ")


def test_a_control_character_is_refused(file: Path) -> None:
    assert "not valid YAML" in refusal(file, changed("state: state", "state: \x01")).message


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "just text\n", "5\n", "null\n"])
def test_a_file_without_fields_says_what_is_expected(file: Path, text: str) -> None:
    assert "`kvcustody init`" in refusal(file, text).message


@pytest.mark.parametrize(
    "value",
    ["2024-13-45", "0x_", "9" * 5000, "2024-02-30T25:00:00Z"],
    ids=["date", "hexadecimal", "number", "time"],
)
def test_a_value_that_yaml_itself_stumbles_over_is_a_clear_error(file: Path, value: str) -> None:
    refusal(file, changed("support-eu", value))


def test_a_size_beyond_all_measure_is_a_clear_error(file: Path) -> None:
    error = refusal(file, changed("1GiB", "9" * 400 + "GiB"))
    assert (error.line, error.field) == (9, "host.bytes")


def test_a_path_below_an_unknown_home_is_a_clear_error(file: Path) -> None:
    refusal(file, changed("state: state", "state: ~no-such-user-here/state"))


@pytest.mark.parametrize("path", ["''", '"a\\0b"'], ids=["empty", "zero byte"])
def test_a_path_that_names_nothing_is_a_clear_error(file: Path, path: str) -> None:
    error = refusal(file, changed("path: audit", f"path: {path}"))
    assert (error.line, error.field) == (25, "audit.path")


def test_a_file_nested_without_end_is_a_clear_error(file: Path) -> None:
    refusal(file, changed("state: state", "state: " + "[" * 1000))


def test_a_name_can_not_break_the_one_line_of_its_error(file: Path) -> None:
    error = refusal(file, changed("  globex: {}", '  "glo\\n\\e[31mbex": {}'))
    assert error.line == 21


def test_a_missing_file_says_how_to_get_one(file: Path) -> None:
    assert refusal(file).message == "no such file; `kvcustody init` writes one"


def test_a_folder_in_place_of_the_file_is_a_clear_error(file: Path) -> None:
    file.mkdir()
    assert "can't be read" in refusal(file).message


def test_a_file_that_is_not_utf8_is_a_clear_error(file: Path) -> None:
    file.write_bytes(GOOD.replace("support-eu", "süd").encode("latin-1"))
    assert refusal(file).message == "not UTF-8 text"


def test_a_file_larger_than_any_configuration_is_refused_unread(file: Path) -> None:
    with file.open("wb") as large:
        large.truncate((1 << 20) + 1)
    assert "1 MiB" in refusal(file).message


def test_an_error_found_later_still_names_the_line_that_led_to_it(
    file: Path, tmp_path: Path
) -> None:
    settings = load(file)
    with (
        pytest.raises(ConfigurationError) as caught,
        settings.places.blame("tiers", 1, "path"),
    ):
        raise ConfigurationError("owned by another user", tmp_path / "archive")
    assert str(caught.value) == (
        f"{file}:16: tiers[1].path: {tmp_path / 'archive'}: owned by another user"
    )


def test_an_error_in_a_field_left_out_names_the_nearest_line(file: Path, tmp_path: Path) -> None:
    settings = load(file)
    for location, line in ((("keys", "provider"), 4), (("registry",), 1)):
        with pytest.raises(ConfigurationError) as caught, settings.places.blame(*location):
            raise ConfigurationError("wrong", tmp_path / "elsewhere")
        assert caught.value.line == line
