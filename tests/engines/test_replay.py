from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.decoding.verification import Logits
from specdemo.engines.genai.replay import DraftReplay, LookupReplay
from specdemo.records import Request
from specdemo.settings import Sampling
from specdemo.strategies import Confidence, Constant, Lookup


def test_lookup_learns_what_was_committed() -> None:
    replay = LookupReplay([1, 2, 3], Lookup(3, 4))
    assert replay.propose(9) == []
    replay.commit([1, 2])
    assert [token for token, _ in replay.propose(9)] == [3, 1, 2]


class CountingDraft:
    """A draft that always goes on counting, modulo 10, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def logits(self, ids: Sequence[int], last: int = 1) -> Logits:
        self.asked = list(ids)
        return np.eye(10, dtype=np.float32)[[(token + 1) % 10 for token in ids[-last:]]] * 9

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        return iter(())

    def shared(self, ids: Sequence[int]) -> int:
        return 0


def ids(proposals: list[tuple[int, float | None]]) -> list[int]:
    return [token for token, _ in proposals]


def test_the_draft_proposes_what_it_would_have_in_each_round() -> None:
    replay = DraftReplay(CountingDraft(), [3], Request("", Constant(3)))
    replay.commit([4])
    assert ids(replay.propose(99)) == [5, 6, 7]
    replay.commit([5, 6, 7, 8])  # all accepted, and a bonus
    assert ids(replay.propose(99)) == [9, 0, 1]
    replay.commit([9, 5])  # one accepted, then a correction
    assert ids(replay.propose(2)) == [6, 7]
    replay.commit([1])
    assert ids(replay.propose(99)) == [2, 3, 4]


def test_a_confidence_threshold_ends_a_proposal_with_the_token_below_it() -> None:
    replay = DraftReplay(CountingDraft(), [3], Request("", Confidence(1)))
    replay.commit([4])
    [(token, probability)] = replay.propose(99)
    assert token == 5
    assert probability == pytest.approx(np.exp(9) / (np.exp(9) + 9))


def test_tokens_proposed_in_vain_stay_penalised() -> None:
    replay = DraftReplay(CountingDraft(), [3], Request("", Constant(1), Sampling(repetition_penalty=2)))
    replay.commit([4])
    assert ids(replay.propose(99)) == [5]
    replay.commit([4])  # 5 was refused, and half its logit still beats the others'
    assert ids(replay.propose(99)) == [5]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), max_size=8), st.integers(0, 6))
def test_the_draft_always_goes_on_from_what_was_committed(rounds: list[list[int]], limit: int) -> None:
    """Also where a replay was wrong, so that later rounds are right again."""
    draft = CountingDraft()
    replay = DraftReplay(draft, [3], Request("", Constant(4)))
    committed = [3]
    for tokens in [[4], *rounds]:
        replay.commit(tokens)
        committed += tokens
        proposals = ids(replay.propose(limit))
        if proposals:
            assert draft.asked == committed + proposals[:-1]
            assert proposals[0] == (committed[-1] + 1) % 10
