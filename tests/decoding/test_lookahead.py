"""Lookahead policies step by step; the automatic one on simulated drafts with given step costs, without a clock."""

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest

from specdemo.decoding.lookahead import AutoPolicy, CombinedPolicy, ConstantPolicy, LookaheadPolicy, policy_for
from specdemo.decoding.round import Proposal, draft
from specdemo.errors import SettingsError
from specdemo.records import Costs
from specdemo.settings import GenerationSettings
from specdemo.strategies import Combined, Confidence, Constant
from tests.support.step_costs import costs_of


def policy(**settings: Any) -> LookaheadPolicy:
    return policy_for(GenerationSettings(engine="traced", **settings).strategy)


def proposed(policy: LookaheadPolicy, probabilities: list[float]) -> int:
    return next(n for n in count() if not policy.proposes_more(n, partial(probabilities.__getitem__, n - 1)))


def test_a_policy_follows_its_strategy() -> None:
    constant, confident = policy(num_assistant_tokens=3), policy(policy="confidence")
    constant.learn(3, 0)
    assert proposed(constant, [0.0] * 9) == 3
    constant.strategy = Constant(6)
    assert proposed(constant, [0.0] * 9) == 6
    assert proposed(confident, [0.5] * 9 + [0.0]) == 10
    confident.strategy = Confidence(0.9, 20)
    assert proposed(confident, [0.5] * 9) == 1


def test_confidence_stops_after_the_token_below_the_threshold() -> None:
    confidence = policy(policy="confidence", assistant_confidence_threshold=0.4)
    assert proposed(confidence, [0.9, 0.4, 0.39, 0.9]) == 3
    assert proposed(confidence, [0.1]) == 1
    assert proposed(confidence, [1.0] * 99) == 20
    assert proposed(policy(policy="confidence", max_assistant_tokens=3), [1.0] * 99) == 3
    assert [len(draft(policy(), limit, lambda _: Proposal(1, None))) for limit in (0, 2, 9)] == [0, 2, 4]


def test_probabilities_are_computed_only_for_policies_that_need_them() -> None:
    def refuse() -> float:
        pytest.fail("probabilities take time to compute")

    assert policy(num_assistant_tokens=2).proposes_more(1, refuse)


PLAIN, DRAFT = 0.010, 0.002
LOOKAHEADS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
VERIFY = tuple(PLAIN * (1 + 0.03 * n) for n in range(17))
COSTS = costs_of(draft=DRAFT, verify=VERIFY)
CLIFF = costs_of(draft=DRAFT, verify=(*VERIFY[:4], *(2.5 * step for step in VERIFY[4:])))


def independent(acceptance: float, seed: int = 0) -> Iterator[tuple[bool, float]]:
    """Right at a constant rate, regardless of the draft's probability."""
    random = np.random.default_rng(seed)
    while True:
        yield bool(random.random() < acceptance), 0.6


def rate(policy: LookaheadPolicy, draft: Iterator[tuple[bool, float]], costs: Costs, tokens: int) -> float:
    """Return the tokens committed in the time of a plain step."""
    assert costs.draft_step is not None
    committed, seconds, proposed = 0, 0.0, list[tuple[bool, float]]()
    while committed < tokens:
        proposed.clear()
        while len(proposed) < 16 and policy.proposes_more(len(proposed), lambda: proposed[-1][1]):
            proposed.append(next(draft))
        accepted = next((n for n, (right, _) in enumerate(proposed) if not right), len(proposed))
        policy.learn(len(proposed), accepted)
        committed += accepted + 1
        seconds += len(proposed) * costs.draft_step + costs.verify[len(proposed)]
    return committed / seconds * costs.plain_step


@pytest.mark.parametrize("costs", [COSTS, CLIFF], ids=["smooth", "cliff"])
@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.95])
def test_it_comes_near_the_best_constant_lookahead(acceptance: float, costs: Costs) -> None:
    best = max(rate(ConstantPolicy(Constant(n)), independent(acceptance), costs, 4000) for n in LOOKAHEADS)
    assert rate(AutoPolicy(costs, 16), independent(acceptance), costs, 4000) >= 0.95 * max(best, 1)


def test_it_keeps_to_its_cap_and_to_what_was_measured() -> None:
    for cap, passes_, expected in ((3, 17, 3), (16, 5, 4)):
        costs = costs_of(draft=1e-6, verify=(PLAIN,) * passes_)
        policy = AutoPolicy(costs, cap)
        rate(policy, independent(1.0), costs, 200)
        assert next(n for n in count() if not policy.proposes_more(n, lambda: 0.999)) == expected


def test_thresholds_by_hand() -> None:
    """Another token pays above its cost over the tokens it adds, alone or with the ones after it."""
    costs = Costs(verify=(1, 1.1, 1.2, 1.2), drafting=(0, 0.1, 0.2, 0.3))
    policy = AutoPolicy(costs, 16)
    assert policy._thresholds == pytest.approx([0, 0.3 / 0.96, 0.1 / 0.6, np.inf])
    draft, mean, copies = policy.estimates.draft, policy.estimates.rate, policy.estimates.copies
    mean.total, mean.weight = 3.0, 2.0
    policy._update_thresholds()
    assert policy._thresholds == pytest.approx([0, 0.45 / 0.96, 0.15 / 0.6, np.inf])
    mean.add(1.0)
    assert mean.value == pytest.approx((1 + 0.98 * 3) / (1 + 0.98 * 2))
    assert [draft.acceptance_rate(each) for each in (0.05, 0.6)] == pytest.approx([0.4 + 0.5 * 0.05, 0.4 + 0.5 * 0.6])
    assert [rate.value for rate in copies] == pytest.approx([0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85])


@pytest.mark.parametrize(("accepted", "plain"), [(0, 58), (1, 13)])
def test_a_probe_is_a_fiftieth_of_the_time(accepted: int, plain: int) -> None:
    """It takes 2.15 plain steps: 1.15 more than its one token is worth, or at least the draft's 0.25."""
    policy = AutoPolicy(Costs(verify=(1, 1.9, 2.8), drafting=(0, 0.25, 0.5)), 16)
    assert proposed(policy, [1.0]) == 1
    policy.learn(1, accepted)
    rounds = 0
    while not policy.proposes_more(0, lambda: 1.0):
        policy.learn(0, 0)
        rounds += 1
    assert rounds == plain


def test_it_needs_step_costs() -> None:
    settings = GenerationSettings(engine="traced", policy="auto")
    for costs in (None, COSTS.model_copy(update={"drafting": ()})):
        with pytest.raises(SettingsError, match="choose another policy"):
            policy_for(settings.strategy, costs)
    for strategy, kind in ((settings.strategy, AutoPolicy), (Combined(), CombinedPolicy)):
        given = AutoPolicy(COSTS, 16).estimates
        made: Any = policy_for(strategy, COSTS, given)
        assert (type(made), made.estimates) == (kind, given)


@pytest.mark.parametrize(
    ("chances", "more", "copied"),
    [
        ((0.9, 0.8, 0.7), True, 3),  # worth more than the draft's tokens, which cost more
        ((0.3, 0.1), True, 0),  # the draft is right more often
        ((0.3, 0.05), False, 1),  # the first is worth its part of the pass, the second is not
        ((0.05,), False, 0),
        ((), True, 0),
    ],
)
def test_a_copy_ends_a_round_if_it_is_worth_more_than_the_draft(
    chances: tuple[float, ...], more: bool, copied: int
) -> None:
    policy = CombinedPolicy(costs_of(draft=0.2, verify=[1 + 0.1 * tokens for tokens in range(8)]), 16)
    assert policy.proposes_more(0, lambda: 1.0)
    assert policy.weigh(0, chances, more=more) == (copied, more and not copied)


def test_a_chain_that_may_be_wrong_makes_its_copy_worth_less() -> None:
    policy = CombinedPolicy(costs_of(draft=0.2, verify=[1 + 0.2 * tokens for tokens in range(8)]), 16)
    assert policy.proposes_more(0, lambda: 1.0)
    policy.proposes_more(1, lambda: 0.999)
    assert policy.weigh(1, (0.5,), more=False) == (1, False)
    assert policy.proposes_more(0, lambda: 1.0)
    policy.proposes_more(1, lambda: 0.05)
    assert policy.weigh(1, (0.4,), more=False) == (0, False)


def test_a_draft_reads_long_copies_after_two_plain_steps() -> None:
    policy = CombinedPolicy(costs_of(draft=0.4, verify=[1 + 0.1 * tokens for tokens in range(8)]), 16)
    assert policy.proposes_more(0, lambda: 1.0)
    assert policy.weigh(0, (), more=True, unread=2) == policy.weigh(0, (), more=True, unread=4) == (0, True)
    for step, drafts in ((0.13, False), (0.11, True)):  # which takes 1.7 plain steps of 8 tokens
        other = CombinedPolicy(costs_of(draft=step, verify=[1 + 0.1 * tokens for tokens in range(8)]), 16)
        assert other.weigh(0, (), more=True, unread=10) == (0, drafts)
    # 0.4 · (1 + 1.7 + 1.2 − 1) plain steps for 20 tokens, more than the 0.2 that drafting is assumed to gain in one
    assert [policy.weigh(0, (), more=True, unread=22) for _ in range(3)] == [(0, False), (0, False), (0, True)]
    assert policy.weigh(0, (0.9,), more=True, unread=22) == (1, False)
    assert policy.weigh(0, (), more=True, unread=24) == (0, False)


def test_copies_are_trusted_as_far_as_those_of_this_text_were_right() -> None:
    policy = CombinedPolicy(costs_of(draft=0.4, verify=[1 + 0.4 * tokens for tokens in range(8)]), 16)
    for _ in range(2):  # of 0.9 and 0.9 · 0.813 expected tokens, none was right: 0.704 of the chances remains
        assert policy.weigh(0, (0.9,), more=False) == (1, False)
        policy.learn(0, 0, copied=1)
    assert policy.weigh(0, (0.56,), more=False) == (0, False)  # 0.394 tokens for 0.4 plain steps
    assert policy.weigh(0, (0.58,), more=False) == (1, False)


def test_a_useless_draft_is_dropped_and_the_next_text_tries_it_again() -> None:
    costs, copies = costs_of(draft=0.4, verify=[1 + 0.3 * tokens for tokens in range(8)]), 0
    policy = CombinedPolicy(costs, 16)
    for _ in range(40):
        policy.learn(int(policy.proposes_more(0, lambda: 0.1)), 0)
    assert not policy.proposes_more(0, lambda: 0.1)
    for _ in range(40):  # accepted copies say nothing about the draft
        copies += policy.weigh(0, (0.9,), more=False)[0]
        policy.learn(0, 1, copied=1)
    assert copies == 40
    assert not policy.proposes_more(0, lambda: 0.1)
    assert CombinedPolicy(costs, 16, policy.estimates).proposes_more(0, lambda: 0.1)
