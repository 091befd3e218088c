"""Verification and sampling: outputs and draws follow the target's distribution."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.decoding import sampling
from specdemo.decoding.round import Committed, rejection_sample, rounds
from specdemo.decoding.sampling import distribution, draw, entropy, greedy_choice, penalised
from specdemo.records import Outcome, outcomes_from_counts, outcomes_from_ids
from specdemo.settings import Sampling

A, R, D = Outcome.ACCEPTED, Outcome.REJECTED, Outcome.DISCARDED
small_ids = st.lists(st.integers(0, 2), max_size=6)


def test_a_round_explains_its_proposals_and_may_end_on_an_accepted_one() -> None:
    assert outcomes_from_ids([1, 2, 3, 4], [1, 2, 9]) == [A, A, R, D]
    assert outcomes_from_ids([1, 0, 3], [1, 0], ended=True) == [A, A, D]


@given(small_ids, st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_outcomes_follow_from_committed_tokens_unless_the_round_is_impossible(
    proposed: list[int], committed: list[int]
) -> None:
    possible = proposed[: len(committed) - 1] == committed[:-1] and (
        len(proposed) < len(committed) or proposed[len(committed) - 1] != committed[-1]
    )
    expected = [*outcomes_from_counts(len(proposed), len(committed) - 1)] if possible else None
    assert outcomes_from_ids(proposed, committed) == expected


LOGITS = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))


def sampled(**settings: Any) -> np.ndarray:
    return distribution(LOGITS, Sampling(do_sample=True, **settings), ())


def test_temperature_sharpens_and_flattens() -> None:
    assert sampled() == pytest.approx([0.5, 0.25, 0.125, 0.125])
    assert sampled(temperature=0.5) == pytest.approx(np.array([16, 4, 1, 1]) / 22)


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    assert sampled(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert sampled(top_p=0.5) == pytest.approx([1, 0, 0, 0])
    assert sampled(top_p=0.51) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert sampled(top_p=0.99, top_k=1) == pytest.approx([1, 0, 0, 0])
    rising = distribution(np.arange(16, dtype=np.float32), Sampling(do_sample=True, top_k=3), ())
    assert np.flatnonzero(rising).tolist() == [13, 14, 15]
    assert sampling.greatest_probability(LOGITS, 0) == pytest.approx(0.5)


def test_a_penalty_makes_seen_tokens_less_likely() -> None:
    raw = np.array([2, -2, 1], np.float32)
    assert list(penalised(raw, [0, 1, 0], 2)) == [1, -4, 1]
    assert list(raw) == [2, -2, 1]
    assert greedy_choice(raw, Sampling(repetition_penalty=2), [0]) in (0, 2)
    assert greedy_choice(raw, Sampling(), [0]) == 0


def test_penalty_temperature_top_p_and_top_k_apply_in_this_order() -> None:
    raw = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))  # then 0.16, as seen, 0.3, 0.2 and 0.1; then squares
    settings = Sampling(do_sample=True, repetition_penalty=2, temperature=0.5, top_p=0.8, top_k=2)
    assert distribution(raw, settings, [0]) == pytest.approx([0, 9 / 13, 4 / 13, 0])
    assert [entropy(np.array(each)) for each in ([0.5, 0.25, 0.125, 0.125], [1, 0])] == [1.75, 0]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any))
def test_draws_are_as_frequent_as_they_are_probable(weights: list[int]) -> None:
    probabilities = np.array(weights) / sum(weights)
    drawn = [draw(probabilities, (index + 0.5) / sum(weights)) for index in range(sum(weights))]
    assert np.bincount(drawn, minlength=len(weights)).tolist() == weights


@pytest.mark.parametrize(
    ("uniforms", "proposed", "expected"),
    [
        ([0.39, 0.1], [0], (1, 0)),  # 0.39 < p / q = 0.4, then the bonus token
        ([0.41, 0.1], [0], (0, 1)),  # the correction is drawn from max(0, p - q), which excludes 0
        ([0.4, 0.1], [0], (0, 1)),
        ([0.99, 0.99, 0.5], [1, 1], (2, 1)),
    ],
)
def test_a_proposal_is_accepted_with_the_ratio_of_its_probabilities(
    uniforms: list[float], proposed: list[int], expected: tuple[int, int]
) -> None:
    p, q = np.array([0.2, 0.8]), np.array([0.5, 0.5])
    random = SimpleNamespace(random=iter(uniforms).__next__)
    assert rejection_sample(proposed, [q] * len(proposed), [p] * (len(proposed) + 1), random) == expected


def test_rounds_draw_if_they_sample() -> None:
    target = SimpleNamespace(read=lambda ids: (), logits=lambda ids, last: LOGITS[None])
    random: Any = SimpleNamespace(random=iter([0.6, 0.8]).__next__)
    steps = rounds([1], target, None, Sampling(do_sample=True), random, 2, frozenset())
    assert [step.ids for step in steps if isinstance(step, Committed)] == [[1], [2]]


def test_the_ends_of_the_unit_interval_draw_possible_tokens() -> None:
    probabilities = np.array([0.0, 0.3, 0.7, 0.0])
    assert draw(probabilities, 0.0) == 1
    assert draw(probabilities, np.nextafter(1, 0)) == 2
