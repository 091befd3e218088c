"""The draft, copies and nothing: what each is worth to the automatic lookahead, without a model."""

import json

import pytest

from specdemo.decoding.auto import AutoPolicy, Experience, Timing
from specdemo.decoding.indexes import NO_MATCH, Match
from specdemo.records import Costs
from specdemo.settings import GenerationSettings

COSTS = Costs(plain_step=1.0, draft_step=0.1, verify=(1.0,) * 17)
FOUND = Match(3, (1, 2, 3, 4))


def both(costs: Costs = COSTS) -> AutoPolicy:
    """A policy whose draft proposes four tokens."""
    return AutoPolicy(costs, 16, constant=4)


def drafted(policy: AutoPolicy, accepted: int, proposed: int = 4) -> None:
    policy.goes_on(0, lambda: 0.5)
    policy.learn(proposed, accepted, proposed + 1)


def test_a_copy_that_proves_right_is_proposed_and_one_that_proves_wrong_is_not() -> None:
    right, wrong = both(), both()
    for _ in range(20):
        for policy, committed in ((right, [1, 2, 3, 4, 5]), (wrong, [9])):
            policy.judged([FOUND], committed)
            drafted(policy, 2)
    assert (right.copied([FOUND]), wrong.copied([FOUND])) == (FOUND, NO_MATCH)
    assert right.copied([]) == NO_MATCH


def test_the_draft_proposes_where_its_rounds_earn_more() -> None:
    policy = both()
    for _ in range(40):
        policy.judged([FOUND], [1, 2, 9])
    assert policy.copied([FOUND]).tokens
    for _ in range(40):
        drafted(policy, 4)
    assert policy.copied([FOUND]) == NO_MATCH


def test_a_copy_is_no_longer_than_pays_off() -> None:
    steep = both(COSTS.model_copy(update={"verify": (1.0, 1.0, 1.0, *(3.0 * n for n in range(3, 17)))}))
    for _ in range(10):
        steep.judged([FOUND], [1, 2, 3, 4, 5])
    assert steep.copied([FOUND]).tokens == (1, 2)


def test_the_source_that_proves_right_more_often_is_copied() -> None:
    tree, table = Match(3, (1, 2), (1.0, 1.0), "suffix"), Match(3, (7, 8), (0.6, 0.4), "table")
    policy = both()
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
    policy = both()
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
    policy = both()
    assert policy.update_strategy(GenerationSettings(num_assistant_tokens=7).strategy)
    assert [policy.goes_on(n, lambda: 0.0) for n in (1, 6, 7)] == [True, True, False]
    assert not AutoPolicy(COSTS, 16).update_strategy(GenerationSettings().strategy)


def test_step_costs_are_corrected_by_what_rounds_take() -> None:
    """A draft whose steps become ten times as dear is used less."""

    def proposed(policy: AutoPolicy, draft_step: float) -> int:
        for _ in range(60):
            number = next(n for n in range(17) if not policy.goes_on(n, lambda: 0.8))
            policy.learn(number, max(number - 1, 1), number + 1, Timing(draft_step * number, 1.0))
        return number

    assert proposed(AutoPolicy(COSTS, 16), 1.0) < proposed(AutoPolicy(COSTS, 16), 0.1)
    slower = AutoPolicy(COSTS, 16)
    for _ in range(60):  # all of the machine is slower: nothing changes
        number = next(n for n in range(17) if not slower.goes_on(n, lambda: 0.8))
        slower.learn(number, max(number - 1, 1), number + 1, Timing(0.15 * number, 1.5))
    assert slower.dearer == pytest.approx(1, abs=0.05)


def test_experience_survives_as_json_and_saves_the_first_rounds() -> None:
    policy, matches = AutoPolicy(COSTS, 16), [Match(2, (1, 2), (0.9, 0.8), "suffix")]
    for _ in range(40):
        policy.judged(matches, [1, 2])
        number = next(n for n in range(17) if not policy.goes_on(n, lambda: 0.95))
        policy.learn(number, number, number + 1)
    kept = Experience.from_dict(json.loads(json.dumps(policy.experience.to_dict())))
    taught, fresh = AutoPolicy(COSTS, 16, experience=kept), AutoPolicy(COSTS, 16)
    first = [next(n for n in range(17) if not one.goes_on(n, lambda: 0.95)) for one in (taught, fresh)]
    assert first[0] > first[1] == 1
    assert kept.chances(matches[0])[0] == pytest.approx(policy.experience.chances(matches[0])[0], abs=0.01)
    assert kept.earned.below <= 10.01
