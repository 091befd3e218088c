import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.records import Comparison, Costs, DraftToken, Outcome, Round, Run, Token
from specdemo.results import metrics
from specdemo.results.figures import columns
from specdemo.results.metrics import Loop, ceiling, expected_speedups, loop
from tests.support.machines import ratio_of_seconds, round_of
from tests.support.proposals import compared, proposals
from tests.support.random_records import comparisons, runs
from tests.support.scripted import ScriptedEngine
from tests.support.step_costs import costs_of


def test_figures_of_a_known_run() -> None:
    # Nine words: the first from the prefill, the others from three rounds of two proposals, one of them wrong.
    comparison = compared(ScriptedEngine(wrong=(5,), step=0.010, draft=0.002, extra=0.001), num_assistant_tokens=2)
    run = comparison.speculative
    assert [draft.text for draft in proposals(run.rounds[0])] == [" quick", " brown"]
    assert [step.accepted for step in run.rounds] == [2, 1, 2]
    assert [len(step.committed) for step in run.rounds] == [3, 2, 3]
    assert metrics.acceptance_rate(run) == 5 / 6
    assert metrics.mean_acceptance_length(run) == 8 / 3
    assert metrics.per_position_acceptance(run) == [1.0, 2 / 3]
    assert metrics.decode_seconds(run) == 3 * (0.010 + 2 * 0.002 + 2 * 0.001)
    assert ratio_of_seconds(comparison) == pytest.approx(8 * 0.010 / (3 * 0.016))
    assert metrics.tokens_per_second(run) == 8 / metrics.decode_seconds(run)
    assert metrics.identical(comparison)


def test_a_longer_output_differs_where_the_shorter_ended_unless_that_was_cancelled() -> None:
    comparison = compared(ScriptedEngine())
    shorter = comparison.plain.model_copy(update={"rounds": comparison.plain.rounds[:3]})
    assert metrics.first_divergence(comparison.model_copy(update={"plain": shorter})) == 4
    cancelled = shorter.model_copy(update={"finish_reason": "cancelled"})
    assert metrics.first_divergence(comparison.model_copy(update={"plain": cancelled})) is None


@given(runs, st.integers(0, 40))
def test_seconds_to_grows_with_tokens_up_to_all_seconds(run: Run, tokens: int) -> None:
    assert metrics.seconds_to(run, tokens) <= metrics.seconds_to(run, tokens + 1)
    everything = metrics.seconds_to(run, metrics.decoded_tokens(run))
    assert abs(everything - metrics.decode_seconds(run)) < 1e-6


@given(comparisons)
def test_every_figure_is_within_its_bounds(comparison: Comparison) -> None:
    for run in (comparison.plain, comparison.speculative):
        rate = metrics.acceptance_rate(run)
        assert rate is None or 0 <= rate <= 1
        by_position = metrics.per_position_acceptance(run)
        assert by_position == sorted(by_position, reverse=True)
    index = metrics.first_divergence(comparison)
    assert index is None or comparison.plain.token_ids[:index] == comparison.speculative.token_ids[:index]


def test_acceptance_counts_only_rounds_whose_proposals_are_known() -> None:
    token = Token(id=1, text="a")
    known = Round(
        committed=(token, token),
        seconds=1,
        proposed=(
            DraftToken(id=1, text="a", outcome=Outcome.ACCEPTED),
            DraftToken(id=2, text="b", outcome=Outcome.REJECTED),
        ),
    )
    unknown = Round(committed=(token,) * 4, seconds=1, proposed=None)
    run = Run(prefill=unknown, rounds=(unknown, known, unknown), finish_reason="length")
    assert metrics.acceptance_rate(run) == 0.5


COSTS = costs_of(draft=0.002, verify=(0.010, 0.011, 0.012, 0.025))


def test_a_perfect_draft_by_hand() -> None:
    assert expected_speedups(COSTS, 1.0) == pytest.approx((2 / 1.3, 3 / 1.6, 4 / 3.1))  # the cliff at four tokens
    assert ceiling(COSTS) == pytest.approx((3 / 1.6, 2))
    alone = COSTS.model_copy(update={"drafting": ()})
    assert expected_speedups(COSTS, 0.5)[:2] == pytest.approx((1.5 / 1.3, 1.75 / 1.6))
    assert (expected_speedups(alone, 1.0), ceiling(alone)) == ((), None)
    assert expected_speedups(alone, 1.0, free=True) == pytest.approx((2 / 1.1, 3 / 1.2, 4 / 2.5))


def test_draft_steps_of_a_round_add_up_to_its_drafting() -> None:
    costs = Costs(verify=(10.0, 12.0, 14.0), drafting=(0.0, 1.75, 2.5))
    assert costs.draft_step == 1.25
    assert expected_speedups(costs, 1.0) == pytest.approx((2 / 1.375, 3 / 1.65))
    assert Costs(verify=(1.0,)).draft_step is None


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([*range(40)], None),
        ([*range(10), *[7] * 23], None),  # too few tokens
        ([*range(10), *[20] * 24], Loop(10, 1)),
        ([*range(10), *[20, 21, 22] * 8, 20], Loop(10, 3)),  # cut off in the middle
        ([*range(10), *[20] * 30, 99], None),  # it ended
        ([*[*range(12)] * 3], None),  # only three times
    ],
)
def test_loops(ids: list[int], found: Loop | None) -> None:
    assert loop(ids) == found


def test_passes_are_counted_up_to_the_same_tokens() -> None:
    comparison = compared(ScriptedEngine(wrong=(5,)), num_assistant_tokens=2)
    assert metrics.passes_to(comparison) == (8, 3)
    fewer = comparison.plain.model_copy(update={"rounds": comparison.plain.rounds[:4], "finish_reason": "cancelled"})
    assert metrics.passes_to(comparison.model_copy(update={"plain": fewer})) == (4, 2)
    unknown = comparison.speculative.model_copy(update={"passes_known": False})
    assert metrics.passes_to(comparison.model_copy(update={"speculative": unknown})) is None


def test_an_answer_begins_after_thinking() -> None:
    assert metrics.answer(" <think> Hm </think> Yes.") == "Yes."
    assert metrics.answer("<think> Hm") == ""


def test_a_round_has_its_counts_and_the_parts_of_its_time() -> None:
    drafted = round_of(3, 1, 0.016).model_copy(update={"draft_seconds": 0.004, "verify_seconds": 0.008})
    alone = round_of(0, 0, 0.016).model_copy(update={"draft_seconds": 0.0, "verify_seconds": 0.016})
    first, *others = proposals(round_of(3, 3, 0.016))
    copies = tuple(draft.model_copy(update={"copied": True}) for draft in others)
    copied = round_of(3, 3, 0.016).model_copy(update={"proposed": (first, *copies)})
    unknown = round_of(3, 1, 0.032).model_copy(update={"proposed": None})
    prefill = round_of(0, 0, 0.064)
    run = Run(prefill=prefill, rounds=(alone, drafted, copied, unknown), finish_reason="length")
    assert [*columns(run)] == [
        {"round": None, "seconds": 0.0, "tokens": 1, "step": 64.0, "whole": 64.0},
        {"round": 1, "seconds": 0.016, "tokens": 2, "accepted": 0, "unaccepted": 0, "alpha": None, "copied": None}
        | {"step": 16.0, "draft": 0.0, "verify": 16.0, "rest": 0.0},
        {"round": 2, "seconds": 0.032, "tokens": 4, "accepted": 1, "unaccepted": 2, "alpha": 1 / 3, "copied": None}
        | {"step": 16.0, "draft": 4.0, "verify": 8.0, "rest": 4.0},
        {"round": 3, "seconds": 0.048, "tokens": 8, "accepted": 3, "unaccepted": 0, "alpha": 4 / 6, "copied": 2}
        | {"step": 16.0, "whole": 16.0},
        {"round": 4, "seconds": 0.08, "tokens": 10, "step": 32.0, "whole": 32.0},
    ]
