"""Boards of sweeps, step costs and benchmarks, and a job's progress, without a browser."""

import json
import os
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from rich.console import Console

from specdemo import metrics
from specdemo.cli.terminal import print_report
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import EngineError
from specdemo.experiments import bench as bench_run
from specdemo.experiments.bench import KIND, BenchPlan
from specdemo.experiments.plan import run as bench
from specdemo.experiments.plan import run_with_extras
from specdemo.experiments.suites import Task
from specdemo.experiments.sweep import candidates, sweep
from specdemo.experiments.sweep_result import Sweep
from specdemo.measure.hardware import Bound, MemoryUse
from specdemo.measure.step_costs import MAX_LOOKAHEAD, measure_contexts
from specdemo.metrics import AS_MEASURED, WhatIf
from specdemo.presentation import figures
from specdemo.records import Costs, Phase, Progress, StepCosts
from specdemo.settings import GenerationSettings
from specdemo.ui.boards import EMPTY, PairCosts, costs_board, prediction_board, result_board
from specdemo.ui.events import job_updates
from specdemo.ui.tabs.experiments import ExperimentCallbacks
from specdemo.ui.tabs.tune import after_sweep, reset_for
from specdemo.worker import Prepare

ENGINE = ScriptedEngine(wrong=(3, 7), draft=0.001)
SETTINGS = GenerationSettings(engine="traced", max_new_tokens=40, ignore_eos=True)
JOB = Prepare("traced", ENGINE.pair)


def swept() -> list[Progress[Sweep]]:
    tried = candidates(ENGINE.pair, SETTINGS, (1, 2, 4), (0.5,))
    return list(sweep(ENGINE, ["Say"], SETTINGS, tried, repeats=3, costs=costs()))


def costs() -> Costs:
    *_, last = measure_contexts(ENGINE)
    assert isinstance(last, Progress)
    assert last.result is not None
    return last.result


def pair_costs(**changes: object) -> PairCosts:
    return PairCosts(ENGINE.pair, "traced", costs().model_copy(update=changes))


def test_a_sweep_shows_what_it_measured_and_says_what_is_predicted() -> None:
    sweep_ = swept()[-1].result
    shown = json.loads(result_board(sweep_))
    assert sweep_.recommendation.sentence in shown["html"]["opening"]
    predicted, textbook, dots = shown["charts"]["speedup"]["data"]
    assert (predicted["name"], textbook["name"], dots["name"]) == ("predicted", "textbook, v = 1", "measured")
    measured_points = [point for point in sweep_.points if point.candidate.kind == "lookahead"]
    assert dots["x"] == [1, 2, 4]
    assert dots["y"] == [point.speedup.middle for point in measured_points]
    assert sweep_.prediction is not None
    assert predicted["y"] == list(sweep_.prediction.predicted)
    assert shown["charts"]["policies"]["data"][0]["x"] == ["threshold 0.5", "policy heuristic", "policy auto"]
    for draft, verify, other in zip(*(trace["y"] for trace in shown["charts"]["shares"]["data"]), strict=True):
        assert draft + verify + other == pytest.approx(1)


def test_a_sweep_that_has_only_begun_shows_nothing_false() -> None:
    shown = json.loads(result_board(swept()[0].result))
    assert shown == {"html": {}, "charts": {}, "whole": True}  # so the page empties what an earlier sweep showed


def test_a_sweep_board_leaves_out_what_was_not_measured_and_names_what_was() -> None:
    genai = swept()[-1].result
    points = [
        point.model_copy(update={"draft_share": None, "verify_share": None, "other_share": None})
        for point in genai.points
        if point.candidate.kind == "lookahead"
    ]
    settings = genai.settings.model_copy(update={"engine": "genai", "drafter": "lookup"})
    changed = {"points": tuple(points), "settings": settings, "prediction": None}
    shown = json.loads(result_board(genai.model_copy(update=changed)))
    assert set(shown["charts"]) == {"speedup", "acceptance"}
    assert [trace["name"] for trace in shown["charts"]["speedup"]["data"]] == ["measured"]
    assert f"{ENGINE.pair.name} on scripted: prompt lookup, GenAI engine" in shown["html"]["opening"]
    traced = json.loads(result_board(genai))["html"]["opening"]
    assert f"{ENGINE.pair.name} on scripted: draft model, traced engine" in traced


def test_a_policys_speedup_comes_with_whether_outputs_were_identical() -> None:
    sweep_ = swept()[-1].result
    differing = [
        point.model_copy(update={"identical": point.candidate.name != "policy auto"}) for point in sweep_.points
    ]
    (bars,) = json.loads(result_board(sweep_.model_copy(update={"points": tuple(differing)})))["charts"]["policies"][
        "data"
    ]
    assert "%{text}" in bars["hovertemplate"]
    assert [text.split(", outputs ")[1] for text in bars["text"]] == ["identical", "identical", "differ"]
    assert bars["text"][0].startswith(str(sweep_.points[3].speedup))


def test_step_costs_and_what_they_let_one_expect() -> None:
    measured_ = pair_costs()
    shown = json.loads(costs_board(measured_, 0.8))
    assert shown["whole"]
    contexts = measured_.costs.contexts
    assert [len(trace["x"]) for trace in shown["charts"]["verify"]["data"]] == [MAX_LOOKAHEAD + 1] * len(contexts)
    assert "Predicted, not measured" in shown["html"]["expectation"]
    assert f"{ENGINE.pair.name} · traced engine" in shown["html"]["caption"]
    assert shown["html"]["change"] == ""  # it costs nothing in a scripted engine
    changed = contexts[0].model_copy(update={"length_change": 0.25 * measured_.costs.plain_step})
    shown = json.loads(costs_board(pair_costs(contexts=(changed,)), 0.8))
    assert "(25 % of a plain step) if its query length differs" in shown["html"]["change"]


def test_step_costs_are_told_with_quartiles_for_each_length_of_text() -> None:
    step = {"low": 0.004, "middle": 0.005, "high": 0.0061}
    draft, first = ({name: value / by for name, value in step.items()} for by in (10, 5))
    both = StepCosts.model_validate({"context": 16, "passes": [step], "draft": draft, "first_draft": first})
    alone = StepCosts.model_validate({"context": 256, "passes": [step], "draft": None})
    found = PairCosts(ENGINE.pair, "traced", Costs.of((both, alone)))
    table = json.loads(costs_board(found, 0.8))["html"]["steps"]
    rows = [re.findall("<td>(.*?)</td>", row) for row in table.split("<tr>")[2:]]
    assert rows == [
        ["16", "5.00 (4.00–6.10)", "0.50 (0.40–0.61)", "1.00 (0.80–1.22)", "0.10"],
        ["256", "5.00 (4.00–6.10)", "–", "–", "–"],
    ]


def test_another_acceptance_changes_only_what_is_predicted() -> None:
    hopeless = json.loads(prediction_board(pair_costs(), 0.0))
    assert "no lookahead is predicted to beat plain decoding" in hopeless["html"]["expectation"]
    assert (set(hopeless["html"]), set(hopeless["charts"])) == ({"expectation"}, {"prediction"})
    assert not hopeless["whole"]


def test_imagined_costs_stand_beside_the_measured_ones() -> None:
    found = pair_costs()
    measured_, other = (
        json.loads(prediction_board(found, 0.8, what_if)) for what_if in (AS_MEASURED, WhatIf(0.5, 2))
    )
    assert "What if" not in measured_["html"]["expectation"]
    assert "what if" in [trace["name"] for trace in other["charts"]["prediction"]["data"]]
    half, whole = (metrics.draft_cost(costs) for costs in (WhatIf(0.5, 2).of(found.costs), found.costs))
    assert f"c = {figures.number(half)} (measured {figures.number(whole)})" in other["html"]["expectation"]
    assert set(other["charts"]) == {"prediction"}
    assert "is assumed to double v(n) − 1" in other["html"]["expectation"]
    smaller = json.loads(prediction_board(found, 0.8, WhatIf(0.5)))["html"]["expectation"]
    assert "bandwidth" not in smaller  # only the draft differs
    assert "At an acceptance of 0.80" in smaller


def test_another_pair_starts_with_nothing_imagined() -> None:
    *_, acceptance, draft, growth = reset_for(ENGINE.pair, "mine")
    assert (acceptance, WhatIf(draft, growth)) == (0.7, AS_MEASURED)


def test_a_draft_whose_cost_is_not_known_predicts_nothing() -> None:
    shown = json.loads(prediction_board(pair_costs(draft_step=None), 0.8))
    assert "nothing can be predicted" in shown["html"]["expectation"]
    assert shown["charts"] == {}


def test_costs_of_more_lengths_are_richer_if_they_are_of_the_same_pair_and_engine() -> None:
    rich = pair_costs()
    poor = rich._replace(costs=Costs.of(rich.costs.contexts[:1]))
    assert rich.richer_than(poor)
    assert not poor.richer_than(rich)
    assert not rich.richer_than(rich)
    assert not rich.richer_than(poor._replace(engine="genai"))
    assert not rich.richer_than(poor._replace(pair=ENGINE.pair.model_copy(update={"name": "another"})))


@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_a_sweep_keeps_richer_costs_and_tells_the_acceptance_of_a_draft_model_alone(drafter: str) -> None:
    sweep_, rich = swept()[-1].result, pair_costs()
    poor = Costs.of(rich.costs.contexts[:1])
    settings = sweep_.settings.model_copy(update={"drafter": drafter})
    sweep_ = sweep_.model_copy(update={"costs": poor, "settings": settings})
    assert sweep_.acceptance is not None
    update = after_sweep(sweep_, ENGINE.pair, rich)
    assert update.measured is rich
    assert update.alpha == (round(sweep_.acceptance, 2) if drafter == "model" else gr.skip())
    assert after_sweep(sweep_, ENGINE.pair, None).measured == PairCosts(ENGINE.pair, "traced", poor)


def test_the_terminal_tells_what_steps_cost_and_explains_predictions_only_where_there_are() -> None:
    sweep_ = swept()[-1].result
    step, drafted = costs().plain_step, costs().draft_step
    assert drafted is not None
    shown = printed(sweep_)
    assert (
        f"plain step {step * 1000:.2f} ms, draft step {drafted * 1000:.2f} ms, c = {drafted / step:.2f}, a round's "
        f"first {drafted * 1000:.2f} ms, v(2)" in shown
    )
    assert f"v(17) = {costs().verify[16] / step:.2f}" in shown
    assert "Predicted: τ / (d(γ) + v(γ+1))" in shown
    assert "Predicted" not in printed(sweep_.model_copy(update={"prediction": None}))
    assert "Step costs" not in printed(sweep_.model_copy(update={"costs": None}))


def printed(sweep_: Sweep) -> str:
    console = Console(file=StringIO(), width=400)
    print_report(console, sweep_.report())
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_benchmark_board_says_whether_outputs_were_identical() -> None:
    tasks = [Task(name="one", task="tales", prompt="Say"), Task(name="two", task="<b>", prompt="Say more")]
    states = list(bench(BenchPlan(ENGINE.pair, tasks, SETTINGS, ["traced constant"], repeats=2), lambda name: ENGINE))
    assert isinstance(states[-1], Progress)
    shown = json.loads(result_board(states[-1].result))
    assert "identical" in shown["html"]["table"]
    assert "&lt;b&gt;" in shown["html"]["table"]
    assert shown["charts"]["speedup"]["data"][0]["name"] == "traced constant"
    assert json.loads(EMPTY) == {"html": {}, "charts": {}, "whole": True}


class Sessions:
    """Sessions that yield this progress, then perhaps fail."""

    def __init__(self, *progress: object, error: EngineError | None = None) -> None:
        self._progress, self._error = progress, error

    def measure(self, visitor: str, what: str, job: Prepare) -> Iterator[object]:
        yield from self._progress
        if self._error is not None:
            raise self._error


def shown(sessions: Sessions) -> list[Any]:
    return list(job_updates(sessions, "visitor", "sweep", JOB, lambda state: f"{state.done} done"))  # type: ignore[arg-type]


def test_phases_and_progress_are_told_and_the_end_clears_them() -> None:
    sweep_ = swept()[-1].result
    half, whole = (Progress(done, 2, 61.0, sweep_) for done in (1, 2))
    phase, first, last = shown(Sessions(Phase("loading"), half, whole))
    assert "Loading the models" in phase.message
    assert "1 of 2, about 1 min 1 s left" in first.message
    assert (last.message, last.board, last.state) == ("", "2 done", whole)


def test_what_is_finished_stays_after_a_stop_and_after_a_failure() -> None:
    half = Progress(1, 2, None, swept()[-1].result)
    assert "Stopped after 1 of 2; finished results are kept" in shown(Sessions(half))[-1].message
    failed = shown(Sessions(half, error=EngineError()))[-1]
    assert 'role="alert"' in failed.message
    assert (failed.board, failed.state) == ("1 done", half)
    assert shown(Sessions(error=EngineError()))[-1].board == gr.skip()
    assert "before anything was measured" in shown(Sessions())[-1].message


TASK = Task(name="one", task="tales", prompt="Say")


def loads(name: str) -> ScriptedEngine:
    return ENGINE


def benchmarked(error: EngineError | None = None) -> list[list[Any]]:
    """Every update of message, board, reports, start and stop."""
    states = list(bench(BenchPlan(ENGINE.pair, [TASK], SETTINGS, ["traced constant"], repeats=2), loads))
    visitor = SimpleNamespace(session_hash="visitor")
    callbacks = ExperimentCallbacks(Sessions(*states, error=error), KIND)  # type: ignore[arg-type]
    return list(callbacks.measure(visitor, True, ENGINE.pair, None, None, 1, 2, 40, False, ["traced constant"]))  # type: ignore[arg-type]


def test_memory_that_cannot_be_measured_is_told_beside_the_finished_figures() -> None:
    *_, failed, last = benchmarked(EngineError("The process that measured memory ended; choose smaller models."))
    assert 'role="alert">The process that measured memory ended; choose smaller models.' in failed[0]
    assert "identical" in json.loads(failed[1])["html"]["table"]
    assert last[0] == gr.skip()
    assert [Path(path).suffix for path in last[2]["value"]] == [".json", ".md", ".csv", ".html"]


def test_nothing_of_a_benchmark_stays_but_the_latest_unfinished_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    benchmarked()
    assert not list(tmp_path.rglob("specdemo-bench*"))  # Gradio has its own copy by now
    (folder,) = tmp_path.rglob("experiments/bench")
    for number in range(60):
        (folder / f"{number}.rows.jsonl").touch()
        os.utime(folder / f"{number}.rows.jsonl", (number, number))
    benchmarked()
    assert {path.name for path in folder.iterdir()} == {f"{number}.rows.jsonl" for number in range(10, 60)}


@pytest.mark.parametrize("to_its_end", [True, False])
def test_memory_is_measured_after_the_rows_until_a_stop(to_its_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured_memory(*arguments: object) -> MemoryUse | None:
        return None if stopped else MemoryUse(engine="traced", side="plain", resident=2, peak=3)

    bound = Bound(
        read_bandwidth=1, copy_bandwidth=1, array_bytes=1, threads=1, weights=1, cache_per_token=1, context=1
    )
    monkeypatch.setattr(bench_run, "measure_memory", measured_memory)
    monkeypatch.setattr(bench_run, "measure_bound", lambda *_: bound)
    stopped: list[bool] = []
    states = []
    plan = BenchPlan(ENGINE.pair, [TASK], SETTINGS, ["traced constant"], repeats=1)
    for state in run_with_extras(plan, loads, stop=lambda: bool(stopped)):
        states.append(state)
        if not to_its_end and state.doing == "measuring memory":
            stopped.append(True)
    *_, measuring, last = states
    assert measuring.doing == "measuring memory"
    assert last.result.complete
    assert (len(last.result.memory), last.result.bound) == ((2, bound) if to_its_end else (0, None))


def test_a_cache_that_cannot_be_written_is_told_and_nothing_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (only,) = benchmarked()
    assert 'role="alert">Finished rows cannot be saved in' in only[0]
    assert "set XDG_CACHE_HOME to a writable folder." in only[0]
