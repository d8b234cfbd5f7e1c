"""Imports point one way, and only the adapter knows vLLM."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

SOURCE = Path(__file__).resolve().parents[1] / "src"
MOST_LINES = 400

# From the bottom up: a package imports from layers below its own, and from no neighbour.
LAYERS: list[set[str]] = [
    {"errors", "operating_user", "private_folders", "workers"},
    {"config", "registry"},
    {"identity"},
    {"policy", "namespace"},
    {"sealing"},
    {"stores", "audit"},
    {"admission"},
    {"tiers"},
    {"wiring"},
    {"gateway", "vllm", "deployment", "offline"},
    {"demo", "bench"},
    {"cli"},
]

EXCEPTIONS = {
    # What the gateway is made of, and nothing of the gateway itself: wiring builds it.
    ("kvcustody.wiring.gateway", "kvcustody.gateway.response_ids"),
    ("kvcustody.wiring.gateway", "kvcustody.gateway.services"),
}

# Builds the model of the demonstration; it runs in a process of its own.
MODEL_BUILDER = "kvcustody.demo.build_model"


@cache
def modules() -> dict[str, Path]:
    """All modules of the package, by name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Modules that a module imports, wherever in its text."""
    return frozenset(_imported(ast.parse(modules()[module].read_text(encoding="utf-8"))))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module
            # `from kvcustody.vllm import options` may name a module, too.
            yield from (
                name for alias in node.names if (name := f"{node.module}.{alias.name}") in modules()
            )


def package(module: str) -> str:
    """The part of the package that a module belongs to, such as `sealing`."""
    return module.split(".")[1] if "." in module else ""


def layer(module: str) -> int:
    return next(height for height, layer in enumerate(LAYERS) if package(module) in layer)


def outside(module: str) -> set[str]:
    """Top-level packages that a module imports."""
    return {name.split(".", maxsplit=1)[0] for name in imports(module)}


def test_every_part_of_the_package_has_its_layer() -> None:
    parts = {package(module) for module in modules()} - {""}
    assert parts == set().union(*LAYERS)


def test_imports_point_downwards() -> None:
    upwards = {
        (module, imported)
        for module in modules()
        for imported in imports(module)
        if imported.startswith("kvcustody.")
        and package(imported) != package(module)
        and layer(imported) >= layer(module)
    }
    assert upwards - EXCEPTIONS == set()


def test_every_exception_is_still_needed() -> None:
    assert {pair for pair in EXCEPTIONS if pair[1] not in imports(pair[0])} == set()


def test_the_package_itself_imports_nothing() -> None:
    assert imports("kvcustody") == frozenset()


def test_only_the_adapter_imports_vllm() -> None:
    importing = {module for module in modules() if "vllm" in outside(module)}
    assert {package(module) for module in importing} == {"vllm"}


def test_only_the_adapter_and_the_model_builder_import_torch() -> None:
    importing = {module for module in modules() if "torch" in outside(module)}
    assert {module for module in importing if package(module) != "vllm"} <= {MODEL_BUILDER}


def test_nothing_but_the_adapter_imports_the_adapter() -> None:
    importing = {
        module
        for module in modules()
        if package(module) != "vllm"
        and any(imported.startswith("kvcustody.vllm") for imported in imports(module))
    }
    assert importing == set()


def test_stores_know_nothing_of_tenants_keys_or_policy() -> None:
    known = {
        package(imported)
        for module in modules()
        if package(module) == "stores"
        for imported in imports(module)
        if imported.startswith("kvcustody.")
    }
    assert known.isdisjoint({"identity", "policy", "sealing", "registry", "config", "audit"})


def _loaded_by(statement: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    finished = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(finished.stdout.split())


def test_importing_the_package_loads_neither_vllm_nor_torch() -> None:
    loaded = _loaded_by("import kvcustody")
    assert "kvcustody" in loaded
    assert loaded.isdisjoint({"vllm", "torch"})


def test_the_core_is_usable_without_vllm_and_torch() -> None:
    core = [m for m in modules() if package(m) != "vllm" and m != MODEL_BUILDER]
    loaded = _loaded_by("import " + ", ".join(core))
    assert {"cryptography", "casbin", "kvcustody"} <= loaded
    assert loaded.isdisjoint({"vllm", "torch", "transformers"})


def test_no_file_is_too_long_to_read() -> None:
    lengths = {
        module: len(path.read_text(encoding="utf-8").splitlines())
        for module, path in modules().items()
    }
    assert {module for module, lines in lengths.items() if lines > MOST_LINES} == set()


def test_no_module_is_named_after_nothing() -> None:
    vague = {"util", "utils", "helper", "helpers", "misc"}
    assert {module for module in modules() if vague.intersection(module.split("."))} == set()


def test_every_module_says_what_it_is_for() -> None:
    silent = {
        module
        for module, path in modules().items()
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert silent == set()
