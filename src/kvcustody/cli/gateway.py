"""`kvcustody gateway`: the gateway in front of a vLLM that can't be started with middleware."""

import json
import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import typer

from kvcustody.cli.common import ConfigOption, JsonOption
from kvcustody.config import load_settings
from kvcustody.errors import ConfigurationError
from kvcustody.gateway import CustodyGateway
from kvcustody.wiring import build_gateway


def gateway(
    upstream: Annotated[str, typer.Option(help="Base URL of the server behind.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8080,
    upstream_ca: Annotated[
        Path | None,
        typer.Option(help="Certificates (PEM) that the server's own may be signed by."),
    ] = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Govern requests to a vLLM that runs elsewhere; only this gateway may be able to reach it.

    The server needs the connector (`kvcustody vllm-config`), and its API key, if it has one, in
    KVCUSTODY_UPSTREAM_API_KEY.
    """
    try:
        from kvcustody.gateway.proxy import ReverseProxy  # noqa: PLC0415 - needs the gateway extra
        from kvcustody.gateway.proxy_server import address_of, bind, serve  # noqa: PLC0415
        from kvcustody.gateway.upstream import API_KEY_ENV, parse_upstream  # noqa: PLC0415
        from kvcustody.gateway.upstream_check import doubts_about  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"the gateway needs {error.name}; pip install 'kvcustody[gateway]'"
        ) from None
    behind = parse_upstream(upstream, upstream_ca, os.environ.get(API_KEY_ENV) or None)
    settings = load_settings(config)
    with closing(bind(host, port)) as listener, closing(build_gateway(settings)) as services:
        for doubt in doubts_about(behind):
            typer.echo(f"kvcustody: {doubt}", err=True)
        bound_host, bound_port = address_of(listener)

        def announce() -> None:
            if json_:
                ready = {"host": bound_host, "port": bound_port, "upstream": str(behind.url)}
                typer.echo(json.dumps(ready))
                return
            shown = f"[{bound_host}]" if ":" in bound_host else bound_host
            typer.echo(f"Listening on http://{shown}:{bound_port} for {behind.url}")
            typer.echo("See to it that nothing else can reach that server: it asks for no key.")

        with suppress(KeyboardInterrupt):
            serve(CustodyGateway(ReverseProxy(behind), services), listener, announce)
