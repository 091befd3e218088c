"""The automatic lookahead on simulated drafts and copies: seeded, on step costs alone, without a clock."""

from collections.abc import Iterator
from functools import partial
from itertools import count

import numpy as np
import pytest

from specdemo.decoding.auto import AutoPolicy, Estimates
from specdemo.decoding.indexes import NO_MATCH, Match
from specdemo.decoding.lookahead import ConstantPolicy, LookaheadPolicy, policy_for
from specdemo.errors import SettingsError
from specdemo.metrics import predict
from specdemo.records import Costs, DraftRound
from specdemo.settings import GenerationSettings

PLAIN, DRAFT = 0.010, 0.002
VERIFY = tuple(PLAIN * (1 + 0.03 * n) for n in range(17))
COSTS = Costs(plain_step=PLAIN, draft_step=DRAFT, verify=VERIFY)
CLIFF = Costs(plain_step=PLAIN, draft_step=DRAFT, verify=(*VERIFY[:4], *(2.5 * step for step in VERIFY[4:])))


def independent(acceptance: float, seed: int = 0) -> Iterator[tuple[bool, float]]:
    """A draft that is right with one probability, about which its own says nothing."""
    random = np.random.default_rng(seed)
    while True:
        yield bool(random.random() < acceptance), 0.6


def honest(seed: int = 0) -> Iterator[tuple[bool, float]]:
    """A draft that knows: it is right as often as its own probability says, sometimes hardly, sometimes nearly."""
    random = np.random.default_rng(seed)
    while True:
        sure = float(random.choice([0.15, 0.98]))
        yield bool(random.random() < sure), sure


def _confidence(proposed: list[tuple[bool, float]]) -> float:
    return proposed[-1][1]


def rate(policy: LookaheadPolicy, draft: Iterator[tuple[bool, float]], costs: Costs, tokens: int) -> float:
    """Tokens committed in the time of one plain step."""
    assert costs.draft_step is not None
    committed, seconds = 0, 0.0
    while committed < tokens:
        proposed: list[tuple[bool, float]] = []
        while len(proposed) < 16 and policy.proposes_more(len(proposed), partial(_confidence, proposed)):
            proposed.append(next(draft))
        accepted = next((n for n, (right, _) in enumerate(proposed) if not right), len(proposed))
        policy.learn(len(proposed), accepted)
        committed += accepted + 1
        seconds += len(proposed) * costs.draft_step + costs.verify[len(proposed)]
    return committed / seconds * costs.plain_step


@pytest.mark.parametrize("costs", [COSTS, CLIFF], ids=["smooth", "cliff"])
@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.95])
def test_it_comes_near_the_best_constant_lookahead(acceptance: float, costs: Costs) -> None:
    best = max(rate(ConstantPolicy(n), independent(acceptance), costs, 4000) for n in range(1, 17))
    assert rate(AutoPolicy(costs, 16), independent(acceptance), costs, 4000) >= 0.95 * max(best, 1)


def test_a_draft_that_knows_when_it_is_right_is_used_better_than_any_constant_can() -> None:
    best = max(rate(ConstantPolicy(n), honest(), COSTS, 4000) for n in range(1, 17))
    assert rate(AutoPolicy(COSTS, 16), honest(), COSTS, 4000) > 1.1 * best


@pytest.mark.parametrize("draft_step", [0.0005, 0.002, 0.005, 0.010])
@pytest.mark.parametrize("confidence", [0.01, 0.5, 0.99])
def test_a_draft_that_is_always_wrong_costs_hardly_anything(draft_step: float, confidence: float) -> None:
    costs = COSTS.model_copy(update={"draft_step": draft_step})
    wrong = iter(lambda: (False, confidence), None)
    assert rate(AutoPolicy(costs, 16), wrong, costs, 127) >= 0.92
    assert rate(AutoPolicy(costs, 16), wrong, costs, 5000) >= 0.975


def test_it_comes_back_when_the_draft_becomes_right() -> None:
    policy = AutoPolicy(COSTS, 16)
    assert rate(policy, independent(0.0), COSTS, 400) < 1
    rate(policy, independent(0.9), COSTS, 300)  # time to notice
    best = max(rate(ConstantPolicy(n), independent(0.9, 1), COSTS, 1000) for n in range(1, 17))
    assert rate(policy, independent(0.9, 1), COSTS, 1000) >= 0.93 * best


def test_a_draft_as_slow_as_its_target_is_not_used() -> None:
    costs = COSTS.model_copy(update={"draft_step": PLAIN})
    assert rate(AutoPolicy(costs, 16), independent(0.95), costs, 2000) >= 0.98


def test_it_stops_before_a_cliff_that_does_not_pay() -> None:
    policy = AutoPolicy(CLIFF, 16)
    rate(policy, independent(0.7), CLIFF, 300)
    proposed = next(n for n in count() if not policy.proposes_more(n, lambda: 0.9))
    assert 1 <= proposed <= 3  # a fourth proposal would need the pass over five tokens


def test_it_keeps_to_its_cap_and_to_what_was_measured() -> None:
    for cap, passes_, expected in ((3, 17, 3), (16, 5, 4)):
        costs = Costs(plain_step=PLAIN, draft_step=1e-6, verify=(PLAIN,) * passes_)
        policy = AutoPolicy(costs, cap)
        rate(policy, independent(1.0), costs, 200)
        assert next(n for n in count() if not policy.proposes_more(n, lambda: 0.999)) == expected


def test_the_same_verdicts_give_the_same_lookaheads() -> None:
    assert rate(AutoPolicy(COSTS, 16), honest(3), COSTS, 500) == rate(AutoPolicy(COSTS, 16), honest(3), COSTS, 500)


def test_it_needs_step_costs() -> None:
    settings = GenerationSettings(engine="traced", policy="auto")
    for costs in (None, COSTS.model_copy(update={"draft_step": None})):
        with pytest.raises(SettingsError, match="choose another policy"):
            policy_for(settings.strategy, costs)
    assert isinstance(policy_for(settings.strategy, COSTS), AutoPolicy)


@pytest.mark.parametrize("wrong", [{"engine": "genai"}, {"kv_cache": "off"}, {"drafter": "lookup"}], ids=str)
def test_settings_that_exclude_it(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        GenerationSettings.checked(**{"engine": "traced", "policy": "auto", **wrong})


def test_predicted_best_is_what_simulation_finds() -> None:
    prediction = predict(COSTS, 0.8)
    assert prediction is not None
    measured = [rate(ConstantPolicy(n), independent(0.8), COSTS, 20_000) for n in range(1, 17)]
    assert prediction == pytest.approx(measured, rel=0.03)


def taught(rounds: list[tuple[bool, float]]) -> Costs:
    """Costs of which the measuring saw these proposals, one a round."""
    drafted = (DraftRound(seconds=DRAFT, probabilities=(sure,), accepted=right) for right, sure in rounds)
    return COSTS.model_copy(update={"drafted": tuple(drafted)})


def test_it_begins_with_what_was_learnt_while_costs_were_measured() -> None:
    def useless() -> Iterator[tuple[bool, float]]:
        return iter(lambda: (False, 0.9), None)

    costs = taught([(False, 0.9)] * 30)
    untaught = rate(AutoPolicy(COSTS, 16), useless(), COSTS, 127)
    assert rate(AutoPolicy(costs, 16), useless(), COSTS, 127) > untaught
    policy = AutoPolicy(taught([(True, 0.9)] * 30), 16)
    assert next(n for n in count() if not policy.proposes_more(n, lambda: 0.9)) > 4


EVEN = Costs(plain_step=1.0, draft_step=0.1, verify=(1.0,) * 17)
FOUND = Match(3, (1, 2, 3, 4), (1.0, 1.0, 1.0, 1.0), "suffix")


def drafted(policy: AutoPolicy, accepted: int, proposed: int = 4) -> None:
    policy.proposes_more(0, lambda: 0.5)
    policy.learn(proposed, accepted)


def test_a_copy_that_proves_right_is_proposed_and_one_that_proves_wrong_is_not() -> None:
    right, wrong = AutoPolicy(EVEN, 16), AutoPolicy(EVEN, 16)
    for _ in range(20):
        for policy, committed in ((right, [1, 2, 3, 4, 5]), (wrong, [9])):
            policy.estimates.judge_copy(FOUND, committed)
            drafted(policy, 2)
    assert (right.copied(FOUND), wrong.copied(FOUND)) == (FOUND, NO_MATCH)
    assert right.copied(NO_MATCH) == NO_MATCH


def test_the_draft_proposes_where_its_rounds_earn_more() -> None:
    policy = AutoPolicy(EVEN, 16)
    for _ in range(40):
        policy.estimates.judge_copy(FOUND, [1, 2, 9])
        drafted(policy, 0)
    assert policy.copied(FOUND).tokens
    for _ in range(80):
        drafted(policy, 4)
    assert policy.copied(FOUND) == NO_MATCH


def test_a_copy_is_no_longer_than_pays_off() -> None:
    steep = AutoPolicy(EVEN.model_copy(update={"verify": (1.0, 1.0, 1.0, *(3.0 * n for n in range(3, 17)))}), 16)
    for _ in range(30):
        steep.estimates.judge_copy(FOUND, [1, 2, 3, 4, 5])
        drafted(steep, 0)
    assert steep.copied(FOUND).tokens == (1, 2)


def test_likelier_copies_are_judged_likelier() -> None:
    estimates = Estimates()
    for _ in range(40):
        estimates.judge_copy(Match(2, (1,), (0.9,), "suffix"), [1])
        estimates.judge_copy(Match(2, (1,), (0.2,), "suffix"), [9])
    sure, unsure = (estimates.chances(Match(2, (1, 2), (share, share), "suffix")) for share in (0.9, 0.2))
    assert sure[0] > 0.8 > 0.4 > unsure[0]
    assert sure[1] < sure[0]


def test_one_request_begins_with_what_the_last_one_taught() -> None:
    taught_ = AutoPolicy(EVEN, 16)
    rate(taught_, independent(0.95), EVEN, 400)
    later, fresh = AutoPolicy(EVEN, 16, taught_.estimates), AutoPolicy(EVEN, 16)
    first = [next(n for n in count() if not one.proposes_more(n, lambda: 0.6)) for one in (later, fresh)]
    assert first[0] > first[1]
