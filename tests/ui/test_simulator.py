"""The simulator: curves by hand, and the values of a run."""

import json

import pytest

from specdemo.records import Comparison
from specdemo.results import estimate
from specdemo.results.simulation import Assumed, Measured
from specdemo.ui import simulator
from specdemo.ui.session import FinishedRun
from tests.support.proposals import compared
from tests.support.scripted import ScriptedEngine


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compared(ScriptedEngine(wrong=(4, 7)), num_assistant_tokens=3, max_new_tokens=24)


def test_curves_follow_the_formula() -> None:
    free = Assumed(acceptance=1, draft_step=0, slope=0).speedups
    assert free == tuple(range(2, 18))
    useless = Assumed(acceptance=0, draft_step=0.5, slope=0.25).speedups
    assert useless[:2] == pytest.approx((1 / 1.75, 1 / 2.5))
    assert Assumed(0.5, 0.25, 0.0).speedups[1] == pytest.approx(1.75 / 1.5)


def test_a_runs_own_values_predict_its_speedup(comparison: Comparison) -> None:
    last = Measured.of(comparison)
    assert last is not None
    outcomes = [token.outcome for step in comparison.speculative.rounds for token in step.proposed or ()]
    judged = [outcome for outcome in outcomes if outcome != "discarded"]
    assert last.values.acceptance == judged.count("accepted") / len(judged)  # type: ignore[arg-type]
    assert last.lookahead == pytest.approx(len(outcomes) / len(comparison.speculative.rounds))
    assert last.speedup == estimate.of_comparison(comparison)
    cost = last.values.draft_step * last.lookahead + 1 + last.values.slope * last.lookahead
    assert cost == pytest.approx(last.speedup.plain_steps_per_round, rel=0.01)


def test_the_last_run_is_marked_and_sets_the_sliders(comparison: Comparison) -> None:
    def names(finished: FinishedRun | None) -> list[str]:
        [part] = json.loads(simulator._board(finished, *Assumed()))
        return [trace["name"] for trace in part["figure"]["data"]]

    finished = FinishedRun.of("run", 1, comparison)
    assert names(None) == ["these values"]
    assert names(finished) == ["these values", "the last run's values", "measured in the last run"]
    last = finished.measured
    assert last is not None
    assert simulator._last(finished) == ["", *(round(value, 2) for value in last.values)]
    slow = last._replace(values=Assumed(acceptance=0.5, draft_step=1.3, slope=0.75))
    assert simulator._last(finished._replace(measured=slow)) == ["", 0.5, 1, 0.5], "as far as the sliders go"
    assert "Run a comparison first" in simulator._last(None)[0]
