"""What the gateway costs: a server that streams tokens, bare and behind it, under the same load.

The contenders have their turns round after round. One of them is the bare server once more, in a
process of its own: what it differs from the first is the machine's doing, and nobody's merit.
"""

import asyncio
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kvcustody.bench.load import Answer, Load, run_requests, run_streams
from kvcustody.bench.stub_server import GOVERNED
from kvcustody.config import CONFIG_ENV
from kvcustody.deployment import init_deployment
from kvcustody.errors import ConfigurationError, UnavailableError

BARE, AGAIN = "bare", "bare again"
CONTENDERS = (BARE, GOVERNED, AGAIN)
MEBIBYTE = 2**20

_STOP_SECONDS = 15.0
_MILLI = 1000.0
# How many answers pass between two looks at the memory.
_SAMPLED_EVERY = 50
# Buffers, caches and thread pools have their size after this part of the requests.
_WARM_AFTER = 0.2
_WARM_UP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds.

    Args:
        median: of all rounds.
        lowest: of them.
        highest: of them.

    """

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The summary of some rounds' figures."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Turn:
    """One contender's turn in one round.

    Args:
        rate: requests a second.
        cpu: milliseconds of the server's processor time, a request.
        first: milliseconds until the first token, by percentile.
        late: milliseconds that the end comes later than the pace has it, by percentile.

    """

    rate: float
    cpu: float
    first: Mapping[int, float]
    late: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A contender beside the bare server, round by round.

    Args:
        rate_ratio: its requests a second, as a part of the bare server's.
        cpu_added: milliseconds of processor time that it takes more, a request.
        first_added: milliseconds that the first token comes later, by percentile.
        late_added: milliseconds that the end comes later, by percentile.

    """

    rate_ratio: Spread
    cpu_added: Spread
    first_added: Mapping[int, Spread]
    late_added: Mapping[int, Spread]


@dataclass(frozen=True, slots=True)
class Row:
    """One load.

    Args:
        name: of the load.
        body_bytes: size of each request's body.
        rates: requests a second, by contender.
        comparisons: the others beside the bare server.

    """

    name: str
    body_bytes: int
    rates: Mapping[str, Spread]
    comparisons: Mapping[str, Comparison]


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of the governed server under large bodies, in MiB.

    Args:
        requests: how many were sent.
        body_bytes: size of each body.
        warm: after the warm-up.
        highest: from there on.
        end: after the last request.
        slope: growth per 1,000 requests from there on, least squares.

    """

    requests: int
    body_bytes: int
    warm: float
    highest: float
    end: float
    slope: float


@dataclass(frozen=True, slots=True)
class Server:
    """A server under measurement.

    Args:
        port: where it listens.
        process: its number.
        headers: what its requests carry.

    """

    port: int
    process: int
    headers: Mapping[str, str]

    def cpu_seconds(self) -> float:
        """Processor time that it has used."""
        fields = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8").rpartition(")")[2]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        """Its resident memory in MiB."""
        pages = Path(f"/proc/{self.process}/statm").read_text(encoding="utf-8").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / MEBIBYTE


def chat_body(size: int) -> bytes:
    """A chat of at least this many bytes, with line ends and letters beyond ASCII as texts have."""
    line = (
        'Ein Satz über "Custody", und noch einer.\nA line of plain text that has no such thing.\n'
    )
    line_bytes = len(json.dumps(line, ensure_ascii=False).encode()) - len('""')
    messages = [
        {"role": "system", "content": "You answer questions about the text."},
        {"role": "user", "content": line * (size // line_bytes + 1)},
    ]
    fields = {"model": "stub", "messages": messages, "stream": True, "max_tokens": 32}
    return json.dumps(fields, ensure_ascii=False).encode()


def bench_streams(
    loads: Mapping[str, Load],
    *,
    rounds: int,
    seconds: float,
    progress: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Compare the contenders under each load.

    Args:
        loads: by name.
        rounds: how often each contender has its turn.
        seconds: length of a turn.
        progress: told after each turn.

    Raises:
        ConfigurationError: uvicorn is not installed.
        UnavailableError: a server doesn't start.

    """
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(running_server(governed=name == GOVERNED))
            for name in CONTENDERS
        }
        return [
            _row(name, load, servers, rounds=rounds, seconds=seconds, progress=progress)
            for name, load in loads.items()
        ]


def bench_memory(
    *, requests: int, body_bytes: int, streams: int, progress: Callable[[int], None]
) -> Memory:
    """Watch the governed server's memory under many large bodies.

    Args:
        requests: how many.
        body_bytes: size of each body.
        streams: how many are under way at once.
        progress: told the number of requests that have been answered.

    Raises:
        ConfigurationError: uvicorn is not installed.
        UnavailableError: the server doesn't start.

    """
    load = Load(streams, 1, 0.0, chat_body(body_bytes))
    samples: list[tuple[int, float]] = []
    with running_server(governed=True) as server:

        def look(done: int) -> None:
            if done % _SAMPLED_EVERY == 0 or done == requests:
                samples.append((done, server.resident()))
            progress(done)

        asyncio.run(
            run_requests(server.port, load, server.headers, requests=requests, progress=look)
        )
    warm = [sample for sample in samples if sample[0] >= requests * _WARM_AFTER]
    levels = [level for _, level in warm]
    slope = 0.0
    if len(warm) > 1:
        slope = statistics.linear_regression([done for done, _ in warm], levels).slope
    return Memory(requests, len(load.body), levels[0], max(levels), levels[-1], slope * 1000)


@contextmanager
def running_server(*, governed: bool) -> Iterator[Server]:
    """A stub server in a process of its own; behind the gateway, with a deployment of its own.

    Raises:
        ConfigurationError: uvicorn is not installed.
        UnavailableError: it doesn't start.

    """
    if importlib.util.find_spec("uvicorn") is None:
        raise ConfigurationError("uvicorn is not installed; pip install 'kvcustody[gateway]'")
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2048))
        command = [sys.executable, "-m", "kvcustody.bench.stub_server", str(listener.fileno())]
        headers, environment = {}, dict(os.environ)
        if governed:
            folder = stack.enter_context(TemporaryDirectory(prefix="kvcustody-bench-"))
            config = Path(folder) / "site" / "custody.yaml"
            headers["Authorization"] = f"Bearer {init_deployment(config)[0].key}"
            environment[CONFIG_ENV] = str(config)
            command.append(GOVERNED)
        process = subprocess.Popen(  # noqa: S603 - our own program
            command, env=environment, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL
        )
        stack.callback(_stop, process)
        port = listener.getsockname()[1]
        server = Server(port, process.pid, headers)
        # Nobody accepts any more once the process has ended.
        listener.close()
        _warm_up(server)
        yield server


def _warm_up(server: Server) -> None:
    load = Load(8, 1, 0.0, chat_body(1))
    try:
        asyncio.run(
            run_streams(server.port, load, server.headers, seconds=_WARM_UP_SECONDS, seed=0)
        )
    except OSError:
        raise UnavailableError("the benchmark's server ended at once") from None


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _row(
    name: str,
    load: Load,
    servers: Mapping[str, Server],
    *,
    rounds: int,
    seconds: float,
    progress: Callable[[], None],
) -> Row:
    turns: dict[str, list[Turn]] = {contender: [] for contender in servers}
    for number in range(rounds):
        # Backwards every second time: what slows down steadily favours nobody.
        order = list(servers) if number % 2 == 0 else list(servers)[::-1]
        for contender in order:
            turns[contender].append(_turn(servers[contender], load, seconds=seconds, seed=number))
            progress()
    return Row(
        name,
        len(load.body),
        {contender: Spread.of([turn.rate for turn in own]) for contender, own in turns.items()},
        {
            contender: compare(own, turns[BARE])
            for contender, own in turns.items()
            if contender != BARE
        },
    )


def _turn(server: Server, load: Load, *, seconds: float, seed: int) -> Turn:
    before = server.cpu_seconds()
    counted: list[Answer] = asyncio.run(
        run_streams(server.port, load, server.headers, seconds=seconds, seed=seed)
    )
    used = server.cpu_seconds() - before
    if not counted:
        raise UnavailableError("no answer ended within a turn; take longer turns")
    # Processor time is of the whole turn, whose beginning and end are busy, too.
    busy = seconds + load.pace * load.chunks
    rate = len(counted) / seconds
    return Turn(
        rate,
        used / (rate * busy) * _MILLI,
        percentiles([answer.first for answer in counted]),
        percentiles([answer.late for answer in counted]),
    )


def percentiles(seconds: Sequence[float]) -> dict[int, float]:
    """Median and 95th percentile, in milliseconds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {percent: ordered[round(last * percent / 100)] * _MILLI for percent in (50, 95)}


def compare(own: Sequence[Turn], bare: Sequence[Turn]) -> Comparison:
    """A contender's turns beside the bare server's of the same rounds."""
    pairs = list(zip(own, bare, strict=True))
    return Comparison(
        Spread.of([a.rate / b.rate for a, b in pairs]),
        Spread.of([a.cpu - b.cpu for a, b in pairs]),
        {p: Spread.of([a.first[p] - b.first[p] for a, b in pairs]) for p in (50, 95)},
        {p: Spread.of([a.late[p] - b.late[p] for a, b in pairs]) for p in (50, 95)},
    )
