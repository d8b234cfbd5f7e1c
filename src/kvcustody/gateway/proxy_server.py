"""Serve the reverse proxy with uvicorn, on a socket that is bound beforehand."""

import socket
from collections.abc import Callable, Sequence

import uvicorn

from kvcustody.errors import ConfigurationError
from kvcustody.gateway.replies import Application

# Answers under way may end; a container's orchestrator commonly kills after 30 s, and the audit
# stream must have ended by then.
_GRACEFUL_SECONDS = 20
# Load balancers reuse a connection for up to 60 s; the side that sends must be the one to close.
_KEEP_ALIVE_SECONDS = 65
_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Args:
        host: address or name.
        port: 0 for any free one.

    Raises:
        ConfigurationError: it can't listen there.

    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise ConfigurationError(f"can't listen there: {reason}", field="--host, --port") from None


def serve(app: Application, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until a signal ends it; answers under way may end, and the lifespan does.

    SIGTERM then ends the process as if it were not handled, SIGINT raises `KeyboardInterrupt`.

    Args:
        app: what is served.
        listener: a socket that listens.
        on_ready: called once requests are answered.

    """
    server_for(app, on_ready).run(sockets=[listener])


def server_for(app: Application, on_ready: Callable[[], None]) -> uvicorn.Server:
    """The server, as it is configured for the gateway; arguments as for `serve`."""
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        # A client could write any address; the audit is to see the one that it has.
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
    )
    return _Server(config, on_ready)


class _Server(uvicorn.Server):
    """Tells when it is ready."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then tell."""
        await super().startup(sockets=sockets)
        self._on_ready()


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Host and port that a socket listens on."""
    address: Sequence[str | int] = listener.getsockname()
    return str(address[0]), int(address[1])
