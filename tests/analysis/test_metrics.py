from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo import metrics
from specdemo.engines.scripted import ScriptedEngine
from specdemo.measure.race import race
from specdemo.records import Comparison, Costs, DraftToken, Outcome, Round, Run, Token
from specdemo.settings import GenerationSettings
from tests.support.proposals import proposals
from tests.support.random_records import comparisons, rounds, runs


def compare(engine: ScriptedEngine, **settings: Any) -> Comparison:
    *_, comparison = race(engine, "Say", GenerationSettings(**settings))
    assert isinstance(comparison, Comparison)
    return comparison


def test_figures_of_a_known_run() -> None:
    # Nine words: the prefill says the first, three rounds of two proposals the others; one proposal is wrong.
    comparison = compare(ScriptedEngine(wrong=(5,), step=0.010, draft=0.002, extra=0.001), num_assistant_tokens=2)
    run = comparison.speculative
    assert [draft.text for draft in proposals(run.rounds[0])] == [" quick", " brown"]
    assert [step.accepted for step in run.rounds] == [2, 1, 2]
    assert [len(step.committed) for step in run.rounds] == [3, 2, 3]
    assert metrics.acceptance_rate(run) == 5 / 6
    assert metrics.mean_accepted_length(run) == 8 / 3
    assert metrics.per_position_acceptance(run) == [1.0, 2 / 3]
    assert metrics.decode_seconds(run) == 3 * (0.010 + 2 * 0.002 + 2 * 0.001)
    assert metrics.speedup(comparison) == pytest.approx(8 * 0.010 / (3 * 0.016))
    assert metrics.tokens_per_second(run) == 8 / metrics.decode_seconds(run)
    assert metrics.identical(comparison)


def test_plain_decoding_has_unit_accepted_length_and_no_acceptance() -> None:
    plain = compare(ScriptedEngine()).plain
    assert metrics.mean_accepted_length(plain) == 1
    assert metrics.acceptance_rate(plain) is None
    assert metrics.per_position_acceptance(plain) == []


def test_divergence_is_found_at_its_token() -> None:
    comparison = compare(ScriptedEngine(diverges_at=4))
    assert metrics.first_divergence(comparison) == 4
    assert not metrics.identical(comparison)


def test_a_longer_output_differs_where_the_shorter_ended_unless_that_was_cancelled() -> None:
    comparison = compare(ScriptedEngine())
    shorter = comparison.plain.model_copy(update={"rounds": comparison.plain.rounds[:3]})
    assert metrics.first_divergence(comparison.model_copy(update={"plain": shorter})) == 4
    cancelled = shorter.model_copy(update={"finish_reason": "cancelled"})
    assert metrics.first_divergence(comparison.model_copy(update={"plain": cancelled})) is None


def test_speedup_compares_the_same_number_of_tokens() -> None:
    comparison = compare(ScriptedEngine(), ignore_eos=True, max_new_tokens=41)
    half = comparison.plain.model_copy(update={"rounds": comparison.plain.rounds[:20], "finish_reason": "cancelled"})
    whole, part = metrics.speedup(comparison), metrics.speedup(comparison.model_copy(update={"plain": half}))
    assert whole is not None
    assert part is not None
    assert abs(whole - part) < 1e-9


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
        running = metrics.running_acceptance(run.rounds)
        assert len(running) == len(run.rounds)
        assert all(rate is None or 0 <= rate <= 1 for rate in running)
    index = metrics.first_divergence(comparison)
    assert index is None or comparison.plain.token_ids[:index] == comparison.speculative.token_ids[:index]


@given(st.lists(rounds(), min_size=1).map(tuple))
def test_running_acceptance_ends_at_the_acceptance_rate(steps: tuple[Round, ...]) -> None:
    run = Run(prefill=Round(committed=(Token(id=0, text=""),), seconds=1), rounds=steps, finish_reason="length")
    rate = metrics.acceptance_rate(run)
    if rate is not None:
        assert metrics.running_acceptance(steps)[-1] == rate


def test_acceptance_counts_only_rounds_whose_proposals_are_known() -> None:
    token = Token(id=1, text="a")
    known = Round(
        committed=(token, token),
        seconds=1,
        proposed=(
            DraftToken(id=1, text="a", verdict=Outcome.ACCEPTED),
            DraftToken(id=2, text="b", verdict=Outcome.REJECTED),
        ),
    )
    unknown = Round(committed=(token,) * 4, seconds=1, proposed=None)
    assert metrics.running_acceptance((unknown, known, unknown)) == [None, 0.5, 0.5]


def test_step_costs_are_ratios_to_a_plain_step() -> None:
    costs = Costs(plain_step=0.010, draft_step=0.002, verify=(0.010, 0.011, 0.015))
    assert metrics.draft_cost(costs) == 0.2
    assert metrics.verify_cost(costs, 1) == 1
    assert metrics.verify_cost(costs, 3) == 1.5
    assert metrics.verify_cost(costs, 4) is None
    assert metrics.verify_cost(costs, 0) is None
