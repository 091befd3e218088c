"""Batches of conversations with the target's states, and which conversations are held out.

A question is held out or learnt by a digest of its prompt, so that the same question asked twice is never on both
sides. Conversations of like length share a batch, since all are padded to the longest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdemo.train.conversations import LENGTH, OFFSET, PROMPT, SAMPLED, Conversation, Conversations
from specdemo.train.network import Network

HELD_OUT = 32  # one conversation in so many
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
    """Conversations, states, and the target's rows that both kinds of draft are taught with."""

    def __init__(self, folders: list[Path], network: Network, states: int, kept: int) -> None:
        """Open folders of `text.*` and `states.f16`, of which only conversations that have states count."""
        self.sources: list[tuple[Conversations, npt.NDArray[np.float16]]] = []
        self.lengths = list[int]()
        self.learnt, self.held_out = list[tuple[int, int]](), list[tuple[int, int]]()
        hidden, counts = network.shape.hidden, np.zeros(network.shape.vocabulary, np.int64)
        for source, folder in enumerate(folders):
            conversations = Conversations(folder)
            stored = np.memmap(folder / "states.f16", np.float16, "r")
            labels: npt.NDArray[np.float16] = stored[: len(stored) // (states * hidden) * states * hidden].reshape(
                -1, states, hidden
            )
            self.sources.append((conversations, labels))
            for index, (row, one) in enumerate(zip(conversations.rows, conversations, strict=True)):
                counts += np.bincount(one.ids[one.prompt :], minlength=len(counts))
                if row[OFFSET] + row[LENGTH] <= len(labels):
                    (self.held_out if is_held_out(one) else self.learnt).append((source, index))
        self.counts, self.embedding = counts, torch.from_numpy(network.embedding)
        self.fix(np.sort(np.argsort(-counts, kind="stable")[: min(kept, len(counts))]), network)

    def fix(self, kept: npt.NDArray[np.int64], network: Network) -> None:
        """Decide which tokens a draft knows."""
        self.kept = kept
        self.covered = float(self.counts[kept].sum() / max(1, self.counts.sum()))
        self.small = np.full(len(self.counts), len(kept), np.int64)
        self.small[kept] = np.arange(len(kept))
        self.output = torch.from_numpy(network.output[kept])

    def length(self, key: tuple[int, int]) -> int:
        """Tokens of a conversation that count."""
        return min(LONGEST, int(self.sources[key[0]][0].rows[key[1], LENGTH]))

    def greedy(self, key: tuple[int, int]) -> bool:
        """Whether the answer is the target's greedy one."""
        return not self.sources[key[0]][0].rows[key[1], SAMPLED]

    def epoch(self, seed: int, number: int, tokens: int) -> list[list[tuple[int, int]]]:
        """Batches of one pass over what is learnt, of at most so many tokens each, padding included."""
        random = np.random.default_rng((seed, number))
        keys = [self.learnt[index] for index in random.permutation(len(self.learnt))]
        batches = list[list[tuple[int, int]]]()
        for first in range(0, len(keys), CHUNK):
            batches += self.grouped(keys[first : first + CHUNK], tokens)
        return [batches[index] for index in random.permutation(len(batches))]

    def grouped(self, keys: list[tuple[int, int]], tokens: int) -> Iterator[list[tuple[int, int]]]:
        """Conversations in batches of like length."""
        batch = list[tuple[int, int]]()
        for key in sorted(keys, key=self.length):
            if batch and (len(batch) + 1) * self.length(key) > tokens:
                yield batch
                batch = []
            batch.append(key)
        if batch:
            yield batch

    def batch(self, keys: list[tuple[int, int]]) -> Batch:
        """Read conversations and their states."""
        longest = max(map(self.length, keys))
        width = self.sources[0][1].shape[1:]
        ids, judged = np.zeros((len(keys), longest), np.int64), np.zeros((len(keys), longest), bool)
        states = torch.zeros((len(keys), longest, *width), dtype=torch.bfloat16)
        for place, (source, index) in enumerate(keys):
            conversations, labels = self.sources[source]
            offset, prompt = (int(conversations.rows[index, column]) for column in (OFFSET, PROMPT))
            length = self.length((source, index))
            ids[place, :length] = conversations[index].ids[:length]
            judged[place, prompt - 1 : length - 1] = True
            states[place, :length] = torch.from_numpy(np.array(labels[offset : offset + length])).bfloat16()
        small = torch.from_numpy(self.small[ids])
        first = torch.full((len(keys), len(self.kept) + 1), 2**31 - 1, dtype=torch.int32)
        places = torch.arange(longest, dtype=torch.int32).expand(len(keys), -1)
        first.scatter_reduce_(1, small, places, "amin")
        return Batch(torch.from_numpy(ids), small, states, first, torch.from_numpy(judged))


def is_held_out(conversation: Conversation) -> bool:
    """Whether a conversation is kept for judging, by its prompt."""
    digest = blake2b(conversation.ids[: conversation.prompt].astype(np.uint32).tobytes(), digest_size=4)
    return int.from_bytes(digest.digest(), "little") % HELD_OUT == 0
