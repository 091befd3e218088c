"""What the drafter of a GenAI round proposed, reconstructed off the clock.

GenAI's pipelines do not report rejected proposals. Two drafters can be replayed over the committed text, because
their proposals are a function of it: the draft model in greedy decoding, and prompt lookup always. Each replayed
round is checked against what was committed, and kept only if it could have led there.

The rules below are those of openvino-genai 2026.4 and are tested against its counters.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from specdemo.decoding.indexes import look_up
from specdemo.decoding.lookahead import policy_for, propose
from specdemo.decoding.sampling import greedy_choice, softmax
from specdemo.records import Request
from specdemo.runtime.language_model import ModelSequence
from specdemo.strategies import Lookup

Replayed = tuple[int, float | None]
"""A proposed token's id and the draft's probability of it, if it has one."""


class Replay(Protocol):
    """A drafter that is given the committed text and returns what it must have proposed."""

    def propose(self, limit: int) -> list[Replayed]:
        """The next round's proposals, at most `limit`."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn what that round committed."""


class LookupReplay:
    """Prompt lookup: copies what followed the earliest occurrence of the longest recent n-gram."""

    def __init__(self, prompt: Sequence[int], strategy: Lookup) -> None:
        self._history = list(prompt)
        self._strategy = strategy

    def propose(self, limit: int) -> list[Replayed]:
        """The next round's proposals, at most `limit`."""
        limit = min(limit, self._strategy.num_assistant_tokens)
        return [(token, None) for token in look_up(self._history, self._strategy.max_ngram_size, limit)]

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn what that round committed."""
        self._history += tokens


class DraftReplay:
    """The draft model, greedy.

    Besides the text so far, GenAI penalises every token the draft ever proposed in this request, even rejected
    ones; the repetition penalty here does the same.
    """

    def __init__(self, draft: ModelSequence, prompt: Sequence[int], request: Request) -> None:
        self._draft = draft
        self._sampling = request.sampling
        self._policy = policy_for(request.strategy)
        self._text = list(prompt)
        self._seen = set(prompt)
        self._choose(self._text)  # a prefill proposes one token, which is never verified, but penalised

    def propose(self, limit: int) -> list[Replayed]:
        """The next round's proposals, at most `limit`."""

        def choose(before: Sequence[Replayed]) -> Replayed:
            return self._choose([*self._text, *(token for token, _ in before)])

        return propose(self._policy, limit, choose, _confidence)

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn what that round committed."""
        self._text += tokens
        self._seen.update(tokens)

    def _choose(self, text: Sequence[int]) -> Replayed:
        logits = self._draft.logits(text)[0]
        token = greedy_choice(logits, self._sampling, self._seen)
        self._seen.add(token)
        return token, float(softmax(logits)[token])


def _confidence(proposal: Replayed) -> float:
    """The draft's probability; GenAI reads a log-probability of exactly 0 as "unknown", below any threshold."""
    _, probability = proposal
    assert probability is not None, "a draft model knows its probabilities"
    return -1.0 if np.float32(np.log(probability)) == 0 else probability
