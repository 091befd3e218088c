"""The sweep on the scripted engine, whose clocks are arithmetic, and once on the bundled pair."""

from contextlib import nullcontext
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from specdemo.engines.base import Decoder
from specdemo.engines.scripted import ScriptedEngine
from specdemo.engines.traced import TracedEngine
from specdemo.errors import FileError, PromptError, SettingsError
from specdemo.estimate import Interval, median_interval
from specdemo.experiments.checkpoint import Checkpoint
from specdemo.experiments.plan import LoadedEngine, run
from specdemo.experiments.sweep import FRESH, SweepPlan, candidates, prompts_as_tasks, sweep
from specdemo.experiments.sweep_result import Candidate, Point, Sweep, recommend
from specdemo.measure.step_costs import measure_costs
from specdemo.measure.trials import trials
from specdemo.records import Costs, ModelPair, Progress, Request
from specdemo.settings import GenerationSettings
from specdemo.strategies import Plain
from tests.conftest import PROMPTS

LONG = GenerationSettings(ignore_eos=True, max_new_tokens=121)
PAIR = ScriptedEngine().pair
HEAD = PAIR.model_copy(update={"draft": PAIR.target.model_copy(update={"head": "eagle3"})})
FEW = candidates(PAIR, LONG, lookaheads=(1, 4, 8), thresholds=())


def swept(engine: ScriptedEngine, **options: Any) -> list[Progress[Sweep]]:
    return list(sweep(engine, ("Say", "Tell"), LONG, FEW, costs=measure_costs(engine), **options))


def test_speedups_are_those_of_the_script_and_the_prediction_agrees() -> None:
    engine = ScriptedEngine(draft=0.0005, extra=0.0002)  # always right: τ is the lookahead plus one
    result = swept(engine)[-1].result
    assert [point.candidate.name for point in result.points] == ["lookahead 1", "lookahead 4", "lookahead 8"]
    assert result.acceptance == 1
    assert result.prediction is not None
    for point in result.points:
        assert len(point.speedups) == 6  # two prompts, three repeats
        assert point.identical
        lookahead = int(point.candidate.value or 0)
        assert point.speedup.middle == pytest.approx(result.prediction.predicted[lookahead - 1], rel=0.05)
        assert point.draft_share is not None
        assert point.draft_share + (point.verify_share or 0) + (point.other_share or 0) == pytest.approx(1)
    assert result.recommendation.candidate is not None
    assert result.recommendation.candidate.name == "lookahead 8"
    assert "Choose lookahead 8" in result.recommendation.sentence
    assert result.fresh is not None
    assert result.fresh.candidate == result.recommendation.candidate
    assert len(result.fresh.speedups) == FRESH
    assert engine.requests == 0


def test_progress_counts_every_run_and_holds_what_is_finished() -> None:
    states = swept(ScriptedEngine())
    assert [state.done for state in states] == list(range(27))
    assert {state.total for state in states} == {18 + FRESH}
    assert states[0].seconds_left is None
    assert states[-1].seconds_left == 0
    finished = [sum(len(point.speedups) for point in state.result.points) for state in states]
    assert finished == [*range(19), *[18] * FRESH]
    assert "Too few runs to be sure" in states[18].result.recommendation.sentence
    assert Sweep.model_validate_json(states[-1].result.model_dump_json()) == states[-1].result


def test_a_draft_that_is_always_wrong_recommends_plain_decoding() -> None:
    result = swept(ScriptedEngine(wrong=range(1000)))[-1].result
    assert result.recommendation.candidate is None
    assert result.recommendation.sentence.startswith("No setting beats plain decoding here: the best, lookahead 1")


def test_stopping_keeps_what_is_finished() -> None:
    engine, asked = ScriptedEngine(), count()
    states = swept(engine, stop=lambda: next(asked) > 700)
    assert 0 < states[-1].done < states[-1].total
    assert states[-1].result.points
    assert engine.requests == 0


def test_the_order_is_shuffled_by_the_seed() -> None:
    def order(seed: int) -> list[tuple[str, ...]]:
        states = swept(ScriptedEngine(), seed=seed)
        return [tuple(point.candidate.name for point in state.result.points) for state in states]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(6)}) > 1


def test_a_machine_that_slows_down_favours_nobody() -> None:
    """Each speculative run is compared with the mean of its neighbours, so a steady drift cancels."""

    class Slowing(ScriptedEngine):
        def decoder(self, request: Request, costs: Costs | None = None) -> Decoder:
            if isinstance(request.strategy, Plain):
                self.step, self.draft, self.extra = (1.05 * cost for cost in (self.step, self.draft, self.extra))
            return super().decoder(request, costs)

    steady, slowing = swept(ScriptedEngine())[-1].result, swept(Slowing())[-1].result
    for point, other in zip(slowing.points, steady.points, strict=True):
        assert point.speedup.middle == pytest.approx(other.speedup.middle, rel=0.03)


def test_outputs_that_differ_are_told() -> None:
    result = swept(ScriptedEngine(diverges_at=9))[-1].result
    assert not any(point.identical for point in result.points)
    assert "but outputs differ" in result.recommendation.sentence


def test_a_text_that_ends_at_once_gives_no_trial() -> None:
    engine = ScriptedEngine(words=(" the",))
    assert list(trials(engine, "Say", [GenerationSettings()], None)) == [None]


def test_what_can_be_tried() -> None:
    def names(pair: ModelPair = PAIR, **values: Any) -> list[str]:
        settings = GenerationSettings(**values)
        return [candidate.name for candidate in candidates(pair, settings, (2,), (0.5,))]

    assert names(HEAD) == ["lookahead 2"]
    assert names(HEAD, tree_depth=2, num_assistant_tokens=4) == ["lookahead 2"]
    assert names() == ["lookahead 2", "threshold 0.5"]
    assert names(drafter="lookup") == ["lookahead 2"]
    assert names(engine="traced") == ["lookahead 2", "threshold 0.5", "policy heuristic", "policy auto"]
    assert "policy auto" not in names(engine="traced", kv_cache="off")
    with pytest.raises(SettingsError, match="tree of depth 3 needs a lookahead of at least 3; give one"):
        names(HEAD, tree_depth=3, num_assistant_tokens=4)
    with pytest.raises(SettingsError, match="Only an EAGLE-3 head can propose trees; set tree_depth to 0"):
        names(tree_depth=2)
    with pytest.raises(SettingsError, match="less than or equal to 16"):
        candidates(PAIR, LONG, (17,))
    for engine in ("genai", "traced"):
        with pytest.raises(SettingsError, match="nothing to try; give at least one lookahead or threshold"):
            candidates(PAIR, GenerationSettings(engine=engine), (), ())
    with pytest.raises(SettingsError, match="less than or equal to 1, got 2"):
        candidates(HEAD, LONG, (2,), (2.0,))
    with pytest.raises(SettingsError, match="thresholds have no effect here; give at least one lookahead"):
        candidates(PAIR, GenerationSettings(drafter="lookup"), (), (0.5,))
    with pytest.raises(SettingsError, match="supports none of the settings to be tried"):
        candidates(PAIR.model_copy(update={"draft": None}), LONG)


def test_what_a_pair_cannot_do_is_left_out() -> None:
    engine = ScriptedEngine()
    tried = candidates(engine.pair, LONG, (1, 4), (0.5,))
    engine.pair = HEAD  # loaded, it turns out to be another pair
    *_, last = sweep(engine, ["Say"], LONG, tried, repeats=1)
    assert [point.candidate.name for point in last.result.points] == ["lookahead 1", "lookahead 4"]
    with pytest.raises(SettingsError, match="supports none of the settings to be tried"):
        list(sweep(engine, ["Say"], LONG, tried[2:], repeats=1))


@pytest.mark.parametrize("settings", [{"drafter": "lookup"}, {"engine": "traced", "kv_cache": "off"}], ids=str)
def test_nothing_is_predicted_where_step_costs_do_not_tell(settings: dict[str, str]) -> None:
    engine, changed = ScriptedEngine(), GenerationSettings.checked(**{**LONG.model_dump(), **settings})
    tried = candidates(engine.pair, changed, (2,), ())
    *_, last = sweep(engine, ["Say"], changed, tried, repeats=1, costs=measure_costs(engine))
    assert last.result.acceptance == 1
    assert last.result.prediction is None


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(PromptError):
        list(sweep(ScriptedEngine(), (" ",), LONG, FEW))
    states = sweep(ScriptedEngine(), ("Say", " "), LONG, FEW)
    assert next(states).done == 0
    with pytest.raises(PromptError):  # before anything is measured
        next(states)


def point(name: str, low: float | None, middle: float, high: float | None, runs: int = 5) -> Point:
    candidate = Candidate(kind="policy", name=name, value=None, settings=LONG)
    return Point(
        candidate=candidate,
        speedup=Interval(low=low, middle=middle, high=high),
        speedups=(middle,) * runs,
        identical=True,
        mean_accepted_length=2,
        acceptance_rate=None,
        token_acceptance=None,
        draft_share=None,
        verify_share=None,
        other_share=None,
    )


def test_recommendations() -> None:
    points = [point("a", None, 1.9, None), point("b", 1.0, 1.1, 1.25), point("c", 0.9, 1.0, 1.1)]
    clear = recommend(points, point("a", 1.2, 1.3, 1.4))
    assert clear.candidate is not None
    assert clear.sentence == (
        "No clear winner: any of a, b. For a: 1.30× (95 % interval 1.20–1.40) in 5 fresh runs, outputs identical."
    )
    alone = recommend(points[:1], point("a", 1.2, 1.3, 1.4))
    assert alone.sentence == "Choose a: 1.30× (95 % interval 1.20–1.40) in 5 fresh runs, outputs identical."
    unsteady = recommend(points[:1], point("a", 1.46, 4.99, 8.3))
    assert unsteady.candidate is not None
    assert unsteady.sentence.endswith("outputs identical. How much faster is uncertain: its runs differ widely.")
    many = [point(str(n), 1.0, 1 + n / 100, 1.5) for n in range(10)]
    assert recommend(many, point("9", 1.2, 1.3, 1.4)).sentence.startswith(
        "No clear winner: any of 9, 8, 7, 6, 5 and 5 more. "
    )
    for fresh, words in (
        (point("a", 0.9, 1.1, 1.3), "No setting clearly beats plain decoding here: the best, a, reached 1.10×"),
        (point("a", 0.8, 0.9, 1.1), "No setting beats plain decoding here"),
        (point("a", 0.46, 4.99, 8.3), "Inconclusive: the runs of the fastest setting, a, differ too much"),
        (point("a", None, 1.5, None, 1), "Too few runs to be sure: the fastest so far is a, 1.50× in 1 fresh run"),
        (None, "Too few runs to be sure: the fastest so far is a, 1.90× in 5 runs"),
    ):
        assert recommend(points, fresh).candidate is None
        assert recommend(points, fresh).sentence.startswith(words)
    assert recommend([]).sentence == "Nothing has been measured yet."


def test_intervals_hold_the_median_and_narrow_with_more_runs() -> None:
    assert median_interval([1.0, 1.2]) == Interval(middle=1.1)
    assert median_interval([1, 2, 3, 4, 5]).low is None
    values = [1.0, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4]
    few, many = median_interval(values), median_interval(values * 20)
    for interval in (few, many):
        assert interval.low is not None
        assert interval.high is not None
        assert interval.low <= interval.middle == 1.2 <= interval.high
    assert (many.high or 0) - (many.low or 0) < (few.high or 0) - (few.low or 0)
    assert few == median_interval(values)


@pytest.mark.openvino
def test_the_bundled_pair_is_swept(traced: TracedEngine) -> None:
    settings = GenerationSettings(engine="traced", ignore_eos=True, max_new_tokens=24)
    costs = Costs(plain_step=0.0015, draft_step=0.0003, verify=(0.0015,) * 17)
    tried = candidates(traced.pair, settings, (2, 6), (0.4,))
    *_, last = sweep(traced, PROMPTS[:1], settings, tried, repeats=1, costs=costs)
    assert (last.done, last.total) == (5 + FRESH, 5 + FRESH)
    names = [point.candidate.name for point in last.result.points]
    assert names == ["lookahead 2", "lookahead 6", "threshold 0.4", "policy heuristic", "policy auto"]
    assert all(point.identical and point.speedup.middle > 0 for point in last.result.points)
    two, six = last.result.points[:2]
    assert two.mean_accepted_length is not None
    assert six.mean_accepted_length is not None
    assert 1 < two.mean_accepted_length < six.mean_accepted_length < 7
    assert last.result.prediction is not None


def test_a_sweep_within_a_time_tries_what_fits_and_keeps_the_rest_for_fresh_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = count()
    monkeypatch.setattr(import_module("specdemo.experiments.sweep"), "perf_counter", lambda: next(now) / 100)
    tried = candidates(PAIR, LONG, range(1, 17), ())
    states = list(sweep(ScriptedEngine(), ("Say",), LONG, tried, repeats=3, seconds=10))
    last = states[-1]
    assert last.result.complete
    assert (last.done, last.seconds_left) == (last.total, 0)
    assert 1 < len(last.result.points) < 16
    assert last.result.fresh is not None
    assert last.result.recommendation.candidate is not None
    assert next(now) / 100 < 12
    left = [state.seconds_left for state in states[1:]]
    assert left == sorted(left, key=lambda seconds: -(seconds or 0))
    assert any(state.doing.startswith("best so far lookahead") for state in states)


def test_a_time_that_is_long_enough_leaves_a_sweep_as_it_is() -> None:
    *_, whole = sweep(ScriptedEngine(), ("Say",), LONG, FEW, repeats=1)
    *_, timed = sweep(ScriptedEngine(), ("Say",), LONG, FEW, repeats=1, seconds=1e6)
    assert timed.result == whole.result


def test_a_sweep_resumes(tmp_path: Path) -> None:
    asked, checkpoint, engine = count(), Checkpoint(tmp_path / "sweep.rows.jsonl"), ScriptedEngine()
    plan = SweepPlan(engine.pair, prompts_as_tasks(["Say", "Tell"]), LONG, FEW)
    loaded = LoadedEngine(engine, None)
    *_, cut = run(plan, loaded=loaded, checkpoint=checkpoint, stop=lambda: next(asked) > 700)
    resumed = list(run(plan, loaded=loaded, checkpoint=checkpoint))
    assert 0 < cut.done < cut.total
    assert resumed[0].done == cut.done
    assert resumed[-1].result.complete
    assert resumed[-1].result.fresh is not None


def test_a_sweep_with_another_number_of_repeats_does_not_resume(tmp_path: Path) -> None:
    """Its fresh runs would be taken for others."""
    checkpoint, engine = Checkpoint(tmp_path / "sweep.rows.jsonl"), ScriptedEngine()
    for repeats in (3, 2):
        plan = SweepPlan(engine.pair, prompts_as_tasks(["Say"]), LONG, FEW, repeats=repeats)
        with nullcontext() if repeats == 3 else pytest.raises(FileError, match="another number of repeats"):
            list(run(plan, loaded=LoadedEngine(engine, None), checkpoint=checkpoint))
