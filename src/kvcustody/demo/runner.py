"""The guided demo: the main job, with a real model, a real server and real requests.

Three server runs, because KV that outlives a restart is the point:
1. acme asks about a long document: cold; its blocks are sealed to the tier.
2. acme asks again: loaded from the tier. globex and initech ask the same: nothing of acme's.
3. after one byte of a stored block was changed: recomputed, and the audit names the block.
"""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from kvcustody.audit import read_events, verify_directory
from kvcustody.config import Settings, load_settings
from kvcustody.demo.client import Answer, ask
from kvcustody.demo.report import Check, DemoReport
from kvcustody.demo.search import read_host_memory, search_plaintext
from kvcustody.demo.server import Server, processes_of, running_server
from kvcustody.deployment import init_deployment
from kvcustody.errors import ConfigurationError
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import KeyStore
from kvcustody.stores.filesystem import SUFFIX
from kvcustody.wiring import audit_signing_key, open_keys

DENIED_TENANT = "initech"
_MARKER = ".kvcustody-demo"
_QUESTION = "\n\nIn one short sentence: what is the document above?"
_WARM_UP = "Say hello."

Announce = Callable[[str], None]
"""Told what is being done now."""


@dataclass(frozen=True)
class DemoPlan:
    """What the demo runs with.

    Args:
        directory: everything is written below it; an earlier demo there is replaced.
        model: the model's folder.
        document: the text to ask about.
        expect_speed: whether warm must be four times as fast as cold (a tiny model is too fast).

    """

    directory: Path
    model: Path
    document: str
    expect_speed: bool


def run_demo(plan: DemoPlan, announce: Announce) -> DemoReport:
    """Run the demo and report what it showed; leaves no process and no shared memory behind.

    Raises:
        ConfigurationError: the folder holds something other than an earlier demo.
        UnavailableError: the server did not come up.

    """
    _prepare_directory(plan.directory)
    with _terminated_like_interrupted():
        return _Demo(plan, announce).run()


@dataclass
class _Demo:
    """One run."""

    plan: DemoPlan
    announce: Announce
    report: DemoReport = field(default_factory=DemoReport)
    keys: dict[str, str] = field(default_factory=dict)

    def run(self) -> DemoReport:
        self.announce("Writing custody.yaml, policies and keys")
        self.settings = self._configure()
        self.log = self.plan.directory / "server.log"
        self.prompt = self.plan.document + _QUESTION
        self._first_run()
        self._second_run()
        self._third_run()
        self._verify_audit()
        self.report.paths = {
            "config": self.settings_file,
            "tier": self.settings.tiers[0].path,
            "audit": self.settings.audit.path,
            "server log": self.log,
        }
        return self.report

    def _configure(self) -> Settings:
        """A deployment as `kvcustody init` writes it, and a tenant that no rule allows anything."""
        config = self.settings_file
        for key in init_deployment(config):
            self.keys[key.record.principal.tenant] = key.key
        text = config.read_text(encoding="utf-8")
        tenants = "tenants:\n"
        config.write_text(
            text.replace(tenants, f"{tenants}  {DENIED_TENANT}: {{scope: tenant}}\n"),
            encoding="utf-8",
        )
        settings = load_settings(config)
        principal = Principal(DENIED_TENANT, "default")
        with closing(open_keys(settings)) as keys:
            self.keys[DENIED_TENANT] = KeyStore(keys.registry).mint(principal, expires=None).key
        return settings

    def _first_run(self) -> None:
        with self._server("Starting vLLM under custody") as server:
            self._ask(server, "acme, cold", "acme")
        self.acme_blocks = self._blocks()
        self._check(
            "acme's KV cache lies on the tier, sealed",
            bool(self.acme_blocks),
            f"{len(self.acme_blocks)} blocks, modes "
            + ", ".join(sorted({f"{p.stat().st_mode & 0o777:04o}" for p in self.acme_blocks})),
        )

    def _second_run(self) -> None:
        cold = self.report.answers["acme, cold"]
        with self._server("Restarting vLLM: its memory is empty now") as server:
            warm = self._ask(server, "acme, after restart", "acme")
            globex = self._ask(server, "globex, same document", "globex")
            blocks = len(self._blocks())
            denied = self._ask(server, "initech, denied by policy", DENIED_TENANT)
            self.announce("Searching the tier for plaintext")
            self._search_plaintext(server)
        full_chunks = warm.prompt_tokens // 128 * 128
        self._check(
            "after a restart, acme's KV comes from the sealed tier",
            warm.cached_tokens >= full_chunks - 128 > 0,
            f"{warm.cached_tokens} of {warm.prompt_tokens} tokens reused",
        )
        if self.plan.expect_speed:
            ratio = warm.first_token_seconds / cold.first_token_seconds
            self._check("warm TTFT is at most 1/4 of cold", ratio <= 1 / 4, f"{ratio:.3f}")
        self._check_same_answer("after restart", warm)
        self._check(
            "globex reuses nothing of acme's",
            globex.cached_tokens == 0,
            f"{globex.cached_tokens} tokens reused",
        )
        self._check_same_answer("globex", globex)
        self._check(
            "the denied tenant is served, without offloading",
            denied.cached_tokens == 0 and len(self._blocks()) == blocks,
            f"{denied.cached_tokens} tokens reused, {len(self._blocks()) - blocks} blocks stored",
        )
        self._check_same_answer("denied", denied)
        refusals = self._events("request.ungoverned", tenant=DENIED_TENANT)
        self._check(
            "the audit says why",
            any(event["reason"] == "policy-denied" for event in refusals),
            ", ".join(sorted({str(event["reason"]) for event in refusals})) or "no event",
        )

    def _third_run(self) -> None:
        victim = self.acme_blocks[len(self.acme_blocks) // 2]
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
        with self._server("Restarting vLLM: one byte of a stored block was flipped") as server:
            tampered = self._ask(server, "acme, damaged block", "acme")
        warm = self.report.answers["acme, after restart"]
        self._check(
            "a damaged block is recomputed, not used",
            tampered.cached_tokens < warm.cached_tokens,
            f"{tampered.cached_tokens} tokens reused, {warm.cached_tokens} before",
        )
        self._check_same_answer("damaged block", tampered)
        rejections = self._events("block.rejected", tenant="acme")
        self._check(
            "the audit names the block and the failed check",
            any(f"{event['block']}{SUFFIX}" == victim.name for event in rejections),
            ", ".join(f"{str(event['block'])[:12]}…: {event['check']}" for event in rejections)
            or "no event",
        )

    def _search_plaintext(self, server: Server) -> None:
        memory = read_host_memory(process.pid for process in processes_of(server))
        document_words = self.plan.document.split()
        phrase = " ".join(document_words[:4])
        words = [*self.keys, "default", self.plan.model.name, phrase]
        found = search_plaintext(self.settings.tiers[0].path, memory, words)
        self._check(
            "no plaintext on the tier: neither KV bytes, names nor text",
            not found.findings and any(memory) and found.files > 0,
            "; ".join(found.findings)
            or f"{found.files} files, {found.searched_bytes / 2**20:.0f} MiB, against "
            f"{found.host_bytes / 2**20:.0f} MiB of host memory",
        )

    def _verify_audit(self) -> None:
        self.announce("Verifying the audit trail")
        with closing(open_keys(self.settings)) as keys:
            public_key = audit_signing_key(keys.keyring).public_key()
        intact = verify_directory(self.settings.audit.path, public_key)
        self._check("the audit trail verifies", intact.ok, f"{intact.records} records")
        copy = self.plan.directory / "audit-changed"
        shutil.copytree(self.settings.audit.path, copy)
        changed = _change_a_record(copy)
        report = verify_directory(copy, public_key)
        self._check(
            "a changed record is found",
            any(found.line == changed for found in report.findings),
            ", ".join(f"{found.kind} in line {found.line}" for found in report.findings),
        )

    @contextmanager
    def _server(self, text: str) -> Iterator[Server]:
        self.announce(text)
        with running_server(self.plan.model, self.settings_file, self.log) as server:
            # The first request pays for one-time work; it is too short to be cached.
            ask(server.url, self.keys["acme"], _WARM_UP)
            yield server

    @property
    def settings_file(self) -> Path:
        return self.plan.directory / "custody.yaml"

    def _ask(self, server: Server, name: str, tenant: str) -> Answer:
        self.announce(f"Asking about the document: {name}")
        answer = ask(server.url, self.keys[tenant], self.prompt)
        self.report.answers[name] = answer
        return answer

    def _blocks(self) -> list[Path]:
        return sorted(self.settings.tiers[0].path.rglob(f"*{SUFFIX}"))

    def _events(self, name: str, *, tenant: str) -> list[dict[str, Any]]:
        return [
            event
            for event in read_events(self.settings.audit.path)
            if event["event"] == name and event["tenant"] == tenant
        ]

    def _check(self, name: str, ok: bool, detail: str) -> None:
        self.report.checks.append(Check(name, bool(ok), detail))

    def _check_same_answer(self, which: str, answer: Answer) -> None:
        cold = self.report.answers["acme, cold"]
        self._check(f"same answer: {which}", answer.text == cold.text, repr(answer.text[:48]))


def _prepare_directory(directory: Path) -> None:
    marker = directory / _MARKER
    if directory.exists() and any(directory.iterdir()):
        if not marker.exists():
            raise ConfigurationError("not empty and not an earlier demo; choose another", directory)
        shutil.rmtree(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as error:
        raise ConfigurationError(f"can't be written: {error.strerror}", directory) from None


def _change_a_record(audit: Path) -> int:
    """Change the tenant of an admitted request; the 1-based line that was changed."""
    for segment in sorted(audit.glob("engine-*.jsonl")):
        lines = segment.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            record = json.loads(line)
            if record["event"] == "request.admitted" and record["tenant"] == "acme":
                lines[number - 1] = line.replace('"acme"', '"globex"')
                segment.write_text("\n".join(lines) + "\n", encoding="utf-8")
                return number
    return 0


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that clean-up runs."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
