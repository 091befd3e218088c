"""What the drafter of a GenAI round proposed, found again off the clock.

GenAI's pipelines do not tell which proposals were refused. Two drafters can be run again over the committed
text, because what they propose is a function of it: the draft model in greedy decoding, and prompt lookup
always. Each replayed round is checked against what was committed, and kept only if it can have led there.

The rules below are those of openvino-genai 2026.4 and are tested against its counters.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from specdemo.decoding.lookup import look_up
from specdemo.decoding.sampling import greedy_choice, softmax
from specdemo.engines.language_model import Sequence as ModelSequence
from specdemo.settings import GenerationSettings

Proposal = tuple[int, float | None]
"""A token id and the draft's probability of it, if it has one."""


class Replay(Protocol):
    """A drafter that is told the committed text and says what it must have proposed."""

    def propose(self, limit: int) -> list[Proposal]:
        """The next round's proposals, at most `limit`."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn what that round committed."""


class LookupReplay:
    """Prompt lookup: copies what followed the earliest occurrence of the longest recent n-gram."""

    def __init__(self, prompt: Sequence[int], settings: GenerationSettings) -> None:
        self._history = list(prompt)
        self._settings = settings

    def propose(self, limit: int) -> list[Proposal]:
        """The next round's proposals, at most `limit`."""
        limit = min(limit, self._settings.num_assistant_tokens)
        return [(token, None) for token in look_up(self._history, self._settings.max_ngram_size, limit)]

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn what that round committed."""
        self._history += tokens


class DraftReplay:
    """The draft model, greedy.

    GenAI penalises, besides the text so far, every token the draft ever proposed in this request, also those
    that were refused; the repetition penalty here does the same.
    """

    def __init__(self, draft: ModelSequence, prompt: Sequence[int], settings: GenerationSettings) -> None:
        self._draft = draft
        self._settings = settings
        self._text = list(prompt)
        self._seen = set(prompt)
        self._choose(self._text)  # a prefill proposes one token, which is never verified but penalised

    def propose(self, limit: int) -> list[Proposal]:
        """The next round's proposals, at most `limit`."""
        if self._settings.policy == "constant":
            limit = min(limit, self._settings.num_assistant_tokens)
        proposals: list[Proposal] = []
        while len(proposals) < limit:
            token, probability = self._choose([*self._text, *(token for token, _ in proposals)])
            proposals.append((token, probability))
            # GenAI takes a log-probability of exactly 0 for "not known" and stops there too.
            certain = np.float32(np.log(probability)) == 0
            confident = probability >= self._settings.assistant_confidence_threshold and not certain
            if self._settings.policy == "confidence" and not confident:
                break
        return proposals

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn what that round committed."""
        self._text += tokens
        self._seen.update(tokens)

    def _choose(self, text: Sequence[int]) -> tuple[int, float]:
        logits = self._draft.logits(text)[0]
        token = greedy_choice(logits, self._settings, self._seen)
        self._seen.add(token)
        return token, float(softmax(logits)[token])
