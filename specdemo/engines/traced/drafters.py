"""Drafters: a draft model, one with a different tokenizer, and indexes of the text so far."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from specdemo.decoding.indexes import CopyIndex, TextIndex
from specdemo.decoding.lookahead import CombinedPolicy, LookaheadPolicy
from specdemo.decoding.round import Drafter, ModelSequence, Proposal, draft
from specdemo.decoding.sampling import (
    Ids,
    Logits,
    Probabilities,
    Uniform,
    distribution,
    draw,
    greatest_probability,
    penalised,
    resize,
)
from specdemo.engines.language_model import Tokens
from specdemo.engines.text import Tokenizer
from specdemo.settings import Sampling


class ModelDrafter(Drafter):
    def __init__(
        self,
        sequence: ModelSequence,
        vocabulary: int,
        context: int | None,
        policy: LookaheadPolicy,
        sampling: Sampling,
        random: Uniform,
        tokens: Tokens | None = None,
    ) -> None:
        """`context` limits text and proposals together; `tokens` are those of the logits, if not all of the target's.

        `vocabulary` is the target's number of logits; a draft with the same tokenizer may pad its own differently.
        """
        self._sequence, self._vocabulary, self._context = sequence, vocabulary, context
        self._policy, self._sampling, self._random, self._tokens = policy, sampling, random, tokens
        if tokens is not None:
            self._columns = np.full(vocabulary, -1)
            self._columns[tokens] = np.arange(len(tokens))

    def read(self, text: Sequence[int]) -> None:
        if self._context is None or len(text) <= self._context:
            self._sequence.logits(text)

    def propose(self, text: Sequence[int], limit: int) -> list[Proposal]:
        ids = list(text)  # copied once per round, on the clock

        def step(before: Sequence[Proposal]) -> Proposal:
            if before:
                ids.append(before[-1].id)
            return self.step(ids)

        return draft(self._policy, self.room(text, limit), step)

    def room(self, text: Sequence[int], limit: int) -> int:
        return limit if self._context is None else min(limit, self._context - len(text))

    def step(self, ids: Sequence[int]) -> Proposal:
        return self._choose(self._sequence.logits(ids)[0], np.array(ids))

    def learn(self, proposed: int, accepted: int) -> None:
        self._policy.learn(proposed, accepted)

    def _choose(self, logits: Logits, seen: Ids) -> Proposal:
        """Choose among the draft's own tokens; distributions are over all of the target's."""
        sampling = self._sampling
        if self._tokens is None:
            row = resize(logits, self._vocabulary)
        else:
            row = logits.copy()  # valid until the next step only
            columns = self._columns[seen]
            seen = columns[columns >= 0]

        def probabilities() -> Probabilities:
            reduced = distribution(row, sampling, seen)
            if self._tokens is None:
                return reduced
            result = np.zeros(self._vocabulary)
            np.add.at(result, self._tokens, reduced)
            return result

        if sampling.do_sample:
            sampled = probabilities()
            token = draw(sampled, self._random.random())
            return Proposal(token, lambda: sampled, lambda: float(sampled[token]))
        scores = penalised(row, seen, sampling.repetition_penalty)
        choice = int(scores.argmax())
        token = choice if self._tokens is None else int(self._tokens[choice])
        return Proposal(token, probabilities, lambda: greatest_probability(scores, choice))


class TextDrafter(Drafter):
    def __init__(self, index: TextIndex, vocabulary: int) -> None:
        self._index, self._vocabulary = index, vocabulary

    def read(self, text: Sequence[int]) -> None:
        self._index.find(text, 0)

    def propose(self, text: Sequence[int], limit: int) -> list[Proposal]:
        return _copies(self._index.find(text, limit).tokens, self._vocabulary)


def _copies(tokens: Sequence[int], vocabulary: int) -> list[Proposal]:
    return [Proposal(token, partial(_one_hot, token, vocabulary), copied=True) for token in tokens]


def _one_hot(token: int, vocabulary: int) -> Probabilities:
    return np.bincount([token], minlength=vocabulary).astype(float)


# tokens, where copies end rounds: SmolLM2's pass over them costs two plain steps, for a second and 200 MB
LONGEST_PASS = 16


class CombinedDrafter(Drafter):
    """Proposes a draft's chain, then a copy of what followed its end before; the policy decides how much of each."""

    def __init__(self, drafter: ModelDrafter, index: CopyIndex, policy: CombinedPolicy, vocabulary: int) -> None:
        self._drafter, self._index, self._policy, self._vocabulary = drafter, index, policy, vocabulary
        self._drafted = 0  # in the last round
        self._known = 0  # tokens that the draft has read

    def read(self, text: Sequence[int]) -> None:
        self._drafter.read(text)
        self._index.read(text)
        self._known = len(text)

    def propose(self, text: Sequence[int], limit: int) -> list[Proposal]:
        limit = min(limit, self._policy.cap)
        ids, chain, room = list(text), list[Proposal](), self._drafter.room(text, limit)
        ends = self._index.read(text)
        while True:
            more = self._policy.proposes_more(len(chain), lambda: chain[-1].confidence()) and len(chain) < room
            copy = self._index.copy(ends, limit - len(chain))
            unread = len(text) - self._known
            copied, more = self._policy.weigh(len(chain), copy.chances, more=more, unread=unread)
            if not more:
                self._drafted = len(chain)
                return [*chain, *_copies(copy.tokens[:copied], self._vocabulary)]
            if not chain:
                self._catch_up(text)
            chain.append(self._drafter.step(ids))
            ids.append(chain[-1].id)
            ends = self._index.after(ends, chain[-1].id)

    def _catch_up(self, text: Sequence[int]) -> None:
        """Read what was copied in passes of a compiled length: one pass of another takes five times as long."""
        for end in range(self._known + LONGEST_PASS, len(text), LONGEST_PASS):
            self._drafter.read(text[:end])
        self._known = len(text)

    def learn(self, proposed: int, accepted: int) -> None:
        self._known += min(accepted, max(self._drafted - 1, 0))  # it has read its proposals but the last
        self._policy.learn(self._drafted, accepted, copied=proposed - self._drafted)


class TranslatingDrafter(Drafter):
    """A draft model with a different tokenizer, in greedy decoding (universal assisted decoding, as in transformers).

    Proposed text is re-encoded for the target, so it has no probability: the target's tokens are not the draft's.
    """

    _CONTEXT = 16  # target tokens encoded again with the proposal, to tokenize the boundary consistently

    def __init__(self, drafter: ModelDrafter, draft_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> None:
        self._drafter, self._draft_tokenizer, self._target_tokenizer = drafter, draft_tokenizer, target_tokenizer

    def read(self, text: Sequence[int]) -> None:
        if draft_text := self._draft_tokenizer.encode(self._target_tokenizer.decode(text)):
            self._drafter.read(draft_text)

    def propose(self, text: Sequence[int], limit: int) -> list[Proposal]:
        draft_text = self._draft_tokenizer.encode(self._target_tokenizer.decode(text))
        if not draft_text:  # the text so far consists of special tokens
            return []
        proposals = self._drafter.propose(draft_text, limit)
        continuation = [proposal.id for proposal in proposals]
        before = self._draft_tokenizer.decode(draft_text)
        proposed = self._draft_tokenizer.decode(draft_text + continuation)[len(before) :]
        context = list(text[-self._CONTEXT :])
        encoded = self._target_tokenizer.encode(self._target_tokenizer.decode(context) + proposed)
        start = _find_end(context, encoded)
        new = encoded[start:] if start is not None else self._target_tokenizer.encode(proposed)
        return [Proposal(token, None) for token in new[: min(limit, len(proposals))]]

    def learn(self, proposed: int, accepted: int) -> None:
        self._drafter.learn(proposed, accepted)


def _find_end(context: Sequence[int], encoded: Sequence[int]) -> int | None:
    """Find the end of the context, which encoding may prefix with a few tokens; None if not found."""
    for start in range(min(3, len(encoded))):
        end = start + len(context)
        if list(encoded[start:end]) == list(context):
            return end
    return None
