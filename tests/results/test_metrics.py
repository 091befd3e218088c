import pytest

from specdemo.records import Costs, DraftCounts, DraftToken, Outcome, Round, Run, Token
from specdemo.results import metrics
from specdemo.results.metrics import Loop, ceiling, expected_speedups, loop
from specdemo.results.simulation import RunValues
from tests.support.proposals import compared, proposals
from tests.support.scripted import ScriptedEngine
from tests.support.step_costs import costs_of


def without_ids(step: Round) -> tuple[Token, ...]:
    return tuple(token.model_copy(update={"id": None}) for token in step.committed)


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
    assert metrics.tokens_per_second(run) == 8 / metrics.decode_seconds(run)
    assert metrics.time_per_token(run) == pytest.approx(0.048 / 8)
    assert metrics.race_seconds(comparison) == pytest.approx(2 * 0.05 + 8 * 0.010 + 0.048)
    assert [metrics.seconds_to(run, tokens) for tokens in (0, 3, 4, 8)] == pytest.approx([0, 0.016, 0.024, 0.048])
    assert metrics.identical(comparison)
    values = RunValues.of(comparison)
    assert values is not None
    assert values.values == pytest.approx((5 / 6, 0.2, 0.1))
    assert values.lookahead == 2
    empty = run.model_copy(update={"rounds": ()})
    assert metrics.time_per_token(empty) is metrics.tokens_per_second(empty) is metrics.acceptance_rate(empty) is None


def test_a_longer_output_differs_where_the_shorter_ended_unless_that_was_cancelled() -> None:
    comparison = compared(ScriptedEngine())
    shorter = comparison.plain.model_copy(update={"rounds": comparison.plain.rounds[:3]})
    assert metrics.first_divergence(comparison.model_copy(update={"plain": shorter})) == 4
    cancelled = shorter.model_copy(update={"finish_reason": "cancelled"})
    assert metrics.first_divergence(comparison.model_copy(update={"plain": cancelled})) is None
    for at in (0, 5, 8):  # by ids, and by texts
        parted = compared(ScriptedEngine(diverges_at=at))
        run = parted.speculative
        rounds = [each.model_copy(update={"committed": without_ids(each)}) for each in run.rounds]
        nameless = run.model_copy(update={"rounds": tuple(rounds)})
        assert metrics.divergence(parted.plain, run) == metrics.divergence(parted.plain, nameless) == at


def test_acceptance_counts_only_rounds_whose_proposals_are_known() -> None:
    token = Token(id=1, text="a")
    known = Round(
        committed=(token, token),
        seconds=1,
        proposed=(
            DraftToken(id=1, text="a", outcome=Outcome.ACCEPTED, draft_probability=0.29),
            DraftToken(id=2, text="b", outcome=Outcome.REJECTED, draft_probability=1.0),
            DraftToken(id=3, text="c", outcome=Outcome.DISCARDED, draft_probability=0.5),
            DraftToken(id=4, text="d", outcome=Outcome.DISCARDED),
        ),
    )
    unknown = Round(committed=(token,) * 4, seconds=1, proposed=None)
    run = Run(prefill=unknown, rounds=(unknown, known, unknown), finish_reason="length")
    assert (metrics.acceptance_rate(run), metrics.judged_acceptance(run)) == (1 / 4, 1 / 2)
    assert metrics.acceptance_by_confidence(run) == {2: (1, 1), 9: (0, 1)}


COSTS = costs_of(draft=0.002, verify=(0.010, 0.011, 0.012, 0.025))


def test_a_perfect_draft_by_hand() -> None:
    assert expected_speedups(COSTS, 1.0) == pytest.approx((2 / 1.3, 3 / 1.6, 4 / 3.1))  # the cliff at four tokens
    assert ceiling(COSTS) == pytest.approx((3 / 1.6, 2))
    assert [COSTS.round_cost(n, free=True) for n in (0, 3, 4)] == [1, pytest.approx(2.5), None]
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
        ([*[*range(6)] * 4], Loop(0, 6)),
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
    counts = DraftCounts(rounds=3, proposed=6, accepted=5, by_position=(3, 2))
    reported = unknown.model_copy(update={"draft_counts": counts})
    assert metrics.passes_to(comparison.model_copy(update={"speculative": reported})) == (8, 3)
    assert metrics.passes_to(comparison.model_copy(update={"plain": fewer, "speculative": reported})) is None
    assert metrics.per_position_acceptance(reported) == [1, 2 / 3]
    assert metrics.per_position_acceptance(unknown) == []


def test_an_answer_begins_after_thinking() -> None:
    assert metrics.answer(" <think> Hm </think> Yes.") == "Yes."
    assert metrics.answer("<think> Hm") == ""
