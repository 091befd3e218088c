"""Two benchmarks compared: what is decoded faster where, and what differs between them."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdemo.cli import main
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import FileError
from specdemo.experiments.against import compare, read_bench, with_other
from specdemo.experiments.bench import KIND, BenchPlan
from specdemo.experiments.bench_result import Bench
from specdemo.experiments.plan import run
from specdemo.experiments.report import to_html, to_markdown, write
from specdemo.experiments.suites import Task, bundled_tasks, limited
from specdemo.experiments.trials import ALL
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName
from specdemo.ui.boards import report_template
from specdemo.ui.tabs.experiments import ExperimentCallbacks

SETTINGS = GenerationSettings(ignore_eos=True, max_new_tokens=41)
TASKS = [Task(name=f"tales {n}", task="tales", prompt=f"Say {n}") for n in range(8)]
METHODS = ("traced constant", "genai lookup")


def bench(tasks: list[Task] = TASKS, step: float = 0.01, **options: object) -> Bench:
    def load(name: EngineName) -> ScriptedEngine:
        engine = ScriptedEngine(wrong=(7, 20), step=step, draft=step / 5, extra=step / 10)
        if step != 0.01:
            engine.environment = engine.environment.model_copy(update={"device": "another"})
        return engine

    plan = BenchPlan(ScriptedEngine().pair, tasks, SETTINGS, METHODS, repeats=1)
    return list(run(plan, load))[-1].result


def test_a_machine_twice_as_fast_is_said_to_be() -> None:
    here, there = bench(step=0.005), bench()
    found = {(each.method, each.task): each for each in compare(here, there)}
    each = found["traced constant", ALL]
    assert each.plain.middle == pytest.approx(2)
    assert each.speculative.middle == pytest.approx(2)
    assert each.speculative.low is not None
    assert each.speculative.high is not None
    assert each.speculative.low <= each.speculative.middle <= each.speculative.high
    assert each.here.speedup.middle == pytest.approx(each.there.speedup.middle)
    assert each.prompts == 8
    report = with_other(here.report(), here, there, "other.json")
    sentence = next(line for line in report.opening if line.startswith("Against other.json"))
    assert "decodes 2.00× (95 % interval" in sentence
    assert "Different: device another (there scripted)." in report.opening
    assert "Against other.json" in to_markdown(report)
    assert "here / other.json" in to_html(report)
    assert report.headline["against"]["traced constant"]["middle"] == 2


def test_only_prompts_of_both_are_compared() -> None:
    others = [*TASKS[:2], Task(name="tales 5", task="tales", prompt="Something else")]
    (each, _) = (each for each in compare(bench(), bench(others)) if each.task == ALL)
    assert each.prompts == 2
    assert not each.speculative.has_interval  # from two runs each
    nothing = bench([Task(name="x", task="tales", prompt="Nothing of the kind")])
    report = with_other(bench().report(), bench(), nothing, "other.json")
    assert any(line.startswith("Nothing can be compared with other.json") for line in report.opening)
    assert "against" not in report.tables


def test_a_file_is_compared_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    command = partial(main, load=lambda name, pair: ScriptedEngine())
    options = ["bench", "--limit", "6", "--repeats", "1", "--max-new-tokens", "16", "--methods", "traced constant"]
    assert command([*options, "--no-hardware", "--json", str(first)]) == 0
    assert (
        main(
            [*options, "--no-hardware", "--json", str(second), "--against", str(first)],
            load=lambda name, pair: ScriptedEngine(),
        )
        == 0
    )
    headline = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert headline["against"]["traced constant"]["middle"] == pytest.approx(1)
    assert {row["task"] for row in json.loads(second.read_text())["against"]} >= {ALL}
    assert read_bench(second).complete  # what was added is passed over


def test_what_is_no_benchmark_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for text in ("{}", "[1", '{"schema": 2, "plain": {}}', "\ud800".encode("utf-8", "surrogatepass").hex()):
        path.write_text(text)
        with pytest.raises(FileError, match=r"'run\.json' is not a benchmark; choose a file that"):
            read_bench(path)
    with pytest.raises(FileError, match="Cannot read"):
        read_bench(tmp_path / "nothing.json")


def test_a_benchmark_of_the_last_release_still_opens(tmp_path: Path) -> None:
    """Its trials have no steps, and its cells no advice."""
    path = tmp_path / "old.json"
    write(bench().report(), path)
    data = json.loads(path.read_text())
    del data["advice"]
    for row in data["rows"]:
        for name in ("plain_steps", "round_steps"):
            del row["trial"][name]
    path.write_text(json.dumps(data))
    old = read_bench(path)
    (each, _) = (each for each in compare(bench(), old) if each.task == ALL)
    assert each.plain.middle == pytest.approx(1)
    assert old.report().tables["table"].rows


def test_a_file_is_compared_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = tmp_path / "other.json"
    tasks = limited(bundled_tasks("base"), 2)
    write(bench(tasks).report(), other)

    class Sessions:
        def measure(self, visitor: str, what: str, job: Any) -> Any:
            yield from job.work(lambda name: ScriptedEngine(), stop=lambda: False)

    callbacks = ExperimentCallbacks(Sessions(), KIND)  # type: ignore[arg-type]
    visitor: Any = SimpleNamespace(session_hash="visitor")
    pair = ScriptedEngine().pair
    *_, board, last = callbacks.measure(visitor, True, pair, None, str(other), 2, 1, 16, False, ["traced constant"])
    shown = json.loads(board[1])
    assert "Against other.json, on 2 prompts of both: traced constant decodes" in shown["html"]["opening"]
    assert "against" in shown["charts"]
    assert all(place in report_template(KIND.charts, KIND.tables) for place in shown["html"])
    assert [Path(path).suffix for path in last[2]["value"]] == [".json", ".md", ".csv", ".html"]
    other.write_text("{}")
    *_, refused = callbacks.measure(visitor, True, pair, None, str(other), 2, 1, 16, False, ["traced constant"])
    assert "is not a benchmark" in refused[0]
