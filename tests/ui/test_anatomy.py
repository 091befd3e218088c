"""The Anatomy tab: the parts of a run, and the simulator with curves by hand and the values of a run."""

import json

import pytest
from hypothesis import given, settings

from specdemo.exports.schema import from_json, to_json
from specdemo.records import Comparison
from specdemo.results import estimate, metrics
from specdemo.results.figures import CHARTS, chart
from specdemo.results.simulation import Assumptions, RunValues
from specdemo.ui import simulator
from specdemo.ui.feed import anatomy
from specdemo.ui.session import FinishedRun
from tests.support.proposals import compared, proposals
from tests.support.random_records import comparisons
from tests.support.scripted import ScriptedEngine


@settings(max_examples=10)  # each draws five charts
@given(comparisons)
def test_any_comparison_has_an_anatomy(comparison: Comparison) -> None:
    view = anatomy(comparison)
    assert "NaN" not in json.dumps(view)
    known = bool(metrics.acceptance_by_confidence(comparison.speculative))
    assert ("figure" in view[0], "paragraphs" in view[0]) == (known, not known), "a chart without data says why"
    for name in CHARTS:
        assert "NaN" not in chart(comparison, name).to_json()


def test_copied_and_drafted_tokens_are_counted_apart() -> None:
    plain = compared(num_assistant_tokens=3)
    first, *others = plain.speculative.rounds
    copies = tuple(token.model_copy(update={"copied": True, "draft_probability": 1.0}) for token in proposals(first))
    rounds = (first.model_copy(update={"proposed": copies}), *others)
    comparison = plain.model_copy(update={"speculative": plain.speculative.model_copy(update={"rounds": rounds})})
    assert metrics.acceptance_by_source(plain.speculative) == {}
    assert metrics.acceptance_by_confidence(comparison.speculative) == {}  # a copy has none
    assert anatomy(comparison)[-1]["rows"] == [
        ("drafted", "6", "67 %", "3", "50 %"),
        ("copied", "3", "33 %", "3", "100 %"),
    ]
    assert [trace.y for trace in chart(comparison, "acceptance").data if trace.name == "of them copied"] == [(3,)]
    assert from_json(to_json(comparison)) == comparison


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compared(ScriptedEngine(wrong=(4, 7)), num_assistant_tokens=3, max_new_tokens=24)


def test_curves_follow_the_formula() -> None:
    free = Assumptions(acceptance=1, draft_step=0, slope=0).speedups
    assert free == tuple(range(2, 18))
    useless = Assumptions(acceptance=0, draft_step=0.5, slope=0.25).speedups
    assert useless[:2] == pytest.approx((1 / 1.75, 1 / 2.5))
    assert Assumptions(0.5, 0.25, 0.0).speedups[1] == pytest.approx(1.75 / 1.5)


def test_a_runs_own_values_predict_its_speedup(comparison: Comparison) -> None:
    last = RunValues.of(comparison)
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
        [part] = json.loads(simulator._board(finished, *Assumptions()))
        return [trace["name"] for trace in part["figure"]["data"]]

    finished = FinishedRun.of("run", 1, comparison)
    assert names(None) == ["these values"]
    assert names(finished) == ["these values", "the last run's values", "measured in the last run"]
    last = finished.measured
    assert last is not None
    assert simulator._last(finished) == ["", *(round(value, 2) for value in last.values)]
    slow = last._replace(values=Assumptions(acceptance=0.5, draft_step=1.3, slope=0.75))
    assert simulator._last(finished._replace(measured=slow)) == ["", 0.5, 1, 0.5], "as far as the sliders go"
    assert "Run a comparison first" in simulator._last(None)[0]
