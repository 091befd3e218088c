"""How long the target's passes are made."""

from hypothesis import given
from hypothesis import strategies as st

from specdemo.decoding.steps import QueryLength
from specdemo.records import Costs, Spread, StepCosts


def costs(change: float | None) -> Costs:
    """A pass over n tokens takes 10 + n seconds, and `change` more after one of another length."""
    passes = tuple(Spread(low=0, middle=11 + n, high=99) for n in range(17))
    return Costs.of([StepCosts(context=16, passes=passes, draft=None, length_change=change)])


def test_without_a_cost_of_changes_nothing_is_superfluous() -> None:
    for width in (QueryLength(None), QueryLength(costs(None)), QueryLength(costs(0))):
        assert [width.of(needed) for needed in (1, 5, 3, 9, 1)] == [1, 5, 3, 9, 1]


def test_it_grows_at_once_and_shrinks_when_a_change_would_have_paid() -> None:
    width = QueryLength(costs(6))
    assert [width.of(needed) for needed in (5, 4, 2)] == [5, 5, 5]  # superfluous: 1 + 3 seconds
    assert width.of(5) == 5  # all are needed again, so the count begins anew
    assert [width.of(needed) for needed in (2, 3)] == [5, 5]  # 3 + 2
    assert width.of(2) == 3  # 8: to the most that was needed meanwhile
    assert width.of(4) == 4


def test_what_was_not_measured_is_fed_as_it_is() -> None:
    width = QueryLength(costs(1000))
    assert [width.of(needed) for needed in (17, 40, 3, 18)] == [17, 40, 3, 18]


@given(st.lists(st.integers(1, 30)), st.floats(0, 50))
def test_it_is_never_too_narrow(needs: list[int], change: float) -> None:
    width = QueryLength(costs(change))
    for needed in needs:
        assert needed <= width.of(needed) <= max(needed, 17)
