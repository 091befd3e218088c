"""What a draft is taught: the target's whole distribution, over the tokens that the draft can write.

Both are compared as they will decode, under the repetition penalty. Taught without it, a draft is less sure than its
target of the words that every text repeats; the same penalty then turns it away from them sooner, and it is right
less often.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specdemo.train.material import Batch, Material
from specdemo.train.modules import Draft, Head
from specdemo.train.network import Array, Ids, Network, Shape

DECAY = 0.8  # weight of a head's next step in a chain, relative to the one before
LONGER = (0.4, 0.75)  # shares of the training after which a head learns chains of two and of three steps
FITTED, TOKENS = 400, 4096  # conversations of the first, linear fit of a head, and tokens of its batches


@dataclass(frozen=True)
class Start:
    """Where a draft begins: parts of its target, or those of an earlier draft for it."""

    shape: Shape
    frequencies: Array
    layers: list[dict[str, Array]]
    norm: Array
    embedding: Array
    """Rows of the kept tokens, then one that stands for all others, [kept + 1, hidden]."""

    rows: Array
    """Output rows of the kept tokens, [kept, hidden]."""


def from_target(network: Network, kept: Ids, layers: Sequence[int]) -> Start:
    """Some of the target's own layers, and its rows."""
    embedding = network.embedding
    return Start(
        shape=network.shape,
        frequencies=network.frequencies,
        layers=[network.layer(index) for index in layers],
        norm=network.norm,
        embedding=np.vstack([embedding[kept], embedding.mean(0, keepdims=True)]),
        rows=network.output[kept],
    )


class Lesson(nn.Module, ABC):
    """A draft, and how it is taught and asked; the kinds differ in what they read."""

    model: Draft | Head

    def __init__(self, taught: Tensor, start: Start, penalty: float) -> None:
        """`taught` [kept, hidden] are the target's output rows, which stay as they are."""
        super().__init__()
        self.start, self.penalty = start, penalty
        self.taught: Tensor
        self.register_buffer("taught", taught.to(torch.bfloat16), persistent=False)
        self.embedding = nn.Parameter(torch.from_numpy(start.embedding.copy()))
        shared = np.array_equal(start.embedding[:-1], start.rows)  # then they stay so: stored once, and learnt as one
        self.apart = None if shared else nn.Parameter(torch.from_numpy(start.rows.copy()))

    @property
    def rows(self) -> Tensor:
        """The draft's output rows, [kept, hidden]."""
        return self.embedding[:-1] if self.apart is None else self.apart

    def learnt(self) -> Start:
        """Where it began, but with the tables as they are now."""
        embedding, rows = (table.detach().numpy() for table in (self.embedding, self.rows))
        return replace(self.start, embedding=embedding, rows=rows)

    def _begin(self, start: Start) -> None:
        for own, weights in zip(self.model.layers, start.layers, strict=True):
            own.load_state_dict(_weights(weights))
        _copy(self.model.norm, start.norm)
        self.eval()  # until it is trained

    def embedded(self, batch: Batch) -> Tensor:
        """What the draft reads of tokens, [batch, tokens, hidden]."""
        return nn.functional.embedding(batch.small, self.embedding)

    def steps(self, share: float) -> int:
        """Of the chains that are learnt when `share` of the training is done."""
        return 1

    @abstractmethod
    def predictions(self, batch: Batch, steps: int) -> list[Tensor]:
        """By step of a chain: last hidden states for the token after each, normed, [batch, tokens, hidden]."""

    def loss(self, batch: Batch, share: float) -> Tensor:
        """Mean over judged positions, summed over the steps of a chain; `share` of the training is done."""
        seen = Seen(batch, self.penalty)
        with torch.no_grad():
            taught = batch.states[:, :, -1][batch.judged] @ self.taught.T
            for some, part in zip(taught.split(seen.sizes), seen.parts, strict=True):
                logits = some.float()
                part.penalise(logits)
                some.copy_(logits.softmax(-1))
        total, weight = torch.zeros(()), 1.0
        for states in self.predictions(batch, self.steps(share)):
            distance: Tensor = Distance.apply(states[batch.judged], self.rows, taught, seen)
            total, weight = total + weight * distance, weight * DECAY
        return total


class Seen:
    """Which tokens a repetition penalty holds against the judged positions of a batch."""

    def __init__(self, batch: Batch, penalty: float) -> None:
        found = zip(batch.first[:, :-1], batch.judged, strict=True)
        self.parts = [SeenOnce(first, judged.nonzero()[:, 0], penalty) for first, judged in found]
        self.sizes = [part.positions for part in self.parts]


class SeenOnce:
    """The same of one conversation, in which few of all tokens occur."""

    def __init__(self, first: Tensor, places: Tensor, penalty: float) -> None:
        """`first` [kept] is where each token occurs first, `places` are the judged positions."""
        self.positions, self.penalty = len(places), penalty
        self.tokens = (first <= places[-1]).nonzero()[:, 0]
        self.seen = first[self.tokens] <= places[:, None]

    def penalise(self, logits: Tensor) -> Tensor:
        """Change logits [positions, kept] in place; gives what those of `tokens` were multiplied with."""
        some = logits[:, self.tokens]
        factors = torch.where(self.seen, torch.where(some > 0, 1 / self.penalty, self.penalty), 1.0)
        logits[:, self.tokens] = some * factors
        return factors


class Distance(torch.autograd.Function):
    """Mean cross-entropy of a draft's distributions with the target's, both under the penalty.

    The gradients are computed at once, conversation by conversation: their logits fit into the processor's cache.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, rows: Tensor, taught: Tensor, seen: Seen) -> Tensor:
        """States [positions, hidden], rows [kept, hidden], probabilities [positions, kept]."""
        total, half, given = torch.zeros(()), rows.to(torch.bfloat16), states.to(torch.bfloat16)
        differences = torch.empty_like(taught)
        tables = zip(given.split(seen.sizes), taught.split(seen.sizes), differences.split(seen.sizes), strict=True)
        for (some, theirs, difference), part in zip(tables, seen.parts, strict=True):
            logits = (some @ half.T).float()
            factors = part.penalise(logits)
            logits = logits.log_softmax(-1)
            total -= torch.linalg.vecdot(theirs.float(), logits).sum()
            logits.exp_().sub_(theirs)
            logits[:, part.tokens] *= factors
            difference.copy_(logits)
        products = (differences @ half, differences.T @ given)
        ctx.save_for_backward(*(product.float() / len(states) for product in products))
        return total / len(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """The gradients of states and rows, times that of the distance."""
        states, rows = ctx.saved_tensors
        return states * gradients[0], rows * gradients[0], None, None


class DraftLesson(Lesson):
    """A draft of its own: tokens in, tokens out."""

    model: Draft

    def __init__(self, material: Material, start: Start, penalty: float) -> None:
        super().__init__(material.output, start, penalty)
        self.model = Draft(start.shape, start.frequencies, len(start.layers))
        self._begin(start)

    def predictions(self, batch: Batch, steps: int) -> list[Tensor]:
        """One pass serves all steps: what the draft proposed and was right about, it then reads."""
        return [self.model(self.embedded(batch))] * steps


class HeadLesson(Lesson):
    """An EAGLE-3 head: tokens and the target's states in, tokens out."""

    model: Head

    def __init__(self, material: Material, start: Start, penalty: float, norm: Array) -> None:
        """`norm` are the scales of the target's last norm."""
        super().__init__(material.output, start, penalty)
        self.model = Head(start.shape, start.frequencies, len(start.layers))
        self._begin(start)
        for join in self.model.joins:
            nn.init.zeros_(join.weight)
        with torch.no_grad():
            self._measure(material)
            fitted, sizes = self._linear(material, torch.from_numpy(norm))
            self.model.scales.copy_(1 / sizes)
            self.model.fc.weight.copy_((fitted * sizes[:, None]).T)

    def _measure(self, material: Material) -> None:
        """Sizes of the residual stream before each layer, in the unit that is in the middle."""
        x = self.embedded(material.batch(next(material.grouped(material.learnt[:FITTED], TOKENS))))
        for index, layer in enumerate(self.model.layers):
            self.model.sizes[index] = x.square().mean((0, 1)).sqrt().median()
            x = layer(x)

    def _linear(self, material: Material, norm: Tensor) -> tuple[Tensor, Tensor]:
        """The least-squares map [3 * hidden, hidden] from three states to the last one, and the sizes of their units.

        It has the size of what the head gives out while it sees no states, by which its output is to be replaced.
        """
        width = 3 * len(norm)
        squares, products, count, size = torch.zeros(width, width), torch.zeros(width, width // 3), 0, 1.0
        for group in material.grouped(material.learnt[:FITTED], TOKENS):
            batch = material.batch(group)
            given = batch.states[:, :, :-1].flatten(2).float()[batch.judged]
            wanted = (batch.states[:, :, -1].float() / norm)[batch.judged]
            squares += given.T @ given
            products += given.T @ wanted
            if not count:
                states = batch.states[:, 1:, :-1].flatten(2).float()
                output = self.model(self.embedded(batch)[:, 1:], states, 1)[0][batch.judged[:, 1:]]
                size = output.square().mean().sqrt().item()
            count += len(given)
        sizes = (squares.diagonal() / count).sqrt().clamp(min=1e-6)
        scaled = (squares / count / sizes[:, None] / sizes).double() + 1e-3 * torch.eye(width, dtype=torch.float64)
        fitted = torch.linalg.solve(scaled, (products / count / sizes[:, None]).double()).float()
        return size * fitted / sizes[:, None], sizes

    def steps(self, share: float) -> int:
        """Longer chains later: they cost as much again, and teach little before the first step is learnt."""
        return 1 + sum(share >= longer for longer in LONGER)

    def predictions(self, batch: Batch, steps: int) -> list[Tensor]:
        """At position t: what the head says after it read token t and the state before it; nothing at the first."""
        states = batch.states[:, :-1, :-1].flatten(2).float()
        outputs = self.model(self.embedded(batch)[:, 1:], states, steps)
        return [nn.functional.pad(self.model.norm(output), (0, 0, 1, 0)) for output in outputs]


def _weights(arrays: dict[str, Array]) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.from_numpy(value) for name, value in arrays.items()}


def _copy(norm: nn.Module, scales: Array) -> None:
    norm.load_state_dict({"weight": torch.from_numpy(scales.copy())})
