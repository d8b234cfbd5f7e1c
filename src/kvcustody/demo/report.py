"""What the demo showed: questions with their times, and checks that passed or failed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvcustody.demo.client import Answer


@dataclass(frozen=True)
class Check:
    """A promise, and whether it was kept.

    Args:
        name: the promise.
        ok: whether it was kept.
        detail: what was seen.

    """

    name: str
    ok: bool
    detail: str


@dataclass
class DemoReport:
    """All answers, checks and places of a run."""

    answers: dict[str, Answer] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    paths: dict[str, Path] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all promises were kept."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The report for scripts."""
        return {
            "ok": self.ok,
            "questions": [
                {
                    "name": name,
                    "ttft_seconds": round(answer.first_token_seconds, 3),
                    "prompt_tokens": answer.prompt_tokens,
                    "cached_tokens": answer.cached_tokens,
                }
                for name, answer in self.answers.items()
            ],
            "checks": [
                {"name": check.name, "ok": check.ok, "detail": check.detail}
                for check in self.checks
            ],
            "paths": {name: str(path) for name, path in self.paths.items()},
        }

    def print(self, console: Console) -> None:
        """The report for people."""
        questions = Table("question", "TTFT", "prompt tokens", "reused", title="Questions")
        for name, answer in self.answers.items():
            questions.add_row(
                name,
                f"{answer.first_token_seconds:.2f} s",
                str(answer.prompt_tokens),
                str(answer.cached_tokens),
            )
        checks = Table("", "check", "seen", title="Checks")
        for check in self.checks:
            mark = "[green]passed[/]" if check.ok else "[red]FAILED[/]"
            checks.add_row(mark, check.name, check.detail)
        console.print()
        console.print(questions)
        console.print(checks)
        passed = sum(check.ok for check in self.checks)
        console.print(f"{passed} of {len(self.checks)} checks passed. Look at:")
        for name, path in self.paths.items():
            console.print(f"  {name:<10} {path}", soft_wrap=True, highlight=False)
