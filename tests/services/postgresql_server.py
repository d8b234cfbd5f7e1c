"""A real PostgreSQL server for the tests: made in a folder of its own, and removed with it."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

# Debian keeps them out of PATH, with a folder for each version.
_DEBIAN = Path("/usr/lib/postgresql")
_START_SECONDS = 30
_STOP_SECONDS = 15

OWNER = "kvcustody"
PASSWORD = "p@ss/word"  # noqa: S105 - of a server that lives as long as the tests
ESCAPED_PASSWORD = "p%40ss%2Fword"  # noqa: S105


@dataclass(frozen=True)
class PostgreSQLServer:
    """A running server; its superuser is `OWNER`.

    Args:
        port: on 127.0.0.1.
        process: the server's first process.

    """

    port: int
    process: subprocess.Popen[bytes]

    @contextmanager
    def database(self) -> Iterator[str]:
        """The name of a new database; it is dropped in the end, whoever is connected."""
        name = f"registry_{secrets.token_hex(6)}"
        self.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        try:
            yield name
        finally:
            self.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def url(self, database: str) -> str:
        """What custody.yaml says for a database."""
        return f"postgresql://{OWNER}:{ESCAPED_PASSWORD}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A superuser's connection, without transactions."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=OWNER,
            password=PASSWORD,
            dbname=database,
            autocommit=True,
        )

    def execute(self, statement: sql.SQL | sql.Composed, database: str = "postgres") -> None:
        """Run a statement as the superuser."""
        with self.connect(database) as connection:
            connection.execute(statement)


class StoppableServer:
    """A server that comes and goes; its port and its databases stay.

    Args:
        programs: folder of PostgreSQL's programs.
        folder: of the server.
        user: whom it runs as, if not as this one.

    """

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self._place = programs, folder, user
        self._port = _free_port()
        self._stack = ExitStack()

    def start(self) -> PostgreSQLServer:
        """Start it."""
        return self._stack.enter_context(_running(*self._place, self._port))

    def close(self) -> None:
        """Stop it, if it runs."""
        self._stack.close()


@contextmanager
def running_server() -> Iterator[PostgreSQLServer]:
    """Start a server; stop and remove it in the end."""
    with stoppable_server() as server:
        yield server.start()


@contextmanager
def stoppable_server() -> Iterator[StoppableServer]:
    """A server to start; it is stopped and removed in the end."""
    programs = _programs()
    # Not pytest's folder: that is the owner's alone, and the server may run as somebody else.
    folder = Path(tempfile.mkdtemp(prefix="kvcustody-postgresql-"))
    try:
        user = _server_user()
        if user is not None:
            shutil.chown(folder, user, user)
        _make_cluster(programs, folder, user)
        with closing(StoppableServer(programs, folder, user)) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    found = [path.parent for path in _DEBIAN.glob("*/bin/postgres")]
    if (in_path := shutil.which("postgres")) is not None:
        found.append(Path(in_path).resolve().parent)
    if not found:
        pytest.fail(
            "these tests need PostgreSQL's programs, which are neither in "
            f"{_DEBIAN}/*/bin nor in PATH; run scripts/install_services.sh",
            pytrace=False,
        )
    return max(found, key=lambda path: (path.parent.name.zfill(4), path))


def _server_user() -> str | None:
    """PostgreSQL refuses to run as root; then its package's own user does."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        pytest.fail(
            "PostgreSQL doesn't run as root, and there is no user 'postgres'; "
            "run scripts/install_services.sh",
            pytrace=False,
        )


def _make_cluster(programs: Path, folder: Path, user: str | None) -> None:
    password_file = folder / "password"
    password_file.write_text(PASSWORD, encoding="utf-8")
    finished = subprocess.run(  # noqa: S603 - a program that we looked up
        [
            programs / "initdb",
            f"--pgdata={folder / 'data'}",
            f"--username={OWNER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ],
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=_START_SECONDS,
    )
    if finished.returncode != 0:
        pytest.fail(f"initdb failed: {finished.stderr.strip()}", pytrace=False)


@contextmanager
def _running(
    programs: Path, folder: Path, user: str | None, port: int
) -> Iterator[PostgreSQLServer]:
    settings = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": folder,
        "fsync": "off",
        "full_page_writes": "off",
        "max_connections": 100,
        "shared_buffers": "16MB",
    }
    command: list[str | Path] = [programs / "postgres", "-D", folder / "data"]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - a program that we looked up
            # Stops with us, also if we are killed.
            ["setpriv", "--pdeathsig", "INT", "--", *command],  # noqa: S607
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    try:
        server = PostgreSQLServer(port, process)
        _wait_for(server, log)
        yield server
    finally:
        process.send_signal(signal.SIGINT)  # to the server: stop at once, but in order
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(server: PostgreSQLServer, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while server.process.poll() is None and time.monotonic() < deadline:
        with suppress(psycopg.OperationalError):
            server.connect().close()
            return
        time.sleep(0.05)
    said = log.read_text(encoding="utf-8", errors="replace").strip()
    pytest.fail(f"PostgreSQL did not start: {said}", pytrace=False)
