import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdemo.cli import main
from specdemo.models.catalogue import BUNDLED, catalogue
from specdemo.settings import WeightsForm
from tests.support import gguf_files
from tests.support.folders import FIXTURES
from tests.support.hub import Hub, hub_of

FORMS: tuple[WeightsForm, ...] = ("exact", "int4", "int8")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    draft = "OpenVINO/Llama-3.1-8B-Instruct-FastDraft-150M-int8-ov"
    with hub_of({draft: FIXTURES / "llama" / "draft"}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def run(*arguments: str | Path) -> int:
    return main(["models", *map(str, arguments)])


def test_list_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    models = tmp_path / "models"
    (models / "empty").mkdir(parents=True)
    shutil.copytree(BUNDLED / "draft", models / "a\x1b[31m[red]b\u202e")
    (models / "bad\n\x1b]0;title\x07.gguf").write_bytes(b"GGUF")
    assert run("list", "--models-dir", models) == 0
    text = capsys.readouterr().out
    for words in ("Catalogue", "not supported", "story-pair/draft", "empty: The folder 'empty' contains"):
        assert words in text
    assert f"Your own models: {models}" in text
    for name in (entry.name for entry in catalogue()):
        assert any(line.split()[:1] == [name] and len(line) <= 80 for line in text.splitlines()), name
    assert "\\x1b[31m[red]b\\u202e" in text.replace("\n", ""), "names are shown, not obeyed"
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


@pytest.mark.parametrize(
    ("pair", "target", "draft"),
    [
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
        ("llama-2-13b", "meta-llama/Llama-2-13b-hf", "OpenVINO/TinyLlama-1.1B-Chat-v1.0-int8-ov"),
    ],
)
def test_a_gated_pair_is_listed_with_what_it_needs(
    pair: str, target: str, draft: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("list") == 0
    assert any(line.split()[:1] == [pair] and "to convert" in line for line in capsys.readouterr().out.splitlines())
    assert run("info", pair) == 0
    text = capsys.readouterr().out
    assert f"optimum-cli export openvino --model {target} --weight-format int4" in text
    assert "accept its licence" in text
    assert draft in text


def test_info_of_a_model_and_check_of_a_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", FIXTURES / "qwen3" / "target") == 0
    assert "512 tokens" in capsys.readouterr().out
    assert run("check", "story-pair/target", "story-pair/draft") == 0
    text = capsys.readouterr().out
    assert "Tokenizers: identical." in text
    assert "genai engine: can run this pair" in text


def test_download_of_a_model_that_must_be_exported(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("download", "llama-3.1-8b-fastdraft") == 1
    error = capsys.readouterr().err
    assert "optimum-cli export openvino --model meta-llama/Llama-3.1-8B-Instruct --weight-format int4" in error
    assert "openvino_model.bin" in hub.served, "the draft is fetched all the same"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("download", "dolly"), 2, "The catalogue has no 'dolly'; choose dolly-v2-"),
        (("download", "flan-t5-xl"), 2, "encoder and a decoder"),
        (("download", "org/nothing"), 1, "does not show you org/nothing"),
        (("info", "nothing"), 2, "Unknown model 'nothing'; choose one of "),
        (("info", "/nowhere"), 1, "There is no folder '/nowhere'; check the path."),
        (("list", "--models-dir", "/nowhere"), 1, "There is no directory '/nowhere'"),
    ],
)
def test_errors_are_one_sentence_and_an_exit_code(
    arguments: tuple[str, ...], code: int, message: str, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == code
    assert message in capsys.readouterr().err


@pytest.mark.openvino
def test_conversions_are_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf")
    folders = [gguf_files.converted(file, form) for form in FORMS]
    assert run("stored") == 0
    listed = capsys.readouterr().out
    assert all(f"tiny.gguf ({form})" in listed for form in FORMS)
    assert run("stored", "--remove", "tiny.gguf (int8)") == 0
    assert [folder.exists() for folder in folders] == [True, True, False]
    assert "are free again" in capsys.readouterr().out
    assert run("stored", "--remove", "tiny.gguf (int8)") == 2
    assert "'specdemo models stored' lists the names" in capsys.readouterr().err
    assert file.exists()
