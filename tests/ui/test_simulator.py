"""The simulator: curves by hand, and the values of a run."""

import json

import pytest

from specdemo.records import Comparison
from specdemo.results import estimate
from specdemo.ui import simulator
from specdemo.ui.session import FinishedRun
from specdemo.ui.simulator import Assumed, measured
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
    last = measured(comparison)
    assert last is not None
    verdicts = [token.verdict for step in comparison.speculative.rounds for token in step.proposed or ()]
    judged = [verdict for verdict in verdicts if verdict != "discarded"]
    assert last.values.acceptance == judged.count("accepted") / len(judged)  # type: ignore[arg-type]
    assert last.lookahead == pytest.approx(len(verdicts) / len(comparison.speculative.rounds))
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
    last = measured(comparison)
    assert last is not None
    assert simulator._last(finished) == [round(value, 2) for value in last.values]
    assert len(simulator._last(None)) == 3
