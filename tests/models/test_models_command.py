"""`models` in a terminal, and models by name in `compare`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdemo.cli import main
from specdemo.models.catalogue import catalogue
from tests.support.hub import Hub
from tests.support.hurried import load_briefly

FIXTURES = Path(__file__).parents[1] / "fixtures"
DOLLY = {
    "OpenVINO/dolly-v2-7b-int8-ov": FIXTURES / "llama" / "target",
    "OpenVINO/dolly-v2-3b-int4-ov": FIXTURES / "llama" / "draft",
}


@pytest.fixture(autouse=True)
def nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("SPECDEMO_MODELS", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(DOLLY) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def run(*arguments: str | Path) -> int:
    return main(["models", *map(str, arguments)])


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--json", "-") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["catalogue"][1]["name"] == "story-pair"
    assert [entry["name"] for entry in data["catalogue"] if entry["here"]] == ["story-pair"]
    bundled = ["story-pair/target", "story-pair/draft", "smollm2-draft", "smollm2-head"]
    assert [model["name"] for model in data["models"]] == bundled


def test_list_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "models" / "empty").mkdir(parents=True)
    assert run("list", "--models-dir", tmp_path / "models") == 0
    text = capsys.readouterr().out
    for words in (
        "Catalogue",
        "qwen3-8b-eagle3",
        "not supported",
        "story-pair/draft",
        "empty: The folder 'empty' contains",
        f"Your own models: {tmp_path / 'models'}",
    ):
        assert words in text
    for name in (entry.name for entry in catalogue()):
        assert any(line.split()[:1] == [name] and len(line) <= 80 for line in text.splitlines()), name


def test_info_of_a_pair_and_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", "llama-3.1-8b") == 0
    text = capsys.readouterr().out
    assert "optimum-cli export openvino --model meta-llama/Llama-3.1-8B-Instruct --weight-format int4" in text
    assert "accept its licence" in text
    assert run("info", FIXTURES / "qwen3" / "target") == 0
    assert "512 tokens" in capsys.readouterr().out
    assert run("info", "story-pair/target", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["parameters"] > 12e6


def test_check_a_good_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "story-pair/target", "story-pair/draft") == 0
    text = capsys.readouterr().out
    assert "Tokenizers: identical." in text
    assert "genai engine: can run this pair" in text


def test_check_what_no_engine_can_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = Path(shutil.copytree(FIXTURES / "llama" / "draft", tmp_path / "fast"))
    for file in fast.glob("openvino_detokenizer.*"):
        file.unlink()
    assert run("check", "story-pair/target", fast, "--json", tmp_path / "report.json") == 1
    assert "choose a draft of the target's family" in capsys.readouterr().err
    assert json.loads((tmp_path / "report.json").read_text())["fits"] is False


@pytest.mark.openvino
def test_download_a_pair_and_use_it(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("download", "dolly-v2-7b") == 0
    assert (
        "OpenVINO/dolly-v2-7b-int8-ov is on this machine; name it with --target or --draft."
        in capsys.readouterr().out
    )
    assert run("list", "--json", "-") == 0
    data = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in data["catalogue"] if entry["here"]] == ["story-pair", "dolly-v2-7b"]
    assert run("check", *DOLLY) == 0
    capsys.readouterr()
    options = ["--max-new-tokens", "8", "--precision", "f32", "--json", "-"]
    target, draft = DOLLY
    assert main(["compare", "Once", "--target", target, "--draft", draft, *options], load=load_briefly) == 0
    assert json.loads(capsys.readouterr().out)["pair"]["target"]["name"] == target


def test_download_what_is_to_be_converted(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("download", "dolly-v2-12b") == 1
    error = capsys.readouterr().err
    assert "optimum-cli export openvino --model databricks/dolly-v2-12b --weight-format int8" in error
    assert "openvino_model.bin" in hub.served, "the draft is fetched all the same"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("download", "dolly"), 2, "The catalogue has no 'dolly'; choose dolly-v2-"),
        (("download", "qwen3.5-2b-mtp"), 2, "none is published"),
        (("download", "org/nothing"), 1, "does not show you org/nothing"),
        (("info", "nothing"), 2, "Unknown model 'nothing'; choose one of "),
        (("info", "/nowhere"), 1, "There is no folder '/nowhere'; check the path."),
        (("check", "story-pair/target", "--cache-size", "0"), 2, "Cache size (cache_size) should be greater"),
        (("list", "--models-dir", "/nowhere"), 1, "There is no directory '/nowhere'"),
    ],
)
def test_errors_are_one_sentence_and_an_exit_code(
    arguments: tuple[str, ...], code: int, message: str, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == code
    assert message in capsys.readouterr().err
