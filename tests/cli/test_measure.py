import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdemo.capabilities import EngineName
from specdemo.cli import main
from specdemo.errors import EngineError
from specdemo.experiments.rows import Result, measure
from specdemo.records import ModelPair, Progress
from tests.support.scripted import ScriptedEngine

FEW = ["--repeats", "1", "--max-new-tokens", "8"]
TUNE = ["tune", "Say", "--lookaheads", "2,4", "--thresholds", "none", "--strategies", "none", *FEW]
BENCH = ["bench", "--limit", "2", "--strategies", "traced auto, traced constant", *FEW]
LOAD = ["load", "--concurrency", "1,2", "--limit", "2", *FEW]


def scripted(name: EngineName, pair: ModelPair) -> ScriptedEngine:
    return ScriptedEngine()


def test_a_benchmark_prints_its_conclusion_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text('{"prompt": "Once upon a time"}\n{"prompt": "There was a fox"}\n')
    assert main([*BENCH, "--prompts", str(prompts), "--json", str(out)], load=scripted) == 0
    data = json.loads(out.read_text())
    assert " ".join(capsys.readouterr().out.split()).startswith(data["conclusion"])
    assert all(point["identical_runs"] == point["runs"] for point in data["points"])
    assert sorted(path.suffix for path in tmp_path.glob("out.*")) == [".html", ".json"]
    assert len(data["rows"]) == 4


@pytest.mark.parametrize("arguments", [TUNE, LOAD], ids=lambda arguments: str(arguments[0]))
def test_standard_output_is_one_object_and_nothing_else(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--json", "-"], load=scripted) == 0
    result = Result.model_validate_json(capsys.readouterr().out)
    assert result.complete
    assert len(result.variants) == 2


def test_the_plan_is_printed_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(name: EngineName, pair: ModelPair) -> ScriptedEngine:
        assert "2 variants, 1 prompt, up to" in capsys.readouterr().err
        raise EngineError("stopped here")

    assert main([*TUNE[:-4], "--minutes", "3"], load=refuse) == 1


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (None, 1)])
def test_finished_rows_survive_ctrl_c_sigterm_and_failures(
    sent: signal.Signals | None,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def breaking(*arguments: Any, **options: Any) -> Iterator[Progress[Result]]:
        for state in measure(*arguments, **options):
            yield state
            if state.done == 1 and sent is None:
                raise EngineError
            if state.done == 1 and sent is not None:
                signal.raise_signal(sent)

    out = tmp_path / "out.json"
    monkeypatch.setattr("specdemo.cli.measure.measure", breaking)
    assert main([*BENCH, "--json", str(out)], load=scripted) == code
    assert len(Result.model_validate_json(out.read_text()).rows) == 1
    assert "Unfinished: 1 of 4 runs." in capsys.readouterr().out


def test_an_empty_result_replaces_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(name: EngineName, pair: ModelPair) -> ScriptedEngine:
        signal.raise_signal(signal.SIGINT)
        return scripted(name, pair)

    arguments = [*BENCH, "--json", str(tmp_path / "out.json")]
    assert main(arguments, load=scripted) == 0
    written = {path: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    assert main(arguments, load=interrupted) == 130
    assert {path: path.read_bytes() for path in written} == written
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tune", "x", "--prompts", "y.jsonl"), "leave one of them out"),
        (("tune", "x", "--lookaheads", "5-1"), "'5-1' names no numbers"),
        (("tune", "x", "--lookaheads", "1-x"), "should be a valid integer, unable to parse"),
        (("load", "--concurrency", "1-999999999"), "should be a valid integer, unable to parse"),
        (("tune", "x", "--lookaheads", ","), "got ''"),
        (("bench", "--prompts", "/nowhere.jsonl"), "Cannot read 'nowhere.jsonl'"),
        (("bench", "--json", "/nowhere/out.json"), "Cannot write a file"),
    ],
    ids=str,
)
def test_impossible_plans_are_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, load=lambda *_: pytest.fail("nothing is loaded")) == 2
    assert message in " ".join(capsys.readouterr().err.split())
