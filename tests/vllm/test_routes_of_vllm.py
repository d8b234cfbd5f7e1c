"""Every route of the installed vLLM has a treatment: a new one fails here, and is refused."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import vllm
from fastapi.routing import APIRoute
from starlette.routing import Mount, WebSocketRoute
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.tasks import POOLING_TASKS
from vllm.utils.argparse_utils import FlexibleArgumentParser

from kvcustody.gateway.routes import ROUTES, WEBSOCKET, Treatment, find_route

pytestmark = pytest.mark.engine

ENTRYPOINTS = Path(vllm.__file__).parent / "entrypoints"
# All that a server can be for; vLLM registers routes by these.
TASKS = [
    ("generate", "transcription", "realtime"),
    ("embed",),
    ("classify",),
    ("token_embed",),
    ("embed", "classify", "score", "token_classify"),
    ("render",),
]
# Files whose routes are no vLLM server's: a supervisor's own small servers.
OTHER_SERVERS = {"dp_supervisor.py", "preload.py"}
# Offline documentation: on no list, so refused.
REFUSED = {"/static"}


class Model(SimpleNamespace):
    """A test double for vLLM's ModelConfig, as far as registering routes asks it."""

    def get_pooling_task(self, tasks: tuple[str, ...]) -> str | None:
        return next((task for task in tasks if task in POOLING_TASKS), None)


@pytest.fixture(scope="module")
def registered() -> dict[tuple[str, str], Any]:
    """All routes by method and path, with everything that can be switched on switched on."""
    patch = pytest.MonkeyPatch()
    for variable in (
        "VLLM_SERVER_DEV_MODE",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "VLLM_ENABLE_COHERE_API",
    ):
        patch.setenv(variable, "1")
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    for option in ("enable_scale_out", "enable_fault_tolerance", "enable_tokenizer_info_endpoint"):
        assert hasattr(arguments, option)
        setattr(arguments, option, True)
    arguments.tokens_only = True
    model: Any = Model(
        architecture="Any",
        is_cross_encoder=True,
        hf_config=SimpleNamespace(num_labels=1),
        pooler_config=None,
        io_processor_plugin=None,
        score_type="bi-encoder",
    )
    routes = {
        key: route
        for tasks in TASKS
        for route in build_app(arguments, tasks, model).routes
        for key in _keys(route)
    }
    patch.undo()
    return routes


def _keys(route: Any) -> Iterator[tuple[str, str]]:
    methods = getattr(route, "methods", None)
    if methods is not None:
        yield from ((method, route.path) for method in methods)
    elif isinstance(route, Mount):
        yield "GET", route.path
    else:
        assert isinstance(route, WebSocketRoute)
        yield WEBSOCKET, route.path


def body_fields(route: Any) -> set[str]:
    """Names of the fields that a route's body may have; a body may be one of several models."""
    waiting = [param.field_info.annotation for param in route.dependant.body_params]
    names: set[str] = set()
    while waiting:
        model = waiting.pop()
        waiting += get_args(model)
        names |= getattr(model, "model_fields", {}).keys()
    return names


def in_source() -> set[tuple[str, str]]:
    """Routes by the decorators in vLLM's source, whatever switches them on."""
    return {
        route
        for file in ENTRYPOINTS.rglob("*.py")
        if file.name not in OTHER_SERVERS
        for route in _decorated(ast.parse(file.read_text(encoding="utf-8")))
    }


def _decorated(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"get", "post", "put", "patch", "delete", "websocket"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and str(node.args[0].value).startswith("/")
        ):
            yield node.func.attr.upper(), str(node.args[0].value)


def example(path: str) -> str:
    """A path that a route's template matches."""
    return path.replace("{", "").replace("}", "")


def ungoverned(routes: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    return {
        (method, path)
        for method, path in routes
        if path not in REFUSED and find_route(method, example(path)).treatment is Treatment.REFUSED
    }


def test_every_route_that_vllm_registers_has_a_treatment(
    registered: dict[tuple[str, str], Any],
) -> None:
    assert len(registered) > 60
    assert ungoverned(registered) == set()
    assert ungoverned({("POST", "/v2/novelty")}) == {("POST", "/v2/novelty")}


def test_every_route_in_vllms_source_has_a_treatment() -> None:
    found = in_source()
    assert {("POST", "/v1/chat/completions"), ("POST", "/start_profile")} <= found
    assert ungoverned(found) == set()


def test_every_treatment_is_for_a_route_that_vllm_has(
    registered: dict[tuple[str, str], Any],
) -> None:
    """So that a renamed route doesn't stay on the lists for ever."""
    known = (
        registered.keys() | in_source() | {("GET", "/metrics/")}
    )  # a mount answers below itself, too
    assert {(method, route.template) for method, route in ROUTES} - known == set()


def test_what_is_open_is_short_and_reads_no_prompt(registered: dict[tuple[str, str], Any]) -> None:
    opened = {
        path
        for method, path in registered
        if find_route(method, example(path)).treatment is Treatment.OPEN
    }
    assert opened == {"/health", "/ping", "/version", "/load", "/metrics"}


def test_a_body_that_can_choose_a_cache_is_rewritten(
    registered: dict[tuple[str, str], Any],
) -> None:
    chooses = {"cache_salt", "kv_transfer_params", "ec_transfer_params", "previous_response_id"}
    rewritten = {Treatment.GOVERNED, Treatment.SALTED, Treatment.STRIPPED}
    choosing = {
        key: body_fields(route)
        for key, route in registered.items()
        if isinstance(route, APIRoute) and body_fields(route) & chooses
    }
    assert len(choosing) > 12
    assert {key for key in choosing if find_route(*key).treatment not in rewritten} == set()
    # The gateway puts an assertion wherever it can travel.
    with_place = {key for key, names in choosing.items() if "kv_transfer_params" in names}
    assert {key for key in with_place if find_route(*key).treatment is Treatment.SALTED} == set()
