"""Verification and sampling: outputs and draws follow the target's distribution."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

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


logits = arrays(np.float32, 12, elements=st.floats(-20, 20, width=32))
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


def test_a_penalty_makes_seen_tokens_less_likely() -> None:
    raw = np.array([2, -2, 1], np.float32)
    assert list(penalised(raw, [0, 1, 0], 2)) == [1, -4, 1]
    assert list(raw) == [2, -2, 1]
    assert greedy_choice(raw, Sampling(repetition_penalty=2), [0]) in (0, 2)
    assert greedy_choice(raw, Sampling(), [0]) == 0


@given(logits, st.floats(0.05, 2), st.floats(0.01, 1), st.integers(0, 15), st.lists(st.integers(0, 11)))
def test_a_distribution_sums_to_one(
    raw: np.ndarray, temperature: float, top_p: float, top_k: int, seen: list[int]
) -> None:
    settings = Sampling(do_sample=True, temperature=temperature, top_p=top_p, top_k=top_k, repetition_penalty=1.3)
    probabilities = distribution(raw, settings, seen)
    assert probabilities.sum() == pytest.approx(1)
    assert probabilities.min() >= 0
    kept = np.count_nonzero(probabilities)
    assert 1 <= kept <= (top_k or 12)
    assert 0 <= entropy(probabilities) <= np.log2(kept) + 1e-9
    everything = distribution(raw, replace(settings, top_p=1.0, top_k=0), seen)
    assert probabilities[probabilities > 0].min() >= 0
    assert everything[probabilities > 0].min() >= everything[probabilities == 0].max(initial=0) - 1e-12


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any))
def test_draws_are_as_frequent_as_they_are_probable(weights: list[int]) -> None:
    probabilities = np.array(weights) / sum(weights)
    drawn = [draw(probabilities, (index + 0.5) / sum(weights)) for index in range(sum(weights))]
    assert np.bincount(drawn, minlength=len(weights)).tolist() == weights


def test_the_ends_of_the_unit_interval_draw_possible_tokens() -> None:
    probabilities = np.array([0.0, 0.3, 0.7, 0.0])
    assert draw(probabilities, 0.0) == 1
    assert draw(probabilities, np.nextafter(1, 0)) == 2
