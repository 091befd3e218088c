"""What the drafter of a GenAI round proposed, found again off the clock.

GenAI's pipelines do not tell which proposals were refused. Two drafters can be run again over the committed
text, because what they propose is a function of it: the draft model in greedy decoding, and prompt lookup
always. Each replayed round is checked against what was committed, and kept only if it can have led there.

The rules below are those of openvino-genai 2026.4 and are tested against its counters.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from specdemo.engines.stateful import Logits, StatefulModel
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
        history, longest = self._history, self._settings.max_ngram_size
        if longest >= len(history):
            longest = len(history) // 2
        limit = min(limit, self._settings.num_assistant_tokens)
        for size in range(longest, 0, -1):
            recent = history[-size:]
            for start in range(len(history) - size):
                if history[start : start + size] == recent:
                    return [(token, None) for token in history[start + size : start + size + limit]]
        return []

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn what that round committed."""
        self._history += tokens


class DraftReplay:
    """The draft model, greedy.

    GenAI penalises, besides the text so far, every token the draft ever proposed in this request, also those
    that were refused; the repetition penalty here does the same.
    """

    def __init__(self, model: StatefulModel, prompt: Sequence[int], settings: GenerationSettings) -> None:
        self._model = model
        self._settings = settings
        self._seen = set(prompt)
        self._waiting = list(prompt)  # committed, not fed yet
        self._proposed: list[int] = []
        model.reset()
        self._choose(self._feed(()))  # a prefill proposes one token, which is never verified but penalised

    def propose(self, limit: int) -> list[Proposal]:
        """The next round's proposals, at most `limit`."""
        if self._settings.policy == "constant":
            limit = min(limit, self._settings.num_assistant_tokens)
        proposals: list[Proposal] = []
        while len(proposals) < limit:
            logits = self._feed([token for token, _ in proposals[-1:]])
            token, probability = self._choose(logits)
            proposals.append((token, probability))
            # GenAI takes a log-probability of exactly 0 for "not known" and stops there too.
            certain = np.float32(np.log(probability)) == 0
            confident = probability >= self._settings.assistant_confidence_threshold and not certain
            if self._settings.policy == "confidence" and not confident:
                break
        self._proposed = [token for token, _ in proposals]
        return proposals

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn what that round committed."""
        fed, kept = self._proposed[:-1], 0
        # The last token is always fed anew: its logits are where the next round begins.
        while kept < min(len(fed), len(tokens) - 1) and fed[kept] == tokens[kept]:
            kept += 1
        self._model.rollback(len(fed) - kept)
        self._waiting += tokens[kept:]
        self._seen.update(tokens)
        self._proposed = []

    def _feed(self, tokens: Sequence[int]) -> Logits:
        fed, self._waiting = [*self._waiting, *tokens], []
        logits: Logits = self._model.feed(fed)[-1]
        return logits

    def _choose(self, logits: Logits) -> tuple[int, float]:
        penalised = logits.astype(np.float32, copy=True)
        seen = np.fromiter(self._seen, np.int64)
        penalty = np.float32(self._settings.repetition_penalty)
        penalised[seen] = np.where(logits[seen] >= 0, logits[seen] / penalty, logits[seen] * penalty)
        token = int(penalised.argmax())
        self._seen.add(token)
        weights = np.exp(logits - logits.max())
        return token, float(weights[token] / weights.sum())
