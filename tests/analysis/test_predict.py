import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.metrics import WHAT_IFS, WhatIf, expected_length, predict
from specdemo.records import Costs, Spread, StepCosts

COSTS = Costs(plain_step=0.010, draft_step=0.002, verify=(0.010, 0.011, 0.012, 0.025))


@given(st.floats(0, 0.999), st.integers(1, 16))
def test_expected_length_is_the_closed_form(acceptance: float, lookahead: int) -> None:
    closed = (1 - acceptance ** (lookahead + 1)) / (1 - acceptance)
    assert expected_length(acceptance, lookahead) == pytest.approx(closed)


def test_predictions_by_hand() -> None:
    prediction = predict(COSTS, 0.5)
    assert prediction is not None
    assert prediction.predicted == pytest.approx((1.5 / 1.3, 1.75 / 1.6, 1.875 / 3.1))
    assert prediction.textbook == pytest.approx((1.5 / 1.2, 1.75 / 1.4, 1.875 / 1.6))
    assert (prediction.best, prediction.textbook_best) == (1, 1)
    always = predict(COSTS, 1.0)
    assert always is not None
    assert (always.best, always.textbook_best) == (2, 3)  # the cliff at four tokens, which the textbook ignores


def test_nothing_pays_when_nothing_is_accepted() -> None:
    prediction = predict(COSTS, 0.0)
    assert prediction is not None
    assert prediction.best == prediction.textbook_best == 0


def test_prompt_lookup_drafts_at_no_cost_and_an_unknown_draft_predicts_nothing() -> None:
    unknown = COSTS.model_copy(update={"draft_step": None})
    assert predict(unknown, 0.5) is None
    lookup = predict(unknown, 0.5, free=True)
    assert lookup is not None
    assert lookup.textbook == pytest.approx((1.5, 1.75, 1.875))


def test_costs_without_contexts_are_read_and_written() -> None:
    old = {"plain_step": 0.01, "draft_step": None, "verify": [0.01, 0.02]}
    assert Costs.model_validate(old).contexts == ()
    spread = Spread(low=1, middle=2, high=3)
    costs = Costs.of([StepCosts(context=16, passes=(spread, spread), draft=None)])
    assert (costs.plain_step, costs.draft_step, costs.verify) == (2, None, (2, 2))
    assert Costs.model_validate_json(costs.model_dump_json()) == costs


def test_a_rounds_first_draft_step_is_told_from_the_later_ones() -> None:
    assert COSTS.later_draft_step == COSTS.draft_step  # nothing is known of the first
    costs = COSTS.model_copy(update={"first_draft_step": 0.005})
    assert costs.later_draft_step == pytest.approx(0.001)  # 5 + 1 + 1 + 1 ms are four steps of 2 ms
    assert COSTS.model_copy(update={"draft_step": None}).later_draft_step is None
    noisy = COSTS.model_copy(update={"first_draft_step": 0.1})
    assert noisy.later_draft_step == pytest.approx(0.0002)


def test_a_prediction_counts_a_rounds_first_draft_step_at_its_own_cost() -> None:
    costs = Costs(plain_step=10, draft_step=1, verify=(10.0, 12.0, 14.0), first_draft_step=1.75)
    assert [costs.drafting(n) for n in (1, 2, 4)] == [1.75, 2.5, 4]
    predicted = predict(costs, 0.5)
    assert predicted is not None
    assert predicted.predicted == pytest.approx((1.5 / 1.375, 1.75 / 1.65))
    lookup = predict(costs, 0.5, free=True)
    assert lookup is not None
    assert lookup.predicted == pytest.approx((1.5 / 1.2, 1.75 / 1.4))
    half = WhatIf(draft=0.5).of(costs)
    assert [half.drafting(n) for n in (1, 2)] == [0.875, 1.25]


def test_what_if_changes_one_cost_and_leaves_the_measured_ones() -> None:
    costs = Costs(plain_step=2.0, draft_step=0.5, verify=(2.0, 2.4, 3.0))
    faster, wider = (WHAT_IFS[name].of(costs) for name in ("A draft twice as fast", "Twice the memory bandwidth"))
    assert (faster.draft_step, faster.verify) == (0.25, costs.verify)
    assert (wider.draft_step, wider.verify) == (0.5, (2.0, 2.8, 4.0))
    assert predict(WHAT_IFS["As measured"].of(costs), 0.7) == predict(costs, 0.7)
    free = predict(WhatIf(growth=0).of(costs), 0.7)
    assert free is not None
    assert free.predicted == free.textbook
    assert WhatIf(draft=2).of(Costs(plain_step=1, draft_step=None, verify=(1.0,))).draft_step is None
