"""Many streams at once, read as cheaply as Python can, so that the server is what is measured."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_END = b"0\r\n\r\n"
_TOKEN = b"data:"
_GOOD = b"HTTP/1.1 200"


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a server.

    Args:
        streams: how many requests are under way at once.
        chunks: chunks of an answer, on average; each is up to half more or less.
        pace: seconds before each chunk.
        body: what each request sends.

    """

    streams: int
    chunks: int
    pace: float
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """How long an answer took, in seconds.

    Args:
        ended: when, by the monotonic clock.
        first: until the first token.
        late: by how much its end came later than the pace of its chunks alone would have it.

    """

    ended: float
    first: float
    late: float


class _Connection(asyncio.Protocol):
    """One connection, kept open; asks one request after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._begun = False
        self._tail = b""
        self._sent = self._nominal = 0.0
        self._first: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what TCP gives
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Note the first token and the end."""
        answer = self._answer
        if answer is None or answer.done():
            return
        if not self._begun:
            self._begun = True
            if not data.startswith(_GOOD):
                answer.set_exception(RuntimeError(f"the server answered {data[:200]!r}"))
                return
        if self._first is None and _TOKEN in data:
            self._first = time.perf_counter()
        self._tail = (self._tail + data)[-len(_END) :]
        if self._tail == _END:
            ended = time.perf_counter()
            first = ended if self._first is None else self._first
            late = ended - self._sent - self._nominal
            answer.set_result(Answer(ended, first - self._sent, late))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is under way."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed"))

    async def ask(self, request: bytes, nominal: float = 0.0) -> Answer:
        """Send a request and wait for the end of its answer, which should take so many seconds."""
        assert self._transport is not None  # noqa: S101 - set before anybody has this object
        self._answer = asyncio.get_running_loop().create_future()
        self._begun, self._tail, self._first = False, b"", None
        self._nominal = nominal
        self._sent = time.perf_counter()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


def request_bytes(body: bytes, headers: Mapping[str, str]) -> bytes:
    """A chat request as it goes over the wire."""
    lines = {"Host": "bench", "Content-Type": "application/json", **headers}
    lines["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body


async def run_streams(
    port: int, load: Load, headers: Mapping[str, str], *, seconds: float, seed: int
) -> list[Answer]:
    """Keep a server busy for a while; every stream ends its last answer.

    The streams begin one after the other and answers differ in length, as in practice: else all
    requests would arrive in one burst, again and again.

    Args:
        port: of the server, on this machine.
        load: what is asked.
        headers: of each request.
        seconds: how long the load lasts.
        seed: decides the answers' lengths.

    """
    began = time.perf_counter()
    spread = load.pace * load.chunks

    async def stream(number: int) -> list[Answer]:
        lengths = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret
        connection = await _connect(port)
        answers = []
        try:
            await asyncio.sleep(spread * number / load.streams)
            while time.perf_counter() - began < seconds + spread:
                chunks = max(1, round(load.chunks * lengths.uniform(0.5, 1.5)))
                own = {"x-chunks": str(chunks), "x-pace": str(load.pace)}
                request = request_bytes(load.body, {**headers, **own})
                answers.append(await connection.ask(request, chunks * load.pace))
        finally:
            connection.close()
        return answers

    found = await asyncio.gather(*(stream(number) for number in range(load.streams)))
    # Only while all streams were busy.
    return [
        answer
        for answers in found
        for answer in answers
        if spread <= answer.ended - began < spread + seconds
    ]


async def run_requests(
    port: int,
    load: Load,
    headers: Mapping[str, str],
    *,
    requests: int,
    progress: Callable[[int], None],
) -> None:
    """Send a number of requests, the streams taking turns.

    Args:
        port: of the server, on this machine.
        load: what is asked.
        headers: of each request.
        requests: how many.
        progress: told the number of requests that have been answered.

    """
    request = request_bytes(load.body, {**headers, "x-chunks": str(load.chunks)})
    done = begun = 0

    async def stream() -> None:
        nonlocal done, begun
        connection = await _connect(port)
        try:
            while begun < requests:
                begun += 1
                await connection.ask(request)
                done += 1
                progress(done)
        finally:
            connection.close()

    await asyncio.gather(*(stream() for _ in range(load.streams)))


async def _connect(port: int) -> _Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(_Connection, "127.0.0.1", port)
    return connection
