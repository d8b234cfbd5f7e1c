"""One question to the server, timed: what an application would do."""

import json
import time
from dataclasses import dataclass

import httpx

_TIMEOUT_SECONDS = 300.0
_ANSWER_TOKENS = 24


@dataclass(frozen=True)
class Answer:
    """What came back.

    Args:
        text: the model's greedy answer.
        first_token_seconds: time to the first token.
        prompt_tokens: length of the prompt.
        cached_tokens: how many of them were reused instead of computed.

    """

    text: str
    first_token_seconds: float
    prompt_tokens: int
    cached_tokens: int


def ask(url: str, api_key: str, prompt: str) -> Answer:
    """Ask a question, streaming.

    Args:
        url: the server.
        api_key: whose question it is.
        prompt: the user's message.

    Raises:
        httpx.HTTPError: the server refused or failed.

    """
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": _ANSWER_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first: float | None = None
    pieces: list[str] = []
    usage: dict[str, dict[str, int] | int | None] = {}
    with httpx.stream(
        "POST",
        f"{url}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {api_key}"},
        timeout=_TIMEOUT_SECONDS,
    ) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            payload = line.removeprefix("data: ")
            if payload in {line, "[DONE]"}:
                continue
            chunk = json.loads(payload)
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                text = choice["delta"].get("content") or ""
                if text and first is None:
                    first = time.perf_counter() - started
                pieces.append(text)
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens", 0) if isinstance(details, dict) else 0
    prompt_tokens = usage.get("prompt_tokens")
    return Answer(
        "".join(pieces),
        first if first is not None else time.perf_counter() - started,
        prompt_tokens if isinstance(prompt_tokens, int) else 0,
        cached or 0,
    )
