"""A real server under custody, and its tenants: what the hostile tests attack."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from kvcustody.audit import read_events
from kvcustody.config import Settings, load_settings
from kvcustody.demo.model import build_model
from kvcustody.demo.server import Server, running_server
from kvcustody.deployment import init_deployment
from kvcustody.gateway.services import GatewayServices
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import KeyStore
from kvcustody.wiring import build_gateway, open_keys

BLOCK = 128  # tokens; what vLLM's CPU platform uses
CHAT = "/v1/chat/completions"
# Two blocks and more, of the tiny model's tokens.
_PROMPT_CHARACTERS = 1_500

# Token-in-token-out is on, and vLLM keeps responses.
_OPTIONS = ("--enable-scale-out",)
_ENVIRONMENT = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}

_TENANTS = """tenants:
  clinic: {scope: subject, act_for_subjects: [bot]}
  lab: {scope: workload}
"""
_SHARING = "sharing: [{group: manuals, tenants: [acme, globex, clinic]}]\nauthorization:"
_PRINCIPALS = {
    "acme, other key": Principal("acme", "default"),
    "acme, other workload": Principal("acme", "mail"),
    "clinic": Principal("clinic", "bot"),
    "lab, chat": Principal("lab", "chat"),
    "lab, mail": Principal("lab", "mail"),
}
# The tenant that the policy keeps out of the group that custody.yaml has it in.
_POLICY = """g, clinic, offloaders, local
g, lab, offloaders, local
p, clinic, local, manuals, share, deny
"""


@dataclass
class Served:
    """A running deployment.

    Args:
        server: the server.
        settings: its custody.yaml.
        services: what its gateway works with.
        keys: API keys, by whose they are: a tenant of `kvcustody init`, or of `_PRINCIPALS`.
        document: what prompts are cut from.

    """

    server: Server
    settings: Settings
    services: GatewayServices = field(repr=False)
    keys: Mapping[str, str] = field(repr=False)
    document: str = field(repr=False)
    _prompts: int = 0

    def prompt(self, characters: int = _PROMPT_CHARACTERS) -> str:
        """A prompt that begins as no other does, so that nothing of it is cached."""
        assert characters < len(self.document)
        self._prompts += 1
        start = 97 * self._prompts % (len(self.document) - characters)
        return f"{self._prompts} {self.document[start : start + characters]}"

    def bearer(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[who]}"}

    def post(
        self, path: str, who: str, fields: Mapping[str, Any], **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(
            self.server.url + path, json=fields, headers=self.bearer(who) | named, timeout=120
        )

    def get(self, path: str, who: str) -> httpx.Response:
        return httpx.get(self.server.url + path, headers=self.bearer(who), timeout=120)

    def chat(self, who: str, prompt: str, **fields: Any) -> dict[str, Any]:
        """The answer to a chat request that succeeds."""
        answer = self.post(CHAT, who, chat_fields(prompt) | fields)
        assert answer.status_code == httpx.codes.OK, answer.text
        found = answer.json()
        assert isinstance(found, dict)
        return found

    def hits(self) -> int:
        """Tokens that the engine has found in any cache since its start, for anyone.

        It counts what an answer does not tell: that of endpoints without usage details, too.
        """
        metrics = httpx.get(f"{self.server.url}/metrics", timeout=30).text
        return sum(
            int(float(line.rsplit(" ", 1)[1]))
            for line in metrics.splitlines()
            if line.startswith(
                ("vllm:prefix_cache_hits_total{", "vllm:external_prefix_cache_hits_total{")
            )
        )

    def events(self, name: str) -> list[dict[str, Any]]:
        return [e for e in read_events(self.settings.audit.path) if e["event"] == name]


def chat_fields(prompt: str) -> dict[str, Any]:
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 4,
        "temperature": 0,
    }


def cached_tokens(answer: Mapping[str, Any]) -> int:
    """What a chat or completion answer says was reused."""
    return (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0


def text_of(answer: Mapping[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def full_blocks(answer: Mapping[str, Any]) -> int:
    """Tokens in whole blocks before the last token, which is always computed."""
    return int((answer["usage"]["prompt_tokens"] - 1) // BLOCK * BLOCK)


@contextmanager
def served_deployment(directory: Path) -> Iterator[Served]:
    """Serve the tiny model to some tenants until the block ends."""
    config = directory / "custody.yaml"
    keys = {key.record.principal.tenant: key.key for key in init_deployment(config)}
    _replace(config, "tenants:\n", _TENANTS)
    _replace(config, "authorization:", _SHARING)
    _replace(config, "bytes: 1GiB", "bytes: 64MiB")
    policy = directory / "policies" / "policy.csv"
    policy.write_text(policy.read_text(encoding="utf-8") + _POLICY, encoding="utf-8")
    settings = load_settings(config)
    with closing(open_keys(settings)) as opened:
        for who, principal in _PRINCIPALS.items():
            keys[who] = KeyStore(opened.registry).mint(principal, expires=None).key
    document = (files("kvcustody.demo") / "data" / "document.txt").read_text(encoding="utf-8")
    log = directory / "server.log"
    model = build_model("tiny", document)
    with (
        mock.patch.dict(os.environ, _ENVIRONMENT),
        closing(build_gateway(settings)) as services,
        running_server(model, config, log, options=_OPTIONS) as server,
    ):
        yield Served(server, settings, services, keys, document)


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
