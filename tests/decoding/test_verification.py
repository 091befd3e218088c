"""Verification and sampling: the distribution of outputs is the target's, and draws follow it."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specdemo.decoding.verification import (
    block_chances,
    block_verify,
    distribution,
    draw,
    entropy,
    greedy_choice,
    judge,
    penalised,
    rejection_sample,
)
from specdemo.records import Outcome, outcomes_from_counts
from specdemo.settings import Sampling

A, R, D = Outcome.ACCEPTED, Outcome.REJECTED, Outcome.DISCARDED
small_ids = st.lists(st.integers(0, 2), max_size=6)


def test_examples() -> None:
    assert judge([1, 2, 3], [1, 2, 9]) == [A, A, R]
    assert judge([1, 2, 3], [9]) == [R, D, D]
    assert judge([1, 2], [1, 2, 9]) == [A, A]
    assert judge([], [9]) == []


def test_a_run_can_end_on_an_accepted_token() -> None:
    assert judge([1, 0, 3], [1, 0], ended=True) == [A, A, D]
    assert judge([1, 0, 3], [1, 0], ended=False) is None


@given(small_ids, small_ids)
def test_greedy_verification_reproduces_its_own_rounds(proposed: list[int], target: list[int]) -> None:
    """Whatever the target would choose, the round it commits explains the proposals."""
    target = (target + [7] * len(proposed) + [7])[: len(proposed) + 1]
    accepted = next((i for i, (p, t) in enumerate(zip(proposed, target, strict=False)) if p != t), len(proposed))
    outcomes = judge(proposed, target[: accepted + 1])
    assert outcomes == outcomes_from_counts(len(proposed), accepted)


@given(small_ids, st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_impossible_rounds_are_told_apart(proposed: list[int], committed: list[int]) -> None:
    outcomes = judge(proposed, committed)
    possible = proposed[: len(committed) - 1] == committed[:-1] and (
        len(proposed) < len(committed) or proposed[len(committed) - 1] != committed[-1]
    )
    assert (outcomes is not None) == possible


@given(st.integers(0, 8), st.integers(0, 8))
def test_at_most_one_proposal_of_a_round_is_rejected(proposed: int, accepted: int) -> None:
    outcomes = outcomes_from_counts(proposed, min(accepted, proposed))
    assert len(outcomes) == proposed
    assert outcomes.count(R) == (accepted < proposed)


def weights(tokens: int) -> st.SearchStrategy[np.ndarray]:
    """Distributions over so many tokens, often with zeros."""
    parts = st.lists(st.integers(0, 4), min_size=tokens, max_size=tokens).filter(any)
    return parts.map(lambda parts: np.array(parts) / sum(parts))


@st.composite
def models(draw: st.DrawFn) -> dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]]:
    """Distributions of target and draft after every text of at most two tokens out of three."""
    texts = [(), *((a,) for a in range(3)), *((a, b) for a in range(3) for b in range(3))]
    return {text: (draw(weights(3)), draw(weights(3))) for text in texts}


Rule = Callable[[list[int], list[np.ndarray], list[np.ndarray]], tuple[list[float], list[np.ndarray]]]


def outputs(model: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]], rule: Rule) -> dict[tuple[int, ...], float]:
    """Exact distribution of the first three tokens, if a round proposes two and the target alone writes the rest."""
    found = defaultdict[tuple[int, ...], float](float)

    def write(text: tuple[int, ...], chance: float) -> None:
        if len(text) == 3:
            found[text] += chance
        else:
            for token in range(3):
                write((*text, token), chance * model[text][0][token])

    for proposed in product(range(3), repeat=2):
        drafts = [model[proposed[:index]][1] for index in range(2)]
        targets = [model[proposed[:index]][0] for index in range(3)]
        drawn = drafts[0][proposed[0]] * drafts[1][proposed[1]]
        if not drawn:
            continue
        chances, residuals = rule(list(proposed), drafts, targets)
        missed = 1.0
        for length in (2, 1, 0):  # the longest prefix that is taken counts
            taken = missed * (chances[length - 1] if length else 1.0)
            missed -= taken
            for token in range(3):
                own = residuals[length][token] / residuals[length].sum()
                write((*proposed[:length], token), drawn * taken * own)
    return found


def alone(model: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]]) -> dict[tuple[int, ...], float]:
    return {
        text: float(np.prod([model[text[:index]][0][text[index]] for index in range(3)]))
        for text in product(range(3), repeat=3)
    }


@settings(max_examples=200, deadline=None)
@given(models())
def test_block_verification_keeps_the_targets_joint_distribution(
    model: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]],
) -> None:
    found, expected = outputs(model, block_chances), alone(model)
    assert {text: found[text] for text in expected} == pytest.approx(expected, abs=1e-9)


def test_that_enumeration_finds_a_wrong_rule() -> None:
    def wrong(
        proposed: list[int], drafts: list[np.ndarray], targets: list[np.ndarray]
    ) -> tuple[list[float], list[np.ndarray]]:
        chances, residuals = block_chances(proposed, drafts, targets)
        return [min(1.0, 1.5 * chance) for chance in chances], residuals

    random = np.random.default_rng(0)
    model = {text: (random.dirichlet([1] * 3), random.dirichlet([1] * 3)) for text in [*texts_of_two()]}
    assert outputs(model, wrong) != pytest.approx(alone(model), abs=1e-4)
    assert outputs(model, block_chances) == pytest.approx(alone(model))


def texts_of_two() -> Iterator[tuple[int, ...]]:
    yield from ((), *((a,) for a in range(3)), *product(range(3), repeat=2))


def test_a_block_accepts_at_least_as_many_as_token_by_token() -> None:
    random, counts = np.random.default_rng(1), {"block": 0, "token": 0}
    for _ in range(4000):
        drafts = [np.array([0.5, 0.3, 0.2])] * 4
        targets = [np.array([0.2, 0.3, 0.5])] * 5
        proposed = [int(random.choice(3, p=q)) for q in drafts]
        counts["block"] += block_verify(proposed, drafts, targets, random).accepted
        counts["token"] += rejection_sample(proposed, drafts, targets, random).accepted
    assert counts["block"] > 1.02 * counts["token"]


@given(models(), st.integers(0, 2), st.integers(0, 2), st.integers(0, 99))
def test_a_round_of_block_verification_explains_its_proposals(
    model: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]], first: int, second: int, seed: int
) -> None:
    proposed = [first, second]
    drafts, targets = ([model[tuple(proposed[:n])][side] for n in range(3)] for side in (1, 0))
    if drafts[0][first] * drafts[1][second] == 0:
        return
    accepted, own = block_verify(proposed, drafts[:2], targets, np.random.default_rng(seed))
    assert judge(proposed, [*proposed[:accepted], own]) == outcomes_from_counts(2, accepted)


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
    assert list(penalised(raw, {0, 1}, 2)) == [1, -4, 1]
    assert list(raw) == [2, -2, 1]
    assert greedy_choice(raw, Sampling(repetition_penalty=2), {0}) in (0, 2)
    assert greedy_choice(raw, Sampling(), {0}) == 0


@given(logits, st.floats(0.05, 2), st.floats(0.01, 1), st.integers(0, 15), st.sets(st.integers(0, 11)))
def test_a_distribution_is_one(raw: np.ndarray, temperature: float, top_p: float, top_k: int, seen: set[int]) -> None:
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


@given(logits)
def test_greedy_takes_what_its_distribution_says_is_likeliest(raw: np.ndarray) -> None:
    settings = Sampling()
    probabilities = distribution(raw, settings, ())
    assert probabilities[greedy_choice(raw, settings, ())] == pytest.approx(probabilities.max())


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any))
def test_draws_are_as_frequent_as_they_are_probable(weights: list[int]) -> None:
    probabilities = np.array(weights) / sum(weights)
    drawn = [draw(probabilities, (index + 0.5) / sum(weights)) for index in range(sum(weights))]
    assert np.bincount(drawn, minlength=len(weights)).tolist() == weights


def test_the_ends_of_the_unit_interval_draw_possible_tokens() -> None:
    probabilities = np.array([0.0, 0.3, 0.7, 0.0])
    assert draw(probabilities, 0.0) == 1
    assert draw(probabilities, np.nextafter(1, 0)) == 2
