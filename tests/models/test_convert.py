"""Conversion; where optimum-intel is installed, of a tiny random-weight model of each family in the catalogue."""

import importlib.util
import shlex
import shutil
from pathlib import Path

import pytest

from specdemo.engines.base import BRIEF
from specdemo.errors import ConversionError
from specdemo.models import download as module
from specdemo.models.download import convert, converted_folder
from specdemo.models.pairs import BUNDLED
from specdemo.records import Request
from specdemo.settings import GenerationSettings, RuntimeSettings
from tests.support.folders import pair_from_folders

INSTALLED = importlib.util.find_spec("optimum") is not None
needs_optimum = pytest.mark.skipif(not INSTALLED, reason="optimum-intel is not installed; it converts models")
FAMILIES = ("codegen", "gpt2", "gpt_neox", "llama", "opt", "phi3", "qwen3")


@pytest.mark.skipif(INSTALLED, reason="optimum-intel is installed")
def test_without_optimum_the_message_has_the_commands_that_install_it(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="Conversion needs optimum-intel") as raised:
        convert("facebook/opt-125m", "int8", tmp_path / "out")
    message = str(raised.value)
    for command in (
        "train-requirements.txt --index-url https://download.pytorch.org/whl/cpu",
        "-m pip install --no-deps optimum-intel==2.2.0",
    ):
        assert command in message
    requirements = message.rpartition("-r ")[2].strip()
    assert Path(requirements).is_file()
    assert not (tmp_path / "out").exists()


def test_those_commands_hold_where_a_path_has_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/my python/bin/python")
    assert shlex.split(module.how_to_install())[:4] == ["/my python/bin/python", "-m", "pip", "install"]


def test_where_a_converted_model_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert converted_folder("facebook/opt-125m", "int8", tmp_path) == tmp_path / "opt-125m-int8-ov"
    (tmp_path / "mine").mkdir()
    assert converted_folder(str(tmp_path / "mine"), "int4", tmp_path).name == "mine-int4-ov"
    monkeypatch.setenv("SPECDEMO_MODELS", str(tmp_path / "models"))
    assert converted_folder("gpt2", "fp16") == tmp_path / "models" / "gpt2-fp16-ov"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConversionError, match=r"'.*out' already exists; use it, delete it, or choose another"):
        convert("facebook/opt-125m", "int8", tmp_path / "out")


@pytest.fixture
def optimum(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """In place of optimum-intel: copies the bundled draft, and adds a file that nobody needs."""
    called: list[tuple[str, ...]] = []

    def run(*arguments: str, stop: object) -> bool:
        called.append(arguments)
        shutil.copytree(BUNDLED / "draft", arguments[-1], dirs_exist_ok=True)
        (Path(arguments[-1]) / "tokenizer.json").write_text("{}")
        return True

    monkeypatch.setattr(module, "check_installed", lambda: None)
    monkeypatch.setattr(module, "optimum_cli", run)
    return called


def test_only_what_is_needed_moves_to_its_place(tmp_path: Path, optimum: list[tuple[str, ...]]) -> None:
    model = convert("org/tiny", "int4", tmp_path / "deep" / "out", trust_remote_code=True)
    assert model is not None
    assert model.path == tmp_path / "deep" / "out"
    assert {file.name for file in model.path.iterdir()} == {file.name for file in (BUNDLED / "draft").iterdir()}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert "--weight-format int4 --trust-remote-code" in " ".join(optimum[0])


def test_a_failed_conversion_leaves_nothing(
    tmp_path: Path, optimum: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: str, stop: object) -> bool:
        shutil.copytree(BUNDLED / "draft", arguments[-1], dirs_exist_ok=True)
        raise ConversionError("It broke; mend it.")

    monkeypatch.setattr(module, "optimum_cli", fail)
    with pytest.raises(ConversionError, match="It broke"):
        convert("org/tiny", "int8", tmp_path / "out")
    monkeypatch.setattr(module, "optimum_cli", lambda *arguments, stop: False)
    assert convert("org/tiny", "int8", tmp_path / "out") is None
    assert list(tmp_path.iterdir()) == []


def test_what_the_exporter_says_becomes_one_sentence() -> None:
    explained = module.explained
    assert "--trust-remote-code" in explained("a/b", "ValueError: set `trust_remote_code=True`")
    assert "encoder–decoder" in explained("a/b", "ValueError: … only supports the tasks text2text-generation for t5")
    assert "accept its licence" in explained("a/b", "Cannot access gated repo for url …")
    assert explained("a/b", "one\nOSError: two\n").startswith(
        "optimum-intel could not convert a/b (its last message: OSError: two)"
    )


@needs_optimum
@pytest.mark.parametrize("weights", ["int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_converted_and_runs(family: str, weights: str, tmp_path: Path) -> None:
    from specdemo.engines.genai import GenAIEngine
    from specdemo.measure.race import run_alone
    from tests.fixtures import make

    source = make.save(tmp_path / "source", family, make.FAMILIES[family], make.VOCABULARY)
    model = convert(str(source), weights, tmp_path / family)
    assert model is not None
    assert (model.architecture, model.weights) == (family, weights)
    assert model.path is not None
    engine = GenAIEngine(
        pair_from_folders(model.path, model.path, RuntimeSettings(precision="f32")), thoroughness=BRIEF
    )
    settings = GenerationSettings(ignore_eos=True, max_new_tokens=12)
    assert len(run_alone(engine.decoder(Request.of("Does it help", settings))).token_ids) == 12
    engine.close()


@needs_optimum
@pytest.mark.parametrize("weights", ["int4", "fp16"])
def test_the_other_precisions(weights: str, tmp_path: Path) -> None:
    from tests.fixtures import make

    source = make.save(tmp_path / "source", "llama", make.FAMILIES["llama"], make.VOCABULARY)
    model = convert(str(source), weights, tmp_path / "out")
    assert model is not None
    assert model.weights in {"int4": ("int4", "int8"), "fp16": ("f16",)}[weights]


@needs_optimum
def test_t5_is_refused_with_the_reason(tmp_path: Path) -> None:
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    from tests.fixtures import make

    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    config = T5Config(vocab_size=make.VOCABULARY, decoder_start_token_id=0, **sizes)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    make.tokenizer(make.VOCABULARY).save_pretrained(tmp_path / "t5")
    with pytest.raises(ConversionError, match="encoder–decoder"):
        convert(str(tmp_path / "t5"), "int8", tmp_path / "out")
    assert not (tmp_path / "out").exists()
