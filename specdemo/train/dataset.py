"""Batches of conversations with the target's hidden states, and which conversations are held out.

Held out are some prompts of every source, and one source of prompts whole: agreement on the first is that on prompts
like those of the training, agreement on the second that on prompts unlike them.
Conversations of like length share a batch, since all are padded to the longest.
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

LONGEST = 1024  # tokens of a conversation; what is behind them is left out
CHUNK = 256  # conversations that are sorted by length together

States = npt.NDArray[np.float16]
"""Shape (tokens, states, hidden)."""


class Labeller:
    """A target that gives its hidden states instead of logits.

    The last one, after the last norm, times the output rows gives the target's whole distribution, so none is stored:
    2 bytes a hidden unit instead of probabilities of chosen tokens. A head reads three earlier states besides.
    """

    def __init__(self, network: Network, layers: tuple[int, ...], threads: int = 0) -> None:
        """Compile it with the states after `layers` and the last one as outputs."""
        self.states = len(layers) + 1
        outputs = [network.ends[layer].output(0) for layer in layers] + [network.head.input_value(0)]
        results = [ov.opset13.result(output) for output in outputs]
        model = ov.Model(results, network.model.get_sinks(), network.model.get_parameters(), "states")
        # The device's own precision, but for activations: quantized ones are far from the target's.
        properties = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0} | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
        self.request = network.core.compile_model(model, "CPU", properties).create_infer_request()
        self.inputs = {name for value in model.inputs for name in value.get_names()}

    def __call__(self, ids: Ids) -> States:
        """States at every position of a text."""
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
    say: Callable[[str], None] = print,
) -> None:
    """Append the states of all conversations that have none yet; what a crash left of one is written anew."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    ends = corpus.rows[:, OFFSET].astype(np.int64) + corpus.rows[:, LENGTH]
    done = int(np.searchsorted(ends, file.stat().st_size // row_bytes, side="right"))
    with file.open("r+b") as sink:
        sink.truncate(int(ends[done - 1]) * row_bytes if done else 0)
        sink.seek(0, 2)
        began = time.monotonic()
        for index in range(done, len(corpus)):
            sink.write(labeller(corpus[index].ids).tobytes())
            if (index + 1) % 64 == 0 or index + 1 == len(corpus):
                left = (time.monotonic() - began) / (index + 1 - done) * (len(corpus) - index - 1)
                say(f"labels: {index + 1} of {len(corpus)} conversations, {left / 60:.0f} minutes left")


@dataclass(frozen=True)
class Batch:
    """Conversations side by side, padded at the right."""

    ids: Tensor
    """Token ids, [batch, tokens]."""

    small: Tensor
    """The same as places in the draft's vocabulary; its size stands for all other tokens."""

    states: Tensor
    """The target's, [batch, tokens, states, hidden], in `PRODUCTS`; the last is what its output rows read."""

    first: Tensor
    """Where each token of the vocabulary, or the unknown one, occurs first, [batch, size + 1]; far off if never."""

    scored: Tensor
    """Where the target's next token belongs to its answer, [batch, tokens]."""


class Dataset:
    """Conversations, hidden states, and the target's output rows, from which both kinds of draft learn."""

    def __init__(self, folder: Path, network: Network, states: int, hold_out: str = "") -> None:
        """Open `text.*` and `states.f16`; only conversations that have states count. `hold_out` is a source."""
        self.network, self.corpus = network, Corpus(folder)
        shape, rows = (states, network.shape.hidden), self.corpus.rows
        stored = np.memmap(folder / "states.f16", np.float16, "r")
        self.states: States = stored[: len(stored) // prod(shape) * prod(shape)].reshape(-1, *shape)
        ends = rows[:, OFFSET].astype(np.int64) + rows[:, LENGTH]
        labelled = {index for index in np.flatnonzero(ends <= len(self.states)).tolist() if self._answered(index)}
        parts = self.corpus.split(hold_out)
        self.train, self.held_out, self.elsewhere = ([one for one in part if one in labelled] for part in parts)

    def _answered(self, index: int) -> bool:
        return bool(self.corpus[index].answered[1 : self.length(index)].any())

    def frequent(self, most: int) -> Ids:
        """The tokens that answers use most often, in order of their ids; held-out sources do not count."""
        counts = self.counts()
        return np.sort(np.argsort(-counts, kind="stable")[:most])

    def counts(self) -> Ids:
        """How often answers use each token of the target's vocabulary."""
        counts = np.zeros(self.network.shape.vocabulary, np.int64)
        for index in (*self.train, *self.held_out):
            one = self.corpus[index]
            counts += np.bincount(one.ids[one.answered], minlength=len(counts))
        return counts

    def choose(self, vocabulary: Ids) -> None:
        """Set the draft's vocabulary."""
        self.vocabulary = vocabulary
        self.small = np.full(self.network.shape.vocabulary, len(vocabulary), np.int64)
        self.small[vocabulary] = np.arange(len(vocabulary))
        self.output = torch.from_numpy(self.network.output[vocabulary])

    def reduced(self, share: float, seed: int) -> "Dataset":
        """The same with a part of the conversations to train on; a smaller part lies within a larger one."""
        order, part = np.random.default_rng(seed).permutation(len(self.train)), copy(self)
        part.train = [self.train[place] for place in order[: max(1, round(share * len(order)))]]
        return part

    @property
    def answer_tokens(self) -> int:
        """Tokens of the answers that are trained on."""
        return int(self.corpus.rows[self.train, ANSWERED].sum())

    def length(self, index: int) -> int:
        """Tokens of a conversation that count."""
        return min(LONGEST, int(self.corpus.rows[index, LENGTH]))

    def greedy(self, indices: list[int]) -> list[int]:
        """Conversations whose answers are the target's greedy ones."""
        return [index for index in indices if not self.corpus.rows[index, SAMPLED]]

    def epoch(self, seed: int, number: int, tokens: int) -> list[list[int]]:
        """Batches of one pass over the training part, of at most so many tokens each, padding included."""
        random = np.random.default_rng((seed, number))
        indices = [self.train[place] for place in random.permutation(len(self.train))]
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
        ids, scored = np.zeros((size, longest), np.int64), np.zeros((size, longest), bool)
        states = torch.zeros((size, longest, *self.states.shape[1:]), dtype=PRODUCTS)
        for place, index in enumerate(indices):
            one, length, offset = self.corpus[index], self.length(index), int(self.corpus.rows[index, OFFSET])
            ids[place, :length] = one.ids[:length]
            scored[place, : length - 1] = one.answered[1:length]
            states[place, :length] = torch.from_numpy(np.array(self.states[offset : offset + length]))
        small = torch.from_numpy(self.small[ids])
        first = torch.full((size, len(self.vocabulary) + 1), 2**31 - 1, dtype=torch.int32)
        places = torch.arange(longest, dtype=torch.int32).expand(size, -1)
        first.scatter_reduce_(1, small, places, "amin")
        return Batch(torch.from_numpy(ids), small, states, first, torch.from_numpy(scored))
