"""Two sources of proposals: what each is worth, without a model."""

from specdemo.decoding.indexes import NO_MATCH, Match
from specdemo.decoding.sources import Sources
from specdemo.records import Costs

COSTS = Costs(plain_step=1.0, draft_step=0.1, verify=(1.0,) * 17)
FOUND = Match(3, (1, 2, 3, 4))


def test_a_copy_that_proves_right_is_proposed_and_one_that_proves_wrong_is_not() -> None:
    right, wrong = Sources(COSTS), Sources(COSTS)
    for _ in range(20):
        for sources, committed in ((right, [1, 2, 3, 4, 5]), (wrong, [9])):
            sources.copy_judged(FOUND, committed)
            sources.drafted(4, 2, 5)
    assert (right.copied(FOUND), wrong.copied(FOUND)) == (4, 0)
    assert right.copied(NO_MATCH) == 0


def test_the_draft_proposes_where_its_rounds_earn_more() -> None:
    sources = Sources(COSTS)
    for _ in range(40):
        sources.copy_judged(FOUND, [1, 2, 9])
    assert sources.copied(FOUND)
    for _ in range(40):
        sources.drafted(4, 4, 5)
    assert sources.copied(FOUND) == 0


def test_a_copy_is_no_longer_than_pays_off() -> None:
    steep = Sources(COSTS.model_copy(update={"verify": (1.0, 1.0, 1.0, *(3.0 * n for n in range(3, 17)))}))
    for _ in range(10):
        steep.copy_judged(FOUND, [1, 2, 3, 4, 5])
    assert steep.copied(FOUND) == 2


def test_a_draft_that_loses_rests_and_comes_back_when_it_is_right() -> None:
    sources = Sources(COSTS)
    assert 0.8 < sum(rested(sources, 200, accepted=0)) / 200 < 1
    assert not any(rested(sources, 60, accepted=4)[-20:])
    assert not any(rested(Sources(COSTS, resting=False), 50, accepted=0))


def rested(sources: Sources, rounds: int, accepted: int) -> list[bool]:
    """In which of these rounds the draft rested; in the others so many of its 4 proposals were accepted."""
    found = []
    for _ in range(rounds):
        found.append(sources.rests())
        if not found[-1]:
            sources.drafted(4, accepted, 5)
    return found
