"""Batches of conversations with the target's states, and which conversations are held out.

Prompts with the smallest digests are held out: of every text the same ones, and some of the shortest text too.
Conversations of like length share a batch, since all are padded to the longest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specdemo.train.conversations import LENGTH, OFFSET, PROMPT, SAMPLED, Conversation, Conversations
from specdemo.train.labels import States
from specdemo.train.network import Ids, Network

HELD_OUT, LEAST = 32, 8  # one prompt of greedy answers in 32, but at least 8, or a quarter of them
LONGEST = 512  # tokens of a conversation; what is behind them is left out
CHUNK = 256  # conversations that are sorted by length together


@dataclass(frozen=True)
class Batch:
    """Conversations side by side, padded at the right."""

    ids: Tensor
    """Token ids, [batch, tokens]."""

    small: Tensor
    """The same as places among the kept tokens; their number stands for all others."""

    states: Tensor
    """The target's, [batch, tokens, states, hidden], in bfloat16; the last is what its output rows read."""

    first: Tensor
    """Where each kept token, or the unknown one, occurs first, [batch, kept + 1]; far away where it does not."""

    judged: Tensor
    """Where the target's next token belongs to its answer, [batch, tokens]."""


class Material:
    """Conversations, states, and the target's output rows, which both kinds of draft are taught with."""

    def __init__(self, folder: Path, network: Network, states: int) -> None:
        """Open `text.*` and `states.f16`; only conversations that have states count."""
        self.network, self.conversations = network, Conversations(folder)
        shape, rows = (states, network.shape.hidden), self.conversations.rows
        stored = np.memmap(folder / "states.f16", np.float16, "r")
        self.states: States = stored[: len(stored) // prod(shape) * prod(shape)].reshape(-1, *shape)
        known = [index for index in range(len(rows)) if rows[index, OFFSET] + rows[index, LENGTH] <= len(self.states)]
        digests = {index: _digest(self.conversations[index]) for index in known}
        greedy = sorted({digests[index] for index in known if self.greedy(index)})
        last = min(max(len(greedy) // HELD_OUT, LEAST), len(greedy) // 4)
        limit = greedy[last] if greedy else -1
        self.held_out = [index for index in known if digests[index] <= limit]
        self.learnt = [index for index in known if digests[index] > limit]

    def frequent(self, most: int) -> Ids:
        """The tokens that answers use most often, in order of their ids."""
        counts = np.zeros(self.network.shape.vocabulary, np.int64)
        for one in self.conversations:
            counts += np.bincount(one.ids[one.prompt :], minlength=len(counts))
        return np.sort(np.argsort(-counts, kind="stable")[:most])

    def keep(self, kept: Ids) -> None:
        """Decide which tokens a draft knows."""
        self.kept = kept
        self.small = np.full(self.network.shape.vocabulary, len(kept), np.int64)
        self.small[kept] = np.arange(len(kept))
        self.output = torch.from_numpy(self.network.output[kept])

    def length(self, index: int) -> int:
        """Tokens of a conversation that count."""
        return min(LONGEST, int(self.conversations.rows[index, LENGTH]))

    def greedy(self, index: int) -> bool:
        """Whether the answer is the target's greedy one."""
        return not self.conversations.rows[index, SAMPLED]

    def epoch(self, seed: int, number: int, tokens: int) -> list[list[int]]:
        """Batches of one pass over what is learnt, of at most so many tokens each, padding included."""
        random = np.random.default_rng((seed, number))
        indices = [self.learnt[place] for place in random.permutation(len(self.learnt))]
        batches = list[list[int]]()
        for first in range(0, len(indices), CHUNK):
            batches += self.grouped(indices[first : first + CHUNK], tokens)
        return [batches[place] for place in random.permutation(len(batches))]

    def grouped(self, indices: list[int], tokens: int) -> Iterator[list[int]]:
        """Conversations in batches of like length."""
        batch = list[int]()
        for index in sorted(indices, key=self.length):
            if batch and (len(batch) + 1) * self.length(index) > tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def batch(self, indices: list[int]) -> Batch:
        """Read conversations and their states."""
        size, longest = len(indices), max(map(self.length, indices))
        ids, judged = np.zeros((size, longest), np.int64), np.zeros((size, longest), bool)
        states = torch.zeros((size, longest, *self.states.shape[1:]), dtype=torch.bfloat16)
        for place, index in enumerate(indices):
            offset, prompt = (int(self.conversations.rows[index, column]) for column in (OFFSET, PROMPT))
            length = self.length(index)
            ids[place, :length] = self.conversations[index].ids[:length]
            judged[place, prompt - 1 : length - 1] = True
            states[place, :length] = torch.from_numpy(np.array(self.states[offset : offset + length])).bfloat16()
        small = torch.from_numpy(self.small[ids])
        first = torch.full((size, len(self.kept) + 1), 2**31 - 1, dtype=torch.int32)
        places = torch.arange(longest, dtype=torch.int32).expand(size, -1)
        first.scatter_reduce_(1, small, places, "amin")
        return Batch(torch.from_numpy(ids), small, states, first, torch.from_numpy(judged))


def _digest(conversation: Conversation) -> int:
    """Of a prompt, so that the same one asked twice is never on both sides."""
    ids = conversation.ids[: conversation.prompt].astype(np.uint32)
    return int.from_bytes(blake2b(ids.tobytes(), digest_size=8).digest(), "little")
