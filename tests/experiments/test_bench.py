"""The benchmark on scripted engines, its files, and its hardware figures."""

import csv
import io
import json
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable
from itertools import count, groupby
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest
from PIL import ImageColor
from playwright.sync_api import BrowserContext, expect

from specdemo.cli.signals import on_interrupt
from specdemo.engines.base import Decoder, Engine
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import EngineError, FileError, RunError, SettingsError, UsageError
from specdemo.estimate import Interval
from specdemo.experiments import bench_result as report
from specdemo.experiments import report as files
from specdemo.experiments.bench import BenchPlan, available, with_hardware
from specdemo.experiments.bench_result import Bench, charts, conclusion, headline, opening
from specdemo.experiments.checkpoint import Checkpoint, EngineFacts
from specdemo.experiments.plan import run as bench
from specdemo.experiments.suites import Task
from specdemo.experiments.trials import ALL, Cell, TrialRow, cells
from specdemo.files import colours
from specdemo.measure.hardware import Bound, measure_bandwidth, measure_memory
from specdemo.models.convert import pass_bytes
from specdemo.models.pairs import bundled_pair
from specdemo.records import Costs, DraftRound, ModelPair, Request, Side
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import EngineName, Lookup, Plain

SETTINGS = GenerationSettings(ignore_eos=True, max_new_tokens=61)
TASKS = [Task(name=f"{task} {n}", task=task, prompt=f"Say {n}") for task in ("tales", "songs") for n in (1, 2)]
METHODS = ("genai constant", "genai lookup", "traced constant", "traced auto")
PAIR = ScriptedEngine().pair


def load(name: EngineName) -> ScriptedEngine:
    return ScriptedEngine(wrong=(7, 20), extra=0.002 if name == "genai" else 0.001)


def run(
    checkpoint: Checkpoint | None = None,
    load: Callable[[EngineName], Engine] = load,
    stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> list[Bench]:
    plan = BenchPlan(PAIR, TASKS, SETTINGS, **{"methods": METHODS, "repeats": 3, **options})
    return [state.result for state in bench(plan, load, checkpoint=checkpoint, stop=stop)]


def test_every_method_runs_on_every_prompt_in_every_repeat() -> None:
    states = list(bench(BenchPlan(PAIR, TASKS, SETTINGS, METHODS), load))
    result = states[-1].result
    assert result.complete
    assert {(row.engine, row.method, row.prompt, row.repeat) for row in result.rows} == {
        (*method.split(), task.name, repeat) for method in METHODS for task in TASKS for repeat in range(3)
    }
    assert (states[-1].done, states[-1].total, states[-1].seconds_left) == (48, 48, 0)
    assert set(result.engines) == {"genai", "traced"}
    assert Bench.model_validate_json(result.model_dump_json()) == result


def test_the_table_holds_what_the_script_says() -> None:
    found = {(cell.engine, cell.method, cell.task): cell for cell in cells(run()[-1])}
    assert len(found) == 4 * 3  # two kinds of tasks, and all
    genai, traced = (found[engine, "constant", ALL] for engine in ("genai", "traced"))
    assert traced.mean > genai.mean > 1  # whose passes cost more
    for cell in (genai, traced):
        assert cell.identical
        assert cell.runs == cell.identical_runs == 12
        assert cell.repeats == 3
        assert cell.deviation == pytest.approx(0)
        assert cell.plain_tokens_per_second == pytest.approx(100)
        assert cell.acceptance_rate is not None
    assert genai.mean_accepted_length == traced.mean_accepted_length


def test_outputs_that_differ_are_told_wherever_a_speedup_is() -> None:
    result = run(load=lambda name: ScriptedEngine(diverges_at=5))[-1]
    assert not any(speedup["identical"] for speedup in headline(result)["speedups"].values())
    for row in report.table(result):
        assert row[report.COLUMNS.index("outputs")].startswith("0 of ")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "run.rows.jsonl")


def test_a_stopped_run_goes_on_where_it_was(checkpoint: Checkpoint) -> None:
    asked = count()
    stopped = run(checkpoint, stop=lambda: next(asked) > 1500)[-1]
    assert 0 < len(stopped.rows) < 48
    resumed = run(checkpoint)
    assert resumed[0].rows == stopped.rows
    assert resumed[-1].complete
    assert len({(row.engine, row.method, row.prompt, row.repeat) for row in resumed[-1].rows}) == 48
    loaded: list[str] = []

    def watched(name: EngineName) -> ScriptedEngine:
        loaded.append(name)
        return load(name)

    assert run(checkpoint, load=watched)[-1].rows == resumed[-1].rows
    assert not loaded  # nothing is left to do
    assert set(run(checkpoint)[-1].engines) == {"genai", "traced"}
    assert len(run(checkpoint, repeats=4)[-1].rows) == 64


def test_a_crash_loses_no_finished_row(checkpoint: Checkpoint) -> None:
    with pytest.raises(EngineError):
        run(checkpoint, load=lambda name: ScriptedEngine(fails_at=None if name == "genai" else 30))
    with checkpoint.path.open("a") as file:
        file.write('{"row": {"engine": "tra')  # cut short
    finished = run(checkpoint)
    assert len(finished[0].rows) == 24
    assert finished[-1].complete


OTHER = GenerationSettings(ignore_eos=True, max_new_tokens=62)
THREADS = PAIR.model_copy(update={"runtime": RuntimeSettings(inference_num_threads=1)})


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ((PAIR.model_copy(update={"draft": None}), TASKS, SETTINGS, METHODS[1:2]), "another pair, other methods;"),
        ((PAIR, TASKS[:1], SETTINGS, METHODS), "with other prompts;"),
        ((PAIR, TASKS, OTHER, METHODS), "with other settings;"),
        ((THREADS, TASKS, SETTINGS, METHODS), "with other settings;"),
        ((PAIR, TASKS, SETTINGS, METHODS[1:]), "with other methods;"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_checkpoint_of_something_else_is_not_mixed_in(
    changed: tuple[Any, ...], difference: str, checkpoint: Checkpoint
) -> None:
    pair, tasks, settings, methods = changed
    run(checkpoint, repeats=1)
    with pytest.raises(FileError, match=difference):
        list(bench(BenchPlan(pair, tasks, settings, methods, repeats=1), load, checkpoint=checkpoint))


def test_a_damaged_checkpoint_is_told(checkpoint: Checkpoint) -> None:
    run(checkpoint, repeats=1)
    head, *rows = checkpoint.path.read_text().splitlines(keepends=True)
    checkpoint.path.write_text("".join([head, *rows, "{}x\n"]))
    with pytest.raises(FileError, match=r"Line \d+ of .* is damaged"):
        run(checkpoint)
    checkpoint.path.write_text("".join(["{}\n", *rows]))
    with pytest.raises(FileError, match="with a header from another version; choose another output path"):
        run(checkpoint)


def test_the_order_of_methods_does_not_matter_to_a_checkpoint(checkpoint: Checkpoint) -> None:
    before = run(checkpoint, repeats=1)[-1]
    again = run(checkpoint, repeats=1, methods=METHODS[::-1])
    assert again[0].rows == before.rows
    assert [cell.method for cell in cells(again[0])] != [cell.method for cell in cells(before)]


def test_rows_of_other_weights_under_the_same_name_are_not_mixed_in(checkpoint: Checkpoint, tmp_path: Path) -> None:
    weights = tmp_path / "model" / "openvino_model.bin"
    weights.parent.mkdir()
    pair = PAIR.model_copy(update={"target": PAIR.target.model_copy(update={"path": weights.parent})})

    def resumed(seed: int) -> list[Bench]:
        weights.write_bytes(Random(seed).randbytes(2**22))
        return [
            s.result for s in bench(BenchPlan(pair, TASKS, SETTINGS, METHODS, repeats=1), load, checkpoint=checkpoint)
        ]

    rows = resumed(0)[-1].rows
    (weights.parent / "README.md").write_text("A model.")
    assert resumed(0)[0].rows == rows
    with pytest.raises(FileError, match="with other model files;"):
        resumed(1)


def test_a_checkpoint_keeps_names_that_hold_ends_of_lines(checkpoint: Checkpoint) -> None:
    task = Task(name="one\u2028two\u2029\x85", task="tales\n", prompt="Say")

    def resumed() -> list[Bench]:
        return [
            s.result
            for s in bench(BenchPlan(PAIR, [task], SETTINGS, METHODS, repeats=1), load, checkpoint=checkpoint)
        ]

    rows = resumed()[-1].rows
    assert {row.prompt for row in rows} == {task.name}
    assert resumed()[0].rows == rows


def test_methods_are_those_that_engine_and_pair_can() -> None:
    alone = PAIR.model_copy(update={"draft": None})
    assert list(available(alone, SETTINGS)) == ["genai lookup", "traced lookup", "traced suffix"]
    assert {"traced auto", "traced heuristic", "genai confidence"} < set(available(PAIR, SETTINGS))
    assert not {"genai auto", "genai heuristic"} & set(available(PAIR, SETTINGS))
    with pytest.raises(SettingsError, match="There is no method 'genai auto'"):
        run(methods=["genai auto"])


def test_methods_are_those_that_the_pair_can() -> None:
    head = PAIR.model_copy(update={"draft": PAIR.target.model_copy(update={"head": "eagle3"})})
    assert {"genai constant", "traced confidence", "traced auto"} < set(available(head, SETTINGS))
    assert "genai confidence" not in available(head, SETTINGS)
    other = PAIR.model_copy(update={"translated": True})
    assert {strategy.split()[0] for strategy in available(other, SETTINGS)} == {"traced"}


def test_a_prompt_that_cannot_be_run_keeps_nobody_from_running() -> None:
    tasks = [*TASKS, Task(name="void", task="songs", prompt=" ")]
    result = list(bench(BenchPlan(PAIR, tasks, SETTINGS, METHODS, repeats=1), load))[-1].result
    assert result.complete
    assert {row.prompt for row in result.rows if row.problem} == {"void"}
    assert all("empty" in row.problem for row in result.rows if row.problem)
    (note,) = (note for note in report.notes(result) if note.startswith("Left out"))
    assert "1 of 5 prompts: The prompt is empty" in note
    assert all(cell.runs == 4 for cell in cells(result) if cell.task == ALL)


def test_pipelines_of_another_drafter_are_warm_before_they_are_timed() -> None:
    drafters: list[str] = []

    class Watched(ScriptedEngine):
        def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
            if not isinstance(request.strategy, Plain):
                drafters.append("lookup" if isinstance(request.strategy, Lookup) else "model")
            return super().decoder(request, costs)

    list(bench(BenchPlan(PAIR, TASKS, SETTINGS, METHODS[:2], repeats=3), lambda _: Watched()))
    runs = [(drafter, len(list(group))) for drafter, group in groupby(drafters)]
    assert runs == [("model", 1 + 12), ("lookup", 1 + 12)]


def test_rows_of_other_versions_are_not_mixed_in(checkpoint: Checkpoint) -> None:
    def upgraded(name: EngineName) -> ScriptedEngine:
        engine = load(name)
        engine.environment = engine.environment.model_copy(update={"openvino": "2099.0"})
        return engine

    run(checkpoint, repeats=1)
    with pytest.raises(FileError, match="other versions"):
        run(checkpoint, load=upgraded, repeats=2)


def test_a_method_named_twice_runs_once() -> None:
    result = run(methods=["traced constant", "traced constant"], repeats=1)[-1]
    assert (result.complete, len(result.rows)) == (True, 4)


def test_reports_agree_with_the_table(tmp_path: Path) -> None:
    result = run()[-1]
    written = files.write(result.report(), tmp_path / "run.json")
    assert [file.suffix for file in written] == [".json", ".md", ".csv", ".html"]
    data = json.loads(written[0].read_text())
    assert [Cell.model_validate(cell) for cell in data["table"]] == cells(result)
    assert data["headline"] == headline(result)
    rows = list(csv.DictReader(io.StringIO(written[2].read_text())))
    assert [float(row["mean"]) for row in rows] == [cell.mean for cell in cells(result)]
    markdown = written[1].read_text()
    assert markdown.count("\n| scripted") == len(cells(result))
    assert f"| {cells(result)[0].speedup} | identical |" in markdown


@pytest.mark.parametrize(
    ("name", "markdown"),
    [("run.json", "run.md"), ("run.v1", "run.v1.md"), ("run.v1.json", "run.v1.md"), ("run", "run.md")],
)
def test_only_the_ending_json_is_replaced(name: str, markdown: str) -> None:
    assert files.beside(Path("folder") / name, ".md") == Path("folder") / markdown


@pytest.mark.parametrize("name", ["run.md", "run.csv", "run.html", "RUN.MD"])
def test_json_that_the_report_would_overwrite_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"choose a path that ends in \.json"):
        files.beside(Path(name), ".rows.jsonl")


def test_the_html_report_loads_nothing() -> None:
    text = files.to_html(run(repeats=1)[-1].report())
    assert not re.search(r"https?://|src=|@import|url\(", text)
    assert len(text) < 2**18


def test_reports_begin_with_conclusion_date_machine_and_settings() -> None:
    result = run()[-1]
    best, *_, machine, settings = opening(result)
    assert best.startswith("No clear winner: any of traced constant, traced auto,")
    assert "For traced constant: 2.10×" in best
    assert "outputs identical" in best
    assert machine.startswith(f"Measured on {result.date} on scripted")
    markdown, html = files.to_markdown(result.report()), files.to_html(result.report())
    assert markdown.index(best) < markdown.index("| target |")
    assert html.index("No clear winner") < html.index("<table>")
    assert "4 prompts, 3 repeats; methods: genai constant" in settings


def test_a_conclusion_may_be_that_there_is_none() -> None:
    cell = next(cell for cell in cells(run()[-1]) if cell.task == ALL)

    def speeds(low: float | None, middle: float, high: float | None, method: str = "constant") -> Cell:
        return cell.model_copy(update={"speedup": Interval(low=low, middle=middle, high=high), "method": method})

    for overall, words in (
        ([], "Nothing could be measured."),
        ([speeds(None, 2, None)], "Too few runs to be sure: the fastest so far is genai constant, 2.00×"),
        ([speeds(0.9, 1.1, 1.3)], "No method clearly beats plain decoding: the best, genai constant"),
        (
            [speeds(1.5, 1.7, 1.9), speeds(1.4, 1.6, 1.8, "lookup")],
            "No clear winner: any of genai constant, genai l",
        ),
        ([speeds(1.5, 1.7, 1.9), speeds(1.1, 1.2, 1.3, "lookup")], "genai constant gains most over plain decoding"),
    ):
        assert conclusion(overall).startswith(words)


@pytest.mark.browser
@pytest.mark.parametrize("name", ["tales", "<!--<script>", "</script><b>"])
def test_the_html_report_opens_offline_in_light_and_dark(name: str, browser: BrowserContext, tmp_path: Path) -> None:
    tasks = [Task(name="1", task=name, prompt="Say")]
    result = [state.result for state in bench(BenchPlan(PAIR, tasks, SETTINGS, METHODS[:2], repeats=1), load)][-1]
    (_, _, _, file) = files.write(result.report(), tmp_path / "run.json")
    page = browser.new_page()
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    expect(page.locator(".chart canvas")).to_have_count(5)
    expect(page.locator("td:nth-child(3)").first).to_have_text(name)
    expect(page.locator("h1")).to_have_css("color", f"rgb{ImageColor.getrgb(colours()['ink'])}")
    light = page.locator("#speedup canvas").evaluate("canvas => canvas.toDataURL()")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("h1")).to_have_css("color", f"rgb{ImageColor.getrgb(colours(dark=True)['ink'])}")
    page.wait_for_function("before => document.querySelector('#speedup canvas').toDataURL() !== before", arg=light)
    page.close()
    assert asked == [file.as_uri()]
    assert complaints == []


def test_a_share_of_the_bound_is_of_what_memory_allows() -> None:
    bound = Bound(
        read_bandwidth=2e9, copy_bandwidth=1e9, array_bytes=1, threads=1, weights=10**7, cache_per_token=0, context=9
    )
    assert bound.tokens_per_second == 200
    assert bound.share(100) == 0.5


def test_bandwidth_is_measured() -> None:
    assert all(1e8 < bandwidth < 1e13 for bandwidth in measure_bandwidth(2**24, 2))


@pytest.mark.openvino
def test_a_pass_reads_the_weights_once() -> None:
    """The bundled target's embedding is its head too, so every weight takes part; its cache is 2 × 6 × 384 wide."""
    pair = bundled_pair()
    assert pair.target.path is not None
    read = pass_bytes(pair.target.path, "f32", "f32")
    assert read.weights == pytest.approx(4 * pair.target.parameters, rel=0.01)
    assert read.cache_per_token == 2 * 6 * 384 * 4
    narrow = pass_bytes(pair.target.path, "bf16", "u8")
    assert narrow.weights == read.weights / 2
    assert narrow.cache_per_token == read.cache_per_token / 4


def scripted(name: EngineName, pair: ModelPair, side: Side) -> ScriptedEngine:
    return ScriptedEngine(fails_at=5 if side == "plain" else None)


def test_what_fails_in_a_child_is_told() -> None:
    with pytest.raises(RunError, match="run again"):
        measure_memory(PAIR, "Say", SETTINGS, "plain", scripted)


def interrupts_its_parent(name: EngineName, pair: ModelPair, side: Side) -> ScriptedEngine:
    os.kill(os.getppid(), signal.SIGINT)
    sleep(60)
    return ScriptedEngine()


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal as a terminal does")
def test_ctrl_c_ends_the_child_that_measures_memory() -> None:
    before = on_interrupt(signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            measure_memory(PAIR, "Say", SETTINGS, "plain", interrupts_its_parent)
    finally:
        on_interrupt(before)
    assert "specdemo memory" not in {child.name for child in multiprocessing.active_children()}


@pytest.mark.openvino
def test_hardware_is_added_to_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdemo.measure.hardware.ARRAY_BYTES", 2**24)
    result = run(repeats=1, methods=["traced constant"])[-1]
    real = result.model_copy(update={"header": result.header.model_copy(update={"pair": bundled_pair()})})
    added = with_hardware(real, whole)
    assert [(use.engine, use.side) for use in added.memory] == [("traced", "plain"), ("traced", "speculative")]
    assert added.bound is not None
    assert any("on arrays of 16 MiB each" in note for note in report.notes(added))
    read = Bench.model_validate_json(added.model_dump_json())
    assert (read.memory, read.bound) == (added.memory, added.bound)


def whole(name: EngineName, pair: ModelPair, side: Side) -> ScriptedEngine:
    return ScriptedEngine()


def test_an_unfinished_benchmark_says_so_and_of_how_many_repeats_it_is() -> None:
    result = run()[-1]
    assert "of 3 repeats" in next(report.notes(result))
    third = [row for row in result.rows if row.repeat == 2 and row.engine == "traced"]
    cut = result.model_copy(update={"rows": tuple(row for row in result.rows if row not in third)})
    unfinished, speedup, *_ = report.notes(cut)
    assert unfinished == "Unfinished: 40 of 48 runs."
    assert "of 2 to 3 repeats" in speedup
    assert "of 1 repeat." in next(report.notes(run(repeats=1)[-1]))


def test_a_method_that_lacks_its_step_costs_is_left_out() -> None:
    class Unknown(ScriptedEngine):
        def draft_rounds(self, prompt: str, lookahead: int) -> list[DraftRound]:
            return []

    result = run(load=lambda name: Unknown(), repeats=1)[-1]
    assert result.complete
    assert {(cell.engine, cell.method) for cell in cells(result)} == {
        tuple(strategy.split()) for strategy in METHODS[:3]
    }
    assert [note for note in report.notes(result) if note.startswith("Left out")] == [
        "Left out for traced auto, 4 of 4 prompts: It needs step costs, which are unknown for this pair."
    ]


def test_where_nothing_could_run_nothing_is_called_identical() -> None:
    ends = SETTINGS.model_copy(update={"ignore_eos": False})
    silent = ScriptedEngine(words=("",))
    *_, last = bench(BenchPlan(PAIR, TASKS, ends, METHODS[:1], repeats=1), lambda name: silent)
    assert last.result.complete
    assert cells(last.result) == []
    assert "identical" not in charts(last.result)["speedup"].title
    assert any(
        "Left out for genai constant, 4 of 4 prompts: The text ended" in note for note in report.notes(last.result)
    )


def test_reports_show_speedup_along_the_text_and_tokens_accepted_per_round() -> None:
    words = ("<think>", *[" hm"] * 20, "</think>", *[" so"] * 60)
    result = run(load=lambda name: ScriptedEngine(words=words, wrong=range(22)), repeats=1)[-1]
    shown = result.report()
    position, accepted = (shown.charts[name].figure for name in ("position", "accepted"))
    constant = next(trace for trace in position.data if trace.name == "traced constant")
    assert list(constant.x)[:2] == ["1–16", "17–32"]
    assert constant.y[0] < 1 < constant.y[-1]
    shares = next(trace for trace in accepted.data if trace.name == "traced constant")
    assert sum(shares.y) == pytest.approx(1)
    assert list(shares.x) == [0, 1, 2, 3, 4]
    rows = {row[:2] for row in shown.tables["thinking"].rows}
    assert {("traced constant", "thinking"), ("traced constant", "answer")} <= rows
    assert "thinking" not in run(repeats=1)[-1].report().tables


def test_short_prompts_and_long_ones_are_told_apart() -> None:
    """As in SPEED-Bench, whose inputs have about 1,000 to 32,000 tokens."""
    lengths = {"short": 3, "1k": 960, "1k too": 1_100, "8k": 7_500}
    tasks = [Task(name=name, task="mixed", prompt="x " * words) for name, words in lengths.items()]
    plan = BenchPlan(PAIR, tasks, SETTINGS, methods=METHODS[:2], repeats=1)
    *_, last = bench(plan, load)
    rows = [row[:2] for row in last.result.report().tables["lengths"].rows]
    assert rows == [(name, length) for name in METHODS[:2] for length in ("under 500", "about 1,000", "about 8,000")]
    assert "lengths" not in run(repeats=1)[-1].report().tables, "all are short"


def test_what_is_unknown_survives_a_checkpoint(checkpoint: Checkpoint) -> None:
    """A prompt that could not be run, an engine elsewhere, and a pair whose draft steps cannot be timed."""
    whole = run()[-1]
    row = whole.rows[0].model_copy(update={"trial": None, "problem": "The prompt is too long."})
    facts = whole.engines["genai"]
    away = facts.environment.model_copy(update={"threads": None})
    facts = EngineFacts(environment=away, costs=Costs(plain_step=0.01, draft_step=None, verify=(0.01,)))
    checkpoint.open(whole.header, TrialRow)
    checkpoint.add_facts("genai", facts)
    checkpoint.add(row)
    assert checkpoint.open(whole.header, TrialRow) == ({"genai": facts}, [row])
