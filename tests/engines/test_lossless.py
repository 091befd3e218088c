"""Speculative sampling keeps the target's distribution: by exact enumeration, and in draws on the bundled pair."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from math import lcm
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdemo.decoding.indexes import CopyIndex, index_of
from specdemo.decoding.lookahead import CombinedPolicy, DiscountedMean, policy_for
from specdemo.decoding.round import Drafter, ModelSequence, rejection_sample
from specdemo.decoding.sampling import Logits, Probabilities, Uniform, draw
from specdemo.engines.base import rounds_of
from specdemo.engines.traced.decoder import TracedDecoder
from specdemo.engines.traced.drafters import CombinedDrafter, ModelDrafter, TextDrafter
from specdemo.records import Request
from specdemo.settings import GenerationSettings
from specdemo.strategies import Plain
from tests.support.step_costs import costs_of

SIX = [weights for weights in product(range(7), repeat=3) if sum(weights) == 6]
GRID = lcm(*range(1, 7))  # a multiple of all denominators for weights that sum to 6

Rule = Callable[..., tuple[int, int]]


def committed_first(rule: Rule, p: Probabilities, q: Probabilities) -> list[float]:
    """Return the exact distribution, by enumerating proposals and random numbers."""
    numbers = [(index + 0.5) / GRID for index in range(GRID)]
    result = np.zeros(3)
    for proposal in np.flatnonzero(q):
        for first, second in product(numbers, numbers):
            random = SimpleNamespace(random=iter((first, second)).__next__)
            accepted, token = rule([proposal], [q], [p, p], random)
            result[proposal if accepted else token] += q[proposal] / GRID**2
    return list(result)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(SIX), st.sampled_from(SIX))
def test_a_round_commits_exactly_the_targets_distribution(target: tuple[int, ...], draft: tuple[int, ...]) -> None:
    p, q = np.array(target) / 6, np.array(draft) / 6
    assert committed_first(rejection_sample, p, q) == pytest.approx(list(p), abs=1e-9)


def too_lenient(
    proposed: list[int], drafts: list[Probabilities], targets: Iterable[Probabilities], random: Uniform
) -> tuple[int, int]:
    """Accept tokens with twice the probability."""
    return rejection_sample(proposed, [q / 2 for q in drafts], targets, random)


def redraws_from_p(
    proposed: list[int], drafts: list[Probabilities], targets: Iterable[Probabilities], random: Uniform
) -> tuple[int, int]:
    """The likeliest mistake: replace a rejected token by a draw from p instead of max(p − q, 0)."""
    known = list(targets)
    accepted, token = rejection_sample(proposed, drafts, known, random)
    if accepted < len(proposed):
        drawn = draw(known[accepted], random.random()), 0, 1, 2
        token = next(other for other in drawn if other != proposed[accepted])
    return accepted, token


class Scripted:
    """Three tokens with probabilities of halves that depend on the text."""

    CHOICES = ((1, 0, 0), (0, 0.5, 0.5), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 1, 0))

    def __init__(self, factor: int) -> None:
        self._factor = factor

    def probabilities(self, text: Sequence[int]) -> Probabilities:
        number = sum((index + 2) * (token + 1) for index, token in enumerate(text)) * self._factor
        return np.array(self.CHOICES[number % len(self.CHOICES)], float)

    def logits(self, ids: Sequence[int], last: int = 1) -> Logits:
        rows = [self.probabilities(ids[: len(ids) - back]) for back in range(last - 1, -1, -1)]
        return np.log(np.maximum(rows, 1e-30)).astype(np.float32)

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        return iter(())


class Coins:
    """Enumerates all sequences of random numbers 1/4 and 3/4: exact if all probabilities are halves."""

    def __init__(self) -> None:
        self.sides: list[int] = []
        self.used = 0

    def random(self) -> float:
        if self.used == len(self.sides):
            self.sides.append(0)
        self.used += 1
        return 0.25 + 0.5 * self.sides[self.used - 1]

    def next(self) -> bool:
        """Advance; False after the last sequence."""
        del self.sides[self.used :]
        self.used = 0
        while self.sides and self.sides[-1]:
            self.sides.pop()
        if self.sides:
            self.sides[-1] = 1
        return bool(self.sides)


def joint(request: Request) -> dict[tuple[int, ...], float]:
    """Return the exact distribution of a decoder's output."""
    coins, result = Coins(), defaultdict[tuple[int, ...], float](float)
    while True:
        with mock.patch("numpy.random.default_rng", return_value=coins):
            tokens = [id_ for step in rounds_of(scripted_decoder(request)) for id_ in step.ids]
        result[tuple(tokens)] += 0.5**coins.used
        if not coins.next():
            return dict(result)


def scripted_decoder(request: Request) -> TracedDecoder:
    def drafter(text: Sequence[int], capacity: int, random: Uniform, target: ModelSequence) -> Drafter:
        if not request.strategy.drafter.model:
            return TextDrafter(index_of(request.strategy), 3)
        policy = policy_for(request.strategy, COSTS)
        draft = ModelDrafter(Scripted(factor=5), 3, None, policy, request.sampling, random)
        if isinstance(policy, CombinedPolicy):
            return CombinedDrafter(draft, CopyIndex([DiscountedMean(0.95, 1.0)] * 9), policy, 3)
        return draft

    plain = isinstance(request.strategy, Plain)
    tokenless: Any = SimpleNamespace(encode_prompt=lambda request: [0], decode=lambda ids: "", eos_ids=frozenset)
    return TracedDecoder(request, tokenless, lambda *_: Scripted(factor=1), None if plain else drafter)


STRATEGIES: dict[str, dict[str, Any]] = {
    "constant 1": {"num_assistant_tokens": 1},
    "constant 2": {"num_assistant_tokens": 2},
    "confidence": {"policy": "confidence", "assistant_confidence_threshold": 0.9},
    "lookup": {"drafter": "lookup", "max_ngram_size": 1},
    "suffix": {"drafter": "suffix", "assistant_confidence_threshold": 0.0},
    "auto": {"policy": "auto", "max_assistant_tokens": 2},
    "combined": {"drafter": "combined"},
    "top-p": {"top_p": 0.4},
    "top-k": {"top_k": 1},
}


COSTS = costs_of(draft=0.1, verify=(1.0,) * 6)


def halves(**values: Any) -> Request:
    settings = {"engine": "traced", "do_sample": True, "temperature": 1, "top_k": 0, "max_new_tokens": 4, **values}
    return Request.of("", GenerationSettings(**settings))


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_four_tokens_have_exactly_the_joint_distribution_of_plain_sampling(strategy: dict[str, Any]) -> None:
    plain, speculative = joint(halves(**strategy).plain), joint(halves(**strategy))
    assert sum(plain.values()) == pytest.approx(1)
    assert speculative == pytest.approx(plain)


@pytest.mark.parametrize("rule", [too_lenient, redraws_from_p])
def test_a_wrong_rule_has_another_joint_distribution(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdemo.decoding.round.rejection_sample", rule)
    plain, speculative = joint(halves().plain), joint(halves())
    assert speculative != pytest.approx(plain, abs=0.01)
