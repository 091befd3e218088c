from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from specdemo.decoding.round import Proposal
from specdemo.decoding.sampling import Logits
from specdemo.engines.genai.replay import DraftReplay
from specdemo.records import Request
from specdemo.settings import Sampling
from specdemo.strategies import Confidence, Constant


class CountingDraft:
    def logits(self, ids: Sequence[int], last: int = 1) -> Logits:
        return np.eye(10, dtype=np.float32)[[(token + 1) % 10 for token in ids[-last:]]] * 9

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        return iter(())


def ids(proposals: list[Proposal]) -> list[int]:
    return [proposal.id for proposal in proposals]


def test_the_draft_proposes_what_it_would_have_in_each_round() -> None:
    replay, text = DraftReplay(CountingDraft(), [3], Request("", Constant(3))), [3, 4]
    assert ids(replay(text, 99)) == [5, 6, 7]
    text += [5, 6, 7, 8]  # all accepted, and a bonus
    assert ids(replay(text, 99)) == [9, 0, 1]
    text += [9, 5]  # one accepted, then a correction
    assert ids(replay(text, 2)) == [6, 7]


def test_a_confidence_threshold_ends_a_proposal_with_the_token_below_it() -> None:
    [proposal] = DraftReplay(CountingDraft(), [3], Request("", Confidence(1)))([3, 4], 99)
    assert proposal.id == 5
    assert proposal.probability == pytest.approx(np.exp(9) / (np.exp(9) + 9))


def test_rejected_proposals_stay_penalised() -> None:
    replay = DraftReplay(CountingDraft(), [3], Request("", Constant(1), Sampling(repetition_penalty=2)))
    assert ids(replay([3, 4], 99)) == [5]
    assert ids(replay([3, 4, 4], 99)) == [5], "5 was refused, and half its logit still beats the others'"
