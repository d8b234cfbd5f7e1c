import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import pytest

from kvcustody.demo.model import build_model
from kvcustody.errors import ConfigurationError, UnavailableError

# Not for the whole file: one test below builds a real model.
unit = pytest.mark.unit


def builder(script: str, *arguments: str) -> Sequence[str]:
    """A builder made of one Python script, which sees `kind`, `document`, `target` and `extra`."""
    prelude = (
        "import os, sys, time; from pathlib import Path;"
        "*extra, kind, document, target = sys.argv[1:]; target = Path(target);"
    )
    return (sys.executable, "-c", f"{prelude}\n{script}", *arguments)


WORKING = builder("target.mkdir(); (target / 'kind').write_text(kind)")
UNUSED = builder("sys.exit('must not run')")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kvcustody" / "models"


@unit
def test_builds_once_below_the_cache(models: Path) -> None:
    built = build_model("tiny", "a document", builder=WORKING)
    assert built.parent == models
    assert built.name.startswith("tiny-")
    assert (built / "kind").read_text() == "tiny"
    assert build_model("tiny", "a document", builder=UNUSED) == built
    assert list(models.iterdir()) == [built]


@unit
def test_cache_is_in_the_home_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in (None, "", "relative/path"):
        if ignored is None:
            monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        built = build_model("tiny", str(ignored), builder=WORKING)
        assert built.parent == tmp_path / ".cache" / "kvcustody" / "models"


@unit
def test_only_the_tiny_model_depends_on_the_document(models: Path) -> None:
    assert build_model("tiny", "a", builder=WORKING) != build_model("tiny", "b", builder=WORKING)
    real = build_model("smollm2", "a", builder=WORKING)
    assert build_model("smollm2", "b", builder=UNUSED) == real
    assert real.parent == models


@unit
def test_builder_gets_the_document_and_stays_off_the_hub(models: Path) -> None:
    script = (
        "target.mkdir();"
        "(target / 'seen').write_text(Path(document).read_text(encoding='utf-8')"
        " + os.environ['HF_HUB_OFFLINE'], encoding='utf-8')"
    )
    built = build_model("tiny", "Öffnung\n", builder=builder(script))
    assert (built / "seen").read_text(encoding="utf-8") == "Öffnung\n1"
    assert built.parent == models


@unit
def test_failure_is_one_line_and_leaves_nothing(models: Path) -> None:
    script = "target.mkdir(); (target / 'half').touch(); print('noise\\n', file=sys.stderr); 1 / 0"
    with pytest.raises(UnavailableError) as failure:
        build_model("tiny", "text", builder=builder(script))
    text = str(failure.value)
    assert text.endswith("(exit code 1): ZeroDivisionError: division by zero")
    assert "\n" not in text
    assert list(models.iterdir()) == []


@unit
def test_silent_failure_says_its_exit_code(models: Path) -> None:
    with pytest.raises(UnavailableError, match=r"\(exit code -9\): it said nothing"):
        build_model("smollm2", "text", builder=builder("os.kill(os.getpid(), 9)"))
    assert list(models.iterdir()) == []


@unit
def test_builder_that_makes_no_folder_fails(models: Path) -> None:
    with pytest.raises(UnavailableError, match="can't keep the model"):
        build_model("tiny", "text", builder=builder("pass"))
    assert list(models.iterdir()) == []


@unit
def test_builder_that_cannot_start_fails(models: Path) -> None:
    with pytest.raises(UnavailableError, match="No such file"):
        build_model("tiny", "text", builder=["/nonexistent/python"])
    assert list(models.iterdir()) == []


@unit
def test_unwritable_cache_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match="set XDG_CACHE_HOME"):
        build_model("tiny", "text", builder=UNUSED)


@unit
def test_folder_of_a_quicker_process_is_kept(models: Path) -> None:
    # The other process finishes while ours is building.
    name = build_model("tiny", "text", builder=WORKING).name
    (models / name).rename(models / "finished")
    script = "os.rename(extra[0], extra[1]); target.mkdir(); (target / 'late').touch()"
    slow = builder(script, str(models / "finished"), str(models / name))
    built = build_model("tiny", "text", builder=slow)
    assert [path.name for path in built.iterdir()] == ["kind"]
    assert list(models.iterdir()) == [built]


@unit
def test_several_at_once_see_complete_folders(models: Path) -> None:
    script = "target.mkdir(); (target / 'one').touch(); time.sleep(0.2); (target / 'two').touch()"
    slow = builder(script)

    def build(_: int) -> list[str]:
        return sorted(path.name for path in build_model("tiny", "text", builder=slow).iterdir())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(4))) == [["one", "two"]] * 4
    assert len(list(models.iterdir())) == 1


@unit
def test_document_is_long_enough_to_be_worth_offloading() -> None:
    document = (files("kvcustody.demo") / "data" / "document.txt").read_text(encoding="utf-8")
    # 2,224 tokens for SmolLM2; the server's limit is 4,096 tokens with question and answer.
    assert 8_000 < len(document) < 16_000


@pytest.mark.engine
def test_tiny_model_is_complete(models: Path) -> None:
    document = (files("kvcustody.demo") / "data" / "document.txt").read_text(encoding="utf-8")
    built = build_model("tiny", document)
    assert built.parent == models
    names = {path.name for path in built.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    config = json.loads((built / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == 1024
