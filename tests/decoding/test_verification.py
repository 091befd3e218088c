from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.decoding.verification import (
    block_chances,
    block_verify,
    judge,
    rejection_sample,
    verdicts_from_counts,
)
from specdemo.records import Verdict

A, R, D = Verdict.ACCEPTED, Verdict.REJECTED, Verdict.DISCARDED
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
    verdicts = judge(proposed, target[: accepted + 1])
    assert verdicts == verdicts_from_counts(len(proposed), accepted)


@given(small_ids, st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_impossible_rounds_are_told_apart(proposed: list[int], committed: list[int]) -> None:
    verdicts = judge(proposed, committed)
    possible = proposed[: len(committed) - 1] == committed[:-1] and (
        len(proposed) < len(committed) or proposed[len(committed) - 1] != committed[-1]
    )
    assert (verdicts is not None) == possible


@given(st.integers(0, 8), st.integers(0, 8))
def test_at_most_one_proposal_of_a_round_is_rejected(proposed: int, accepted: int) -> None:
    verdicts = verdicts_from_counts(proposed, min(accepted, proposed))
    assert len(verdicts) == proposed
    assert verdicts.count(R) == (accepted < proposed)


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
    assert judge(proposed, [*proposed[:accepted], own]) == verdicts_from_counts(2, accepted)
