"""Batches of conversations with the target's hidden states, split into training and held-out parts.

Some prompts of every source are held out, and one source altogether: agreement on the first shows how well the draft
does on prompts like those it was trained on, agreement on the second on unfamiliar ones.
Conversations of similar length share a batch, since all are padded to the longest.
"""

import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import openvino as ov
import torch
from torch import Tensor

from specdemo.train.architecture import PRODUCTS
from specdemo.train.corpus import ANSWERED, LENGTH, OFFSET, SAMPLED, Corpus, Ids
from specdemo.train.network import Network

LONGEST = 1024  # tokens of a conversation; the rest is cut off
CHUNK = 256  # conversations sorted by length at a time

States = npt.NDArray[np.float16]
"""Shape (tokens, states, hidden)."""


class Labeller:
    """A target that outputs its hidden states instead of logits.

    The last state, after the final norm, times the output rows gives the target's whole distribution, so only the
    state is stored: 2 bytes per hidden unit instead of the probabilities of chosen tokens. A head reads three earlier
    states as well.
    """

    def __init__(self, network: Network, layers: tuple[int, ...], threads: int = 0) -> None:
        """Compile the model with the states after `layers` and the last one as outputs."""
        self.states = len(layers) + 1
        outputs = [network.ends[layer].output(0) for layer in layers] + [network.head.input_value(0)]
        results = [ov.opset13.result(output) for output in outputs]
        model = ov.Model(results, network.model.get_sinks(), network.model.get_parameters(), "states")
        # the device's default precision, but no dynamic quantization, which moves states far from the target's
        properties = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0} | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
        self.request = network.core.compile_model(model, "CPU", properties).create_infer_request()
        self.inputs = {name for value in model.inputs for name in value.get_names()}

    def __call__(self, ids: Ids) -> States:
        """Return the states at every position of a text."""
        self.request.reset_state()
        given = {
            "input_ids": ids[None],
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self.request.infer({name: value for name, value in given.items() if name in self.inputs})
        found = [self.request.get_output_tensor(index).data[0] for index in range(self.states)]
        return np.stack(found, axis=1).astype(np.float16)


def write_labels(
    labeller: Callable[[Ids], States],
    row_bytes: int,
    corpus: Corpus,
    file: Path,
    share: Callable[[], float],
    say: Callable[[str], None] = print,
) -> None:
    """Append the states of conversations without any until `share` of the budget is 1.

    The states of a conversation that a crash left incomplete are written anew.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    ends = corpus.rows[:, OFFSET].astype(np.int64) + corpus.rows[:, LENGTH]
    done = int(np.searchsorted(ends, file.stat().st_size // row_bytes, side="right"))
    with file.open("r+b") as sink:
        sink.truncate(int(ends[done - 1]) * row_bytes if done else 0)
        sink.seek(0, 2)
        began = time.monotonic()
        for index in range(done, len(corpus)):
            if index and share() >= 1:
                say(f"labels: time is up after {index} of {len(corpus)} conversations")
                break
            sink.write(labeller(corpus[index].ids).tobytes())
            if (index + 1) % 64 == 0 or index + 1 == len(corpus):
                left = (time.monotonic() - began) / (index + 1 - done) * (len(corpus) - index - 1)
                say(f"labels: {index + 1} of {len(corpus)} conversations, {left / 60:.0f} minutes left")


@dataclass(frozen=True)
class Batch:
    """Conversations side by side, padded on the right."""

    ids: Tensor
    """Token ids, [batch, tokens]."""

    small: Tensor
    """Ids in the draft's vocabulary; its size stands for all other tokens."""

    states: Tensor
    """The target's states, [batch, tokens, states, hidden], in `PRODUCTS`; the output rows read the last one."""

    labelled: list[bool]
    """For each conversation, True if its states are known; otherwise they are zeros."""

    first: Tensor
    """First position of each vocabulary token and of the unknown one, [batch, size + 1]; 2**31 - 1 if absent."""

    scored: Tensor
    """Mask of the positions whose next token belongs to the target's answer, [batch, tokens]."""

    learned: Tensor
    """The same mask, without next tokens outside the vocabulary where only they would be learned from."""


class Dataset:
    """Conversations, hidden states and the target's output rows: the training data of both kinds of draft."""

    def __init__(self, folder: Path, network: Network, states: int, hold_out: str = "") -> None:
        """Open `text.*` and `states.f16`; `hold_out` is a source, `states` their number per position.

        A head reads the states, so conversations without any are left out; a draft learns those by their tokens.
        """
        self.network, self.corpus = network, Corpus(folder)
        shape, rows = (states, network.shape.hidden), self.corpus.rows
        stored = np.memmap(folder / "states.f16", np.float16, "r")
        self.states: States = stored[: len(stored) // prod(shape) * prod(shape)].reshape(-1, *shape)
        ends = rows[:, OFFSET].astype(np.int64) + rows[:, LENGTH]
        self.labelled = ends <= len(self.states)
        usable = self.labelled if states > 1 else np.ones(len(rows), bool)
        kept = {index for index in np.flatnonzero(usable).tolist() if self._answered(index)}
        parts = self.corpus.split(hold_out)
        self.train, self.held_out, self.elsewhere = ([one for one in part if one in kept] for part in parts)

    def _answered(self, index: int) -> bool:
        return bool(self.corpus[index].answered[1 : self.length(index)].any())

    def frequent(self, most: int) -> Ids:
        """Return the tokens that answers use most often, sorted by id, not counting the source held out."""
        counts = self.counts()
        return np.sort(np.argsort(-counts, kind="stable")[:most])

    def counts(self) -> Ids:
        """Count each token of the target's vocabulary in the answers."""
        counts = np.zeros(self.network.shape.vocabulary, np.int64)
        for index in (*self.train, *self.held_out):
            one = self.corpus[index]
            counts += np.bincount(one.ids[one.answered], minlength=len(counts))
        return counts

    def choose(self, vocabulary: Ids) -> None:
        self.vocabulary = vocabulary
        self.small = np.full(self.network.shape.vocabulary, len(vocabulary), np.int64)
        self.small[vocabulary] = np.arange(len(vocabulary))
        self.output = torch.from_numpy(self.network.output[vocabulary])

    def reduced(self, share: float, seed: int) -> "Dataset":
        """Return a copy with a share of the training conversations; smaller shares are subsets of larger ones."""
        order, part = np.random.default_rng(seed).permutation(len(self.train)), copy(self)
        part.train = [self.train[place] for place in order[: max(1, round(share * len(order)))]]
        return part

    @property
    def answer_tokens(self) -> int:
        """Number of answer tokens in the training part."""
        return int(self.corpus.rows[self.train, ANSWERED].sum())

    def length(self, index: int) -> int:
        """Return a conversation's number of tokens, at most `LONGEST`."""
        return min(LONGEST, int(self.corpus.rows[index, LENGTH]))

    def greedy(self, indices: list[int]) -> list[int]:
        """Return the conversations with greedy answers."""
        return [index for index in indices if not self.corpus.rows[index, SAMPLED]]

    def epoch(self, seed: int, number: int, tokens: int) -> list[list[int]]:
        """Return the batches of one pass over the training part, each of at most `tokens` tokens with padding."""
        random = np.random.default_rng((seed, number))
        indices = [self.train[place] for place in random.permutation(len(self.train))]
        batches = list[list[int]]()
        for first in range(0, len(indices), CHUNK):
            batches += self.grouped(indices[first : first + CHUNK], tokens)
        return [batches[place] for place in random.permutation(len(batches))]

    def grouped(self, indices: list[int], tokens: int) -> Iterator[list[int]]:
        """Yield batches of conversations of similar length."""
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
        ids, scored = np.zeros((size, longest), np.int64), np.zeros((size, longest), bool)
        states = torch.zeros((size, longest, *self.states.shape[1:]), dtype=PRODUCTS)
        for place, index in enumerate(indices):
            one, length, offset = self.corpus[index], self.length(index), int(self.corpus.rows[index, OFFSET])
            ids[place, :length] = one.ids[:length]
            scored[place, : length - 1] = one.answered[1:length]
            if self.labelled[index]:
                states[place, :length] = torch.from_numpy(np.array(self.states[offset : offset + length]))
        small = torch.from_numpy(self.small[ids])
        first = torch.full((size, len(self.vocabulary) + 1), 2**31 - 1, dtype=torch.int32)
        places = torch.arange(longest, dtype=torch.int32).expand(size, -1)
        first.scatter_reduce_(1, small, places, "amin")
        labelled, inside = self.labelled[indices], self.small[np.roll(ids, -1, axis=1)] < len(self.vocabulary)
        learned = scored & (labelled[:, None] | inside)  # the last position, which wraps around, is never scored
        masks = torch.from_numpy(scored), torch.from_numpy(learned)
        return Batch(torch.from_numpy(ids), small, states, labelled.tolist(), first, *masks)
