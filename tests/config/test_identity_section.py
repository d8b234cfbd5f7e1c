"""The section `identity.jwt` of custody.yaml, and the verifier that is made of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcustody.config import JwtSettings, load_settings
from kvcustody.deployment import init_deployment
from kvcustody.errors import ConfigurationError
from kvcustody.identity.caller import Caller
from kvcustody.identity.jwt_bearer import ALGORITHMS
from kvcustody.identity.opening import open_bearer
from kvcustody.identity.principal import Principal
from token_issuer import IssuerKey, key_set

pytestmark = pytest.mark.unit

KEY = IssuerKey("ES256")
GOOD: dict[str, Any] = {
    "issuer": "https://idp.example",
    "audience": "kvcustody",
    "jwks": "jwks.json",
    "algorithms": ["ES256"],
    "claims": {"tenant": "tenant", "workload": "azp"},
}
LINE = 9


@pytest.fixture
def config(tmp_path: Path) -> Path:
    config = tmp_path / "site" / "custody.yaml"
    init_deployment(config)
    (config.parent / "jwks.json").write_bytes(key_set(KEY))
    return config


def with_jwt(config: Path, **changes: object) -> Path:
    """A deployment with the section in one line; a field that is changed to `None` is left out."""
    fields = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    section = yaml.safe_dump({"jwt": fields}, default_flow_style=True, width=10_000).strip()
    lines = config.read_text(encoding="utf-8").splitlines()
    index = next(number for number, line in enumerate(lines) if line.startswith("identity:"))
    assert index + 1 == LINE - 1
    lines[index] = "identity:\n  " + section.removeprefix("{").removesuffix("}")
    config.write_text("\n".join(lines), encoding="utf-8")
    return config


def refusal(config: Path) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        open_bearer(load_settings(config))
    assert caught.value.file == config
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def test_without_the_section_no_token_is_taken(config: Path) -> None:
    assert open_bearer(load_settings(config)) is None


def test_the_section_makes_a_verifier(config: Path) -> None:
    claims = {"tenant": "org", "workload": "azp", "subject": "sub", "admin": "adm"}
    settings = load_settings(with_jwt(config, claims=claims, tenants={"7": "globex"}, leeway="5s"))
    jwt = settings.identity.jwt
    assert isinstance(jwt, JwtSettings)
    assert jwt.jwks == str(config.parent / "jwks.json")
    assert jwt.leeway == 5.0
    bearer = open_bearer(settings)
    assert bearer is not None
    good = {"exp": 9_000_000_000, "org": "7", "adm": True}
    found = bearer.authenticate(KEY.sign(good))
    assert found == Caller(Principal("globex", "chat", "anna"), "jwt:t-1", admin=True)
    assert not isinstance(bearer.authenticate(KEY.sign({**good, "org": "8"})), Caller)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_a_file_may_be_named_as_a_path_or_as_a_url(config: Path, form: str) -> None:
    absolute = form.format(config.parent / "jwks.json")
    assert open_bearer(load_settings(with_jwt(config, jwks=absolute))) is not None


def test_a_provider_that_is_away_stops_nobody_from_starting(config: Path) -> None:
    away = with_jwt(config, jwks="https://idp.invalid/jwks.json")
    assert open_bearer(load_settings(away)) is not None


def test_the_configuration_and_the_verifier_know_the_same_algorithms(config: Path) -> None:
    settings = load_settings(with_jwt(config, algorithms=sorted(ALGORITHMS)))
    assert open_bearer(settings) is not None
    assert settings.identity.jwt is not None
    assert set(settings.identity.jwt.algorithms) == ALGORITHMS


@pytest.mark.parametrize(
    ("changes", "field", "remedy"),
    [
        ({"algorithms": ["none"]}, "identity.jwt.algorithms[0]", "'RS256'"),
        ({"algorithms": ["ES256", "HS256"]}, "identity.jwt.algorithms[1]", "'RS256'"),
        ({"algorithms": []}, "identity.jwt.algorithms", "at least 1"),
        ({"algorithms": None}, "identity.jwt.algorithms", "required field is missing"),
        ({"issuer": None}, "identity.jwt.issuer", "required field is missing"),
        ({"issuer": ""}, "identity.jwt.issuer", "at least 1"),
        ({"audience": None}, "identity.jwt.audience", "required field is missing"),
        ({"claims": {"tenant": "t"}}, "identity.jwt.claims.workload", "required field is missing"),
        ({"claims": {"sub": "s"}}, "identity.jwt.claims.sub", "unknown field"),
        ({"leeway": "1h"}, "identity.jwt.leeway", "at most 300s"),
        ({"leeway": 30}, "identity.jwt.leeway", "with its unit"),
        ({"secret": "s"}, "identity.jwt.secret", "unknown field"),
        ({"tenants": {"7": "a b"}}, "identity.jwt.tenants.7", "letters"),
        ({"tenants": {"7": "initech"}}, "identity.jwt.tenants.7", "unknown tenant 'initech'"),
        ({"jwks": "absent.json"}, "identity.jwt.jwks", "absent.json: no such file"),
        ({"jwks": "custody.yaml"}, "identity.jwt.jwks", "the key set is not JSON"),
        ({"jwks": "http://idp.example/jwks"}, "identity.jwt.jwks", "use https"),
        ({"jwks": "https://"}, "identity.jwt.jwks", "not a URL"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_field(
    config: Path, changes: dict[str, object], field: str, remedy: str
) -> None:
    pristine = config.read_text(encoding="utf-8")
    error = refusal(with_jwt(config, **changes))
    assert (error.field, error.line) == (field, LINE)
    assert remedy in error.message
    config.write_text(pristine, encoding="utf-8")
    assert open_bearer(load_settings(with_jwt(config))) is not None
