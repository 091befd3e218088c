from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.decoding.lookahead import LookaheadPolicy, policy_for
from specdemo.metrics import oracle
from specdemo.settings import GenerationSettings


def policy(**settings: Any) -> LookaheadPolicy:
    return policy_for(GenerationSettings(engine="traced", **settings).strategy)


def proposed(policy: LookaheadPolicy, probabilities: list[float]) -> int:
    """How many tokens are proposed by a draft with these probabilities."""
    return next(n for n in count() if not policy.proposes_more(n, partial(probabilities.__getitem__, n - 1)))


def test_a_constant_lookahead_is_constant() -> None:
    constant = policy(num_assistant_tokens=3)
    for accepted in (0, 3, 1):
        assert proposed(constant, [0.0] * 9) == 3
        constant.learn(3, accepted)


def test_a_policy_follows_to_another_way_of_its_own_type_only() -> None:
    constant, confident = policy(num_assistant_tokens=3), policy(policy="confidence")
    lookahead = GenerationSettings(num_assistant_tokens=6).strategy
    threshold = GenerationSettings(engine="traced", policy="confidence", assistant_confidence_threshold=0.9).strategy
    assert constant.update_strategy(lookahead)
    assert not constant.update_strategy(threshold)
    assert proposed(constant, [0.0] * 9) == 6
    assert proposed(confident, [0.5] * 9 + [0.0]) == 10
    assert confident.update_strategy(threshold)
    assert not confident.update_strategy(lookahead)
    assert proposed(confident, [0.5] * 9) == 1
    assert not policy(policy="heuristic").update_strategy(lookahead)


def test_the_heuristic_grows_by_two_and_shrinks_by_one() -> None:
    heuristic = policy(policy="heuristic")
    lookaheads = []
    for accepted in (5, 7, 2, 0):
        lookaheads.append(proposed(heuristic, [0.0] * 99))
        heuristic.learn(lookaheads[-1], accepted)
        heuristic.learn(0, 0)  # the prefill, or a plain round at the end: no news
    assert lookaheads == [5, 7, 9, 8]
    for _ in range(20):
        heuristic.learn(9, 0)
    assert proposed(heuristic, [0.0] * 9) == 1


def test_confidence_stops_after_the_token_below_the_threshold() -> None:
    confidence = policy(policy="confidence", assistant_confidence_threshold=0.4)
    assert proposed(confidence, [0.9, 0.4, 0.39, 0.9]) == 3
    assert proposed(confidence, [0.1]) == 1
    assert proposed(confidence, [1.0] * 99) == 20
    assert proposed(policy(policy="confidence", max_assistant_tokens=3), [1.0] * 99) == 3


def test_a_policy_that_needs_no_probability_asks_for_none() -> None:
    def refuse() -> float:
        pytest.fail("probabilities take time to compute")

    assert policy(num_assistant_tokens=2).proposes_more(1, refuse)
    assert policy(policy="heuristic").proposes_more(1, refuse)


def test_the_oracle_ends_each_round_before_the_first_mismatch() -> None:
    agrees = [True, True, False, False, True, True, True]
    assert oracle(agrees, 7) == (2, 0, 2)  # the last token of all is the target's in any case
    assert oracle(agrees, 99) == (2, 0, 3)
    assert oracle([], 9) == ()


@given(st.lists(st.booleans(), max_size=60))
def test_the_oracle_proposes_nothing_in_vain(agrees: list[bool]) -> None:
    lookaheads = oracle(agrees, len(agrees))
    assert sum(lookaheads) + len(lookaheads) == len(agrees)
