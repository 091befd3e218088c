"""The automatic lookahead on simulated drafts and copies: seeded, on step costs alone, without a clock."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import count, islice

import numpy as np
import pytest

from specdemo.decoding.auto import AutoPolicy, Experience, Timing
from specdemo.decoding.indexes import NO_MATCH, Match
from specdemo.decoding.lookahead import ConstantPolicy, LookaheadPolicy, PlannedPolicy, policy_for
from specdemo.decoding.steps import CostDrift, QueryLength
from specdemo.errors import SettingsError
from specdemo.metrics import passes, predict
from specdemo.records import Costs, DraftRound, Spread, StepCosts
from specdemo.settings import GenerationSettings

PLAIN, DRAFT = 0.010, 0.002
VERIFY = tuple(PLAIN * (1 + 0.03 * n) for n in range(17))
COSTS = Costs(plain_step=PLAIN, draft_step=DRAFT, verify=VERIFY)
CHANGING = Costs.of(
    [
        StepCosts(
            context=16,
            passes=tuple(Spread(low=s, middle=s, high=s) for s in (PLAIN * (1 + 0.125 * n) for n in range(17))),
            draft=Spread(low=PLAIN * 0.09, middle=PLAIN * 0.09, high=PLAIN * 0.09),
            length_change=PLAIN / 2,
        )
    ]
)
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


def rate(
    policy: LookaheadPolicy, draft: Iterator[tuple[bool, float]], costs: Costs, tokens: int, *, asked: bool = False
) -> float:
    """Tokens committed in the time of one plain step; `asked`: the draft reads what it did not propose."""
    assert costs.draft_step is not None
    committed, seconds, width, before = 0, 0.0, QueryLength(costs), 1
    while committed < tokens:
        proposed: list[tuple[bool, float]] = []
        while len(proposed) < 16 and policy.goes_on(len(proposed), partial(_confidence, proposed)):
            proposed.append(next(draft))
        accepted = next((n for n, (right, _) in enumerate(proposed) if not right), len(proposed))
        if asked and not proposed and isinstance(policy, AutoPolicy) and policy.unread:
            policy.asked([next(draft)[0] for _ in range(policy.unread)])
            seconds += 4 * costs.draft_step
        fed = width.of(len(proposed) + 1)
        policy.learn(len(proposed), accepted, fed)
        committed += accepted + 1
        seconds += len(proposed) * costs.draft_step + costs.verify[fed - 1]
        seconds += (costs.length_change or 0) * (fed != before)
        before = fed
    return committed / seconds * costs.plain_step


@pytest.mark.parametrize("costs", [COSTS, CLIFF], ids=["smooth", "cliff"])
@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.95])
def test_it_comes_near_the_best_constant_lookahead(acceptance: float, costs: Costs) -> None:
    best = max(rate(ConstantPolicy(n), independent(acceptance), costs, 4000) for n in range(1, 17))
    assert rate(AutoPolicy(costs, 16), independent(acceptance), costs, 4000) >= 0.95 * max(best, 1)


@pytest.mark.parametrize("acceptance", [0.1, 0.3, 0.6, 0.8])
def test_where_a_change_of_length_is_dear_it_drafts_for_long_or_not_at_all(acceptance: float) -> None:
    """As SmolLM2 on a processor with AVX2: a change costs half a step, and three tokens a quarter more than one."""
    best = max(rate(ConstantPolicy(n), independent(acceptance), CHANGING, 4000) for n in range(1, 17))
    found = rate(AutoPolicy(CHANGING, 16), independent(acceptance), CHANGING, 4000, asked=True)
    assert found >= 0.95 * max(best, 1)


def test_where_a_change_of_length_is_dear_it_begins_again_when_the_draft_becomes_right() -> None:
    policy = AutoPolicy(CHANGING, 16)
    assert rate(policy, independent(0.05), CHANGING, 400, asked=True) >= 0.94
    assert rate(policy, independent(0.8, seed=1), CHANGING, 400, asked=True) >= 1.4


def test_a_draft_that_knows_when_it_is_right_is_used_better_than_any_constant_can() -> None:
    best = max(rate(ConstantPolicy(n), honest(), COSTS, 4000) for n in range(1, 17))
    assert rate(AutoPolicy(COSTS, 16), honest(), COSTS, 4000) > 1.1 * best


@pytest.mark.parametrize("draft_step", [0.0005, 0.002, 0.005, 0.010])
@pytest.mark.parametrize("confidence", [0.01, 0.5, 0.99])
def test_a_draft_that_is_always_wrong_costs_hardly_anything(draft_step: float, confidence: float) -> None:
    costs = COSTS.model_copy(update={"draft_step": draft_step})
    wrong = iter(lambda: (False, confidence), None)
    assert rate(AutoPolicy(costs, 16), wrong, costs, 127) >= 0.97
    assert rate(AutoPolicy(costs, 16), wrong, costs, 5000) >= 0.98


def test_it_comes_back_when_the_draft_becomes_right() -> None:
    policy = AutoPolicy(COSTS, 16)
    assert rate(policy, independent(0.0), COSTS, 400) < 1
    rate(policy, independent(0.9), COSTS, 300)  # time to notice
    best = max(rate(ConstantPolicy(n), independent(0.9, 1), COSTS, 1000) for n in range(1, 17))
    assert rate(policy, independent(0.9, 1), COSTS, 1000) >= 0.95 * best


def test_a_draft_as_slow_as_its_target_is_not_used() -> None:
    costs = COSTS.model_copy(update={"draft_step": PLAIN})
    assert rate(AutoPolicy(costs, 16), independent(0.95), costs, 2000) >= 0.98


def test_it_stops_before_a_cliff_that_does_not_pay() -> None:
    policy = AutoPolicy(CLIFF, 16)
    rate(policy, independent(0.7), CLIFF, 300)
    proposed = next(n for n in count() if not policy.goes_on(n, lambda: 0.9))
    assert 1 <= proposed <= 3  # a fourth proposal would need the pass over five tokens


def test_it_keeps_to_its_cap_and_to_what_was_measured() -> None:
    for cap, passes_, expected in ((3, 17, 3), (16, 5, 4)):
        costs = Costs(plain_step=PLAIN, draft_step=1e-6, verify=(PLAIN,) * passes_)
        policy = AutoPolicy(costs, cap)
        rate(policy, independent(1.0), costs, 200)
        assert next(n for n in count() if not policy.goes_on(n, lambda: 0.999)) == expected


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


def test_the_oracle_is_planned_and_followed() -> None:
    agrees = [right for right, _ in islice(independent(0.6), 200)]
    plan = passes(agrees, None, len(agrees))
    policy, proposed = PlannedPolicy(plan.lookaheads), []
    for lookahead in plan.lookaheads:
        proposed.append(next(n for n in count() if not policy.goes_on(n, lambda: 0.0)))
        policy.learn(lookahead, lookahead, lookahead + 1)
    assert tuple(proposed) == plan.lookaheads
    assert not policy.goes_on(0, lambda: 1.0)


def test_predicted_best_is_what_simulation_finds() -> None:
    prediction = predict(COSTS, 0.8)
    assert prediction is not None
    measured = [rate(ConstantPolicy(n), independent(0.8), COSTS, 20_000) for n in range(1, 17)]
    assert prediction.predicted == pytest.approx(measured, rel=0.03)


def taught(rounds: list[tuple[bool, float]]) -> Costs:
    """Costs of which the measuring saw these proposals, one a round."""
    drafted = (DraftRound(seconds=DRAFT, probabilities=(sure,), accepted=right) for right, sure in rounds)
    passes_ = tuple(Spread(low=step, middle=step, high=step) for step in VERIFY)
    draft = Spread(low=DRAFT, middle=DRAFT, high=DRAFT)
    return Costs.of([StepCosts(context=16, passes=passes_, draft=draft, rounds=tuple(drafted))])


def test_it_begins_with_what_was_learnt_while_costs_were_measured() -> None:
    def useless() -> Iterator[tuple[bool, float]]:
        return iter(lambda: (False, 0.9), None)

    costs = taught([(False, 0.9)] * 30)
    timed = costs.contexts[0].model_copy(update={"rounds": (DraftRound(seconds=DRAFT),) * 30})
    untaught = rate(AutoPolicy(COSTS, 16), useless(), COSTS, 127)
    assert rate(AutoPolicy(costs, 16), useless(), COSTS, 127) > untaught
    assert (
        rate(AutoPolicy(Costs.of([timed]), 16), useless(), COSTS, 127) == untaught
    )  # without outcomes, nothing is learnt
    policy = AutoPolicy(taught([(True, 0.9)] * 30), 16)
    assert next(n for n in count() if not policy.goes_on(n, lambda: 0.9)) > 4


EVEN = Costs(plain_step=1.0, draft_step=0.1, verify=(1.0,) * 17)
FOUND = Match(3, (1, 2, 3, 4))


def drafting(costs: Costs = EVEN) -> AutoPolicy:
    """A policy whose draft proposes four tokens."""
    return AutoPolicy(costs, 16, constant=4)


def drafted(policy: AutoPolicy, accepted: int, proposed: int = 4) -> None:
    policy.goes_on(0, lambda: 0.5)
    policy.learn(proposed, accepted, proposed + 1)


def test_a_copy_that_proves_right_is_proposed_and_one_that_proves_wrong_is_not() -> None:
    right, wrong = drafting(), drafting()
    for _ in range(20):
        for policy, committed in ((right, [1, 2, 3, 4, 5]), (wrong, [9])):
            policy.judged([FOUND], committed)
            drafted(policy, 2)
    assert (right.copied([FOUND]), wrong.copied([FOUND])) == (FOUND, NO_MATCH)
    assert right.copied([]) == NO_MATCH


def test_the_draft_proposes_where_its_rounds_earn_more() -> None:
    policy = drafting()
    for _ in range(40):
        policy.judged([FOUND], [1, 2, 9])
    assert policy.copied([FOUND]).tokens
    for _ in range(40):
        drafted(policy, 4)
    assert policy.copied([FOUND]) == NO_MATCH


def test_a_copy_is_no_longer_than_pays_off() -> None:
    steep = drafting(EVEN.model_copy(update={"verify": (1.0, 1.0, 1.0, *(3.0 * n for n in range(3, 17)))}))
    for _ in range(10):
        steep.judged([FOUND], [1, 2, 3, 4, 5])
    assert steep.copied([FOUND]).tokens == (1, 2)


def test_the_source_that_proves_right_more_often_is_copied() -> None:
    tree, table = Match(3, (1, 2), (1.0, 1.0), "suffix"), Match(3, (7, 8), (0.6, 0.4), "lookup")
    policy = drafting()
    for _ in range(30):
        policy.judged([tree, table], [7, 8, 9])
    assert policy.copied([tree, table]) == table
    for _ in range(60):
        policy.judged([tree, table], [1, 2, 9])
    assert policy.copied([tree, table]) == tree


def test_likelier_copies_are_judged_likelier() -> None:
    experience = Experience()
    for _ in range(40):
        experience.judged(Match(2, (1,), (0.9,), "suffix"), [1])
        experience.judged(Match(2, (1,), (0.2,), "suffix"), [9])
    sure, unsure = (experience.chances(Match(2, (1, 2), (share, share), "suffix")) for share in (0.9, 0.2))
    assert sure[0] > 0.8 > 0.4 > unsure[0]
    assert sure[1] < sure[0]


def test_a_draft_that_loses_rests_and_comes_back_when_it_is_right() -> None:
    policy = drafting()
    assert 0.8 < sum(rested(policy, 400, accepted=0)) / 400 < 1
    rested(policy, 400, accepted=4)
    assert not any(rested(policy, 60, accepted=4)[-20:])


def rested(policy: AutoPolicy, rounds: int, accepted: int) -> list[bool]:
    """In which of these rounds the draft rested; in the others so many of its 4 proposals were accepted."""
    found = []
    for _ in range(rounds):
        found.append(not policy.goes_on(0, lambda: 0.5))
        policy.learn(0 if found[-1] else 4, accepted, 1 if found[-1] else 5)
    return found


def test_a_constant_lookahead_of_the_draft_can_be_moved() -> None:
    policy = drafting()
    assert policy.update_strategy(GenerationSettings(num_assistant_tokens=7).strategy)
    assert [policy.goes_on(n, lambda: 0.0) for n in (1, 6, 7)] == [True, True, False]
    assert not AutoPolicy(EVEN, 16).update_strategy(GenerationSettings().strategy)


def test_step_costs_are_corrected_by_what_rounds_take() -> None:
    """A draft whose steps become ten times as dear is used less."""

    def proposed(policy: AutoPolicy, draft_step: float) -> int:
        for _ in range(60):
            number = next(n for n in range(17) if not policy.goes_on(n, lambda: 0.8))
            policy.learn(number, max(number - 1, 1), number + 1, Timing(draft_step * number, 1.0))
        return number

    assert proposed(AutoPolicy(EVEN, 16), 1.0) < proposed(AutoPolicy(EVEN, 16), 0.1)


@pytest.mark.parametrize("slower", [1.5, 1 / 1.5])
def test_a_machine_that_is_slower_as_a_whole_changes_no_lookahead(slower: float) -> None:
    costs = told(*(1 + 0.02 * n for n in range(17)))

    def lookahead(slower: float) -> int:
        policy = AutoPolicy(costs, 16)
        for _ in range(60):
            number = next(n for n in range(17) if not policy.goes_on(n, lambda: 0.8))
            timing = Timing(0.1 * slower * number, slower * costs.verify[number])
            policy.learn(number, min(max(number - 1, 1), number), number + 1, timing)
        return number

    assert lookahead(slower) == lookahead(1.0) > 1


@pytest.mark.parametrize("plain", [0, 8])
@pytest.mark.parametrize(("machine", "longer", "draft"), [(1.5, 1, 1), (1, 1.2, 1), (1, 1, 1.5)])
def test_drift_is_told_apart_by_kind_of_step(machine: float, longer: float, draft: float, plain: int) -> None:
    """What many plain passes show surely, passes and draft steps together show roughly."""
    drift = CostDrift()
    for number in range(60):
        if number < plain:
            drift.passed(machine, longer=False)
        drift.drafted(machine * draft)
        drift.passed(machine * longer, longer=True)
    expected = pytest.approx((machine, longer, draft), rel=0.05 if plain else 0.2)
    assert (drift.machine, drift.longer, drift.draft) == expected


def proposed_in(
    policy: AutoPolicy, told: Costs, acceptance: float, rounds: int, *, longer: float = 1.0, copies: bool = False
) -> list[int]:
    """Return the proposals of every round; passes over several tokens take `longer` times what was told.

    Passes are padded as in a run. `copies`: there is always one of two tokens, seldom right.
    """
    draft, width, before, found = independent(acceptance), QueryLength(told), 1, list[int]()
    draft_step, change = told.draft_step or 0.0, told.length_change or 0.0
    random = np.random.default_rng(1)
    for _ in range(rounds):
        copy = policy.copied([Match(1, (1, 2))]).tokens if copies else ()
        number = len(copy) or next(n for n in count() if not policy.goes_on(n, lambda: 0.6))
        chance = iter(lambda: bool(random.random() < 0.2), None) if copy else (right for right, _ in draft)
        accepted = next((n for n, right in enumerate(islice(chance, number)) if not right), number)
        fed = width.of(number + 1)
        seconds = told.verify[fed - 1] * (longer if fed > 1 else 1) + change * (fed != before)
        policy.learn(number, accepted, fed, Timing(0 if copy else draft_step * number, seconds), copy=bool(copy))
        found.append(number)
        before = fed
    return found


def told(*verify: float, draft: float = 0.1, change: float = 0.4) -> Costs:
    """Step costs in plain steps."""
    alike = [Spread(low=step, middle=step, high=step) for step in (*verify, draft)]
    return Costs.of([StepCosts(context=64, passes=tuple(alike[:-1]), draft=alike[-1], length_change=change)])


@pytest.mark.parametrize(("longer", "drafts"), [(1.25, False), (1.0, True)])
def test_drafting_ends_if_passes_over_several_tokens_cost_more_than_measured_beforehand(
    longer: float, drafts: bool
) -> None:
    """A draft that is right on 44 % pays off at v(2) = 1.16, and does not at 1.45; only plain rounds can tell."""
    costs = told(1, 1.16, 1.35, 1.6, 2.4)
    drafted_ = sum(number > 0 for number in proposed_in(AutoPolicy(costs, 16), costs, 0.44, 300, longer=longer)[60:])
    assert drafted_ > 0.7 * 240 if drafts else drafted_ < 0.3 * 240


@pytest.mark.parametrize("copies", [False, True])
def test_a_look_at_plain_rounds_ends_where_padding_costs_nothing(copies: bool) -> None:
    costs = told(1, 1, 1.4, 1.6, 2, draft=0.3)
    proposed = proposed_in(AutoPolicy(costs, 16), costs, 0.6, 600, copies=copies)
    plain = max(map(len, "".join("0" if not number else "1" for number in proposed).split("1")))
    assert 4 <= plain <= 24  # there are looks, and they end


def test_a_hiccup_while_the_draft_is_asked_does_not_silence_it() -> None:
    policy, rests = AutoPolicy(EVEN.model_copy(update={"draft_step": 3.0}), 16), list[int]()
    for number in range(400):
        policy.goes_on(0, lambda: 0.5)
        seconds = 0.001
        if policy.unread:
            policy.asked([False] * policy.unread)
            rests.append(number)
            seconds = 200.0
        policy.learn(0, 0, 1, Timing(seconds, 1.0))
    assert 3 <= len(rests) <= 6


def test_experience_survives_as_json_and_saves_the_first_rounds() -> None:
    policy, matches = AutoPolicy(EVEN, 16), [Match(2, (1, 2), (0.9, 0.8), "suffix")]
    for _ in range(40):
        policy.judged(matches, [1, 2])
        number = next(n for n in range(17) if not policy.goes_on(n, lambda: 0.95))
        policy.learn(number, number, number + 1)
    kept = Experience.from_dict(json.loads(json.dumps(policy.experience.to_dict())))
    taught, fresh = AutoPolicy(EVEN, 16, experience=kept), AutoPolicy(EVEN, 16)
    first = [next(n for n in range(17) if not one.goes_on(n, lambda: 0.95)) for one in (taught, fresh)]
    assert first[0] > first[1] == 1
    assert kept.chances(matches[0])[0] == pytest.approx(policy.experience.chances(matches[0])[0], abs=0.01)
    assert kept.earned.below <= 10.01
