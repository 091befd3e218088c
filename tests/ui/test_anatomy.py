import json

from hypothesis import given, settings

from specdemo.exports.schema import from_json, to_json
from specdemo.records import Comparison, Outcome
from specdemo.results import metrics
from specdemo.results.figures import CHARTS, chart
from specdemo.ui.feed import anatomy
from tests.support.proposals import compared, proposals
from tests.support.random_records import comparisons


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


def test_acceptance_by_confidence_leaves_out_discarded_proposals() -> None:
    run = compared().speculative
    assert metrics.acceptance_by_confidence(run) == {}  # the scripted draft has no probabilities
    sure = [
        step.model_copy(
            update={"proposed": tuple(d.model_copy(update={"draft_probability": 1.0}) for d in proposals(step))}
        )
        for step in run.rounds
    ]
    [(tenth, (accepted, judged))] = metrics.acceptance_by_confidence(run.model_copy(update={"rounds": sure})).items()
    outcomes = [draft.outcome for step in run.rounds for draft in proposals(step)]
    assert tenth == 9
    assert (accepted, judged) == (outcomes.count(Outcome.ACCEPTED), len(outcomes) - outcomes.count(Outcome.DISCARDED))
