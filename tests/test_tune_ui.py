"""Boards of sweeps, step costs and benchmarks, and how a job's progress is shown, without a browser."""

import json
from collections.abc import Iterator

import gradio as gr
import pytest

from specdemo.bench import BenchProgress, bench
from specdemo.compare import Phase
from specdemo.costs import MAX_LOOKAHEAD, CostProgress, measure_contexts
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import EngineError
from specdemo.records import Costs
from specdemo.settings import GenerationSettings
from specdemo.sweep import SweepProgress, candidates, sweep
from specdemo.tasks import Task
from specdemo.ui.benchmark import bench_board
from specdemo.ui.measuring import measured
from specdemo.ui.tune import costs_board, prediction_board, sweep_board
from specdemo.worker import Job

ENGINE = ScriptedEngine(wrong=(3, 7), draft=0.001)
SETTINGS = GenerationSettings(engine="traced", max_new_tokens=40, ignore_eos=True)
JOB = Job("traced", ENGINE.pair)


def swept() -> list[SweepProgress]:
    return list(sweep(ENGINE, ["Say"], SETTINGS, candidates(SETTINGS, (1, 2, 4), (0.5,)), repeats=3, costs=costs()))


def costs() -> Costs:
    *_, last = measure_contexts(ENGINE)
    assert isinstance(last, CostProgress)
    assert last.costs is not None
    return last.costs


def test_a_sweep_shows_what_it_measured_and_says_what_is_predicted() -> None:
    sweep_ = swept()[-1].sweep
    shown = json.loads(sweep_board(sweep_))
    assert sweep_.recommendation.sentence in shown["html"]["recommendation"]
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
    shown = json.loads(sweep_board(swept()[0].sweep))
    assert shown == {"html": {"recommendation": "", "table": ""}, "charts": {}}


def test_step_costs_and_what_they_let_one_expect() -> None:
    known = costs()
    shown = json.loads(costs_board(known, 0.8, "model"))
    assert [len(trace["x"]) for trace in shown["charts"]["verify"]["data"]] == [MAX_LOOKAHEAD + 1] * len(
        known.contexts
    )
    assert "Predicted, not measured" in shown["html"]["expectation"]
    assert shown["html"]["change"] == ""  # it costs nothing in a scripted engine
    told = known.contexts[0].model_copy(update={"length_change": 0.25 * known.plain_step})
    shown = json.loads(costs_board(known.model_copy(update={"contexts": (told,)}), 0.8, "model"))
    assert "(25 % of a plain step) if the one before it had another length" in shown["html"]["change"]
    hopeless = json.loads(prediction_board(known, 0.0, "model"))
    assert "no lookahead is predicted to beat plain decoding" in hopeless["html"]["expectation"]
    assert set(hopeless["charts"]) == {"prediction"}


def test_a_draft_whose_cost_is_not_known_predicts_nothing() -> None:
    shown = json.loads(prediction_board(costs().model_copy(update={"draft_step": None}), 0.8, "model"))
    assert "nothing is predicted" in shown["html"]["expectation"]
    assert shown["charts"] == {}


def test_a_benchmark_board_says_whether_outputs_were_identical() -> None:
    tasks = [Task(name="one", task="tales", prompt="Say"), Task(name="two", task="<b>", prompt="Say more")]
    states = list(bench(lambda name: ENGINE, ENGINE.pair, tasks, SETTINGS, methods=["traced constant"], repeats=2))
    assert isinstance(states[-1], BenchProgress)
    shown = json.loads(bench_board(states[-1].bench))
    assert "identical" in shown["html"]["table"]
    assert "&lt;b&gt;" in shown["html"]["table"]
    assert shown["charts"]["speedup"]["data"][0]["name"] == "traced constant"
    assert json.loads(bench_board(states[0].bench)) == {"html": {}, "charts": {}}


class Sessions:
    """Yields given progress, then perhaps fails."""

    def __init__(self, *progress: object, error: EngineError | None = None) -> None:
        self._progress, self._error = progress, error

    def measure(self, visitor: str, what: str, job: Job) -> Iterator[object]:
        yield from self._progress
        if self._error is not None:
            raise self._error


def shown(sessions: Sessions) -> list:
    return list(measured(sessions, "visitor", "sweep", JOB, lambda state: f"{state.done} done"))  # type: ignore[arg-type]


def test_phases_and_progress_are_told_and_the_end_clears_them() -> None:
    sweep_ = swept()[-1].sweep
    half, whole = (SweepProgress(done, 2, 61.0, sweep_) for done in (1, 2))
    phase, first, last = shown(Sessions(Phase("loading"), half, whole))
    assert "Loading the models" in phase.message
    assert "1 of 2, about 1 min 1 s left" in first.message
    assert (last.message, last.board, last.state) == ("", "2 done", whole)


def test_what_is_finished_stays_after_a_stop_and_after_a_failure() -> None:
    half = SweepProgress(1, 2, None, swept()[-1].sweep)
    assert "Stopped after 1 of 2; what is finished stays" in shown(Sessions(half))[-1].message
    failed = shown(Sessions(half, error=EngineError()))[-1]
    assert 'role="alert"' in failed.message
    assert (failed.board, failed.state) == ("1 done", half)
    assert shown(Sessions(error=EngineError()))[-1].board == gr.skip()
    assert "before anything was measured" in shown(Sessions())[-1].message
