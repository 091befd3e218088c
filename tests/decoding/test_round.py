"""Rounds of a target and a drafter that count, on a clock that only they and the reader advance."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from specdemo.decoding import round as module
from specdemo.decoding.round import Committed, Drafter, Proposal, rounds
from specdemo.decoding.sampling import Logits
from specdemo.settings import Sampling

PASS, DRAFT, READ = 10.0, 1.0, 4.0  # seconds


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter", clock)
    return clock


class Counting:
    """After n comes n + 1."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def logits(self, ids: Sequence[int], last: int = 1) -> Logits:
        self.clock.now += PASS
        return np.eye(100, dtype=np.float32)[[(token + 1) % 100 for token in ids[-last:]]]

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        self.clock.now += READ
        yield len(ids) - 1


class ByThree(Drafter):
    """Proposes the next three numbers, and 99 instead of any `wrong` one."""

    def __init__(self, clock: Clock, *wrong: int) -> None:
        self.clock, self.wrong, self.learnt = clock, wrong, list[tuple[int, int]]()

    def read(self, text: Sequence[int]) -> None:
        self.prompt = [*text]

    def propose(self, text: Sequence[int], limit: int) -> list[Proposal]:
        self.clock.now += DRAFT
        following = range(text[-1] + 1, text[-1] + 1 + min(3, limit))
        return [Proposal(99 if token in self.wrong else token, None) for token in following]

    def learn(self, proposed: int, accepted: int) -> None:
        self.learnt.append((proposed, accepted))


def decoded(clock: Clock, drafter: Drafter | None, tokens: int, *eos: int) -> list[Committed]:
    random, steps = np.random.default_rng(0), list[Committed]()
    for step in rounds([0, 1], Counting(clock), drafter, Sampling(), random, tokens, frozenset(eos)):
        clock.now += 1000  # whoever shows it takes time
        steps += [step] if isinstance(step, Committed) else []
    return steps


def test_a_round_commits_what_is_accepted_and_one_token_more(clock: Clock) -> None:
    drafter = ByThree(clock, 4, 9)
    steps = decoded(clock, drafter, 10)
    assert [step.ids for step in steps] == [[2], [3, 4], [5, 6, 7, 8], [9], [10, 11]]
    assert drafter.prompt == [0, 1]
    assert drafter.learnt == [(0, 0), (3, 1), (3, 3), (2, 0), (1, 1)], "no more is proposed than can be committed"
    assert [step.finish_reason for step in steps] == [None] * 4 + ["length"]
    assert [step.logits.shape for step in steps[:2]] == [(1, 100), (4, 100)]
    assert [Proposal(1, each).probability for each in (None, lambda: np.array([0.25, 0.75]))] == [None, 0.75]


def test_a_text_ends_within_accepted_proposals(clock: Clock) -> None:
    steps = decoded(clock, ByThree(clock), 10, 4)
    assert [(step.ids, step.finish_reason) for step in steps] == [([2], None), ([3, 4], "stop")]


def test_the_clock_covers_drafting_and_passes_but_not_the_reader(clock: Clock) -> None:
    prefill, *others = decoded(clock, ByThree(clock), 10)
    assert (prefill.draft_seconds, prefill.verify_seconds, prefill.seconds) == (0, READ + PASS, READ + PASS)
    for step in others:
        drafting = DRAFT if step.proposals else 0
        assert (step.draft_seconds, step.verify_seconds, step.seconds) == (drafting, PASS, drafting + PASS)
    assert {step.seconds for step in decoded(clock, None, 10)} == {READ + PASS, PASS}
