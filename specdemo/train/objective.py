"""What a draft learns: the target's distribution over the draft's vocabulary, then to be accepted.

Both are compared as they will decode, under the repetition penalty. Trained without it, a draft is less sure than its
target of the words that every text repeats; the same penalty then turns it away from them sooner, and it is right
less often.

Cross-entropy with the whole distribution teaches the most from little text. A draft of few parameters cannot match it
everywhere, though, and what counts is agreement on the likeliest tokens. So the objective changes on the way:

    distribution   −Σ p log q
    choice         −log q(argmax p): the token that greedy decoding commits
    acceptance     −log Σ min(p, q): the chance that sampling accepts, whose gradient favours likely tokens

with the target's p and the draft's q (LK losses, arXiv 2602.23881). Two more are added where asked for: in the first
half, one minus the cosine between the draft's last hidden state and the target's; in the last part, tokens that the
draft gets wrong at that moment count more. In greedy decoding a chain ends at a draft's mistake and is never read
further, so replaying its mistakes means to learn these tokens again, not to read its text.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from specdemo.train.architecture import PRODUCTS, Draft, Head
from specdemo.train.dataset import Batch, Dataset
from specdemo.train.network import Array, Start
from specdemo.train.request import Objective, Request

DECAY = 0.8  # weight of a head's next step in a chain, relative to the one before
LONGER = (0.4, 0.75)  # shares of the training after which a head learns chains of two and of three steps
EARLY = (0.05, 0.1)  # the same of a head that begins from a draft, whose first step is right as often as the draft
FITTED, TOKENS = 400, 4096  # conversations of the first, linear fit of a head, and tokens of its batches
SHARPEN, REPLAY = 0.5, 0.8  # shares of the training after which the later weights hold, and mistakes count more
STATES, MISTAKES = 1.0, 1.0  # weights of the distance of states, and of a mistake beside other tokens


class Weights(NamedTuple):
    """Of the parts of a loss."""

    distribution: float
    choice: float
    acceptance: float
    states: float = 0
    """Of one minus the cosine of the last hidden states."""

    mistakes: float = 0
    """Added to the weight 1 of tokens where the likeliest token is not the target's."""


LATER: dict[Objective, Weights] = {
    "distribution": Weights(1, 0, 0),
    "choice": Weights(0.5, 0.5, 0),
    "acceptance": Weights(0, 0.3, 1),
}
MATCHING = LATER["distribution"]


def weights_at(share: float, request: Request) -> Weights:
    """Weights of the loss when `share` of the training is done."""
    first = share < SHARPEN
    return (MATCHING if first else LATER[request.objective])._replace(
        states=STATES * (request.match_states and first), mistakes=MISTAKES * (request.replay and share >= REPLAY)
    )


class Learner(nn.Module, ABC):
    """A draft with its loss; the kinds differ in what they read."""

    model: Draft | Head

    def __init__(self, target_rows: Tensor, start: Start, request: Request) -> None:
        """`target_rows` [size, hidden] are the target's output rows, which stay as they are."""
        super().__init__()
        self.start, self.request = start, request
        self.target_rows: Tensor
        self.register_buffer("target_rows", target_rows.to(PRODUCTS), persistent=False)
        self.embedding = nn.Parameter(torch.from_numpy(start.embedding.copy()))
        shared = np.array_equal(start.embedding[:-1], start.rows)  # then they stay so: one table, stored once
        self.apart = None if shared else nn.Parameter(torch.from_numpy(start.rows.copy()))

    @property
    def rows(self) -> Tensor:
        """The draft's output rows, [size, hidden]."""
        return self.embedding[:-1] if self.apart is None else self.apart

    def trained(self) -> Start:
        """The start with the tables as they are now."""
        embedding, rows = (table.detach().numpy() for table in (self.embedding, self.rows))
        return replace(self.start, embedding=embedding, rows=rows)

    def _initialise(self, start: Start) -> None:
        for own, weights in zip(self.model.layers, start.layers, strict=True):
            own.load_state_dict(_weights(weights))
        _copy(self.model.norm, start.norm)
        self.eval()  # until it is trained

    def embedded(self, batch: Batch) -> Tensor:
        """What the draft reads of tokens, [batch, tokens, hidden]."""
        return nn.functional.embedding(batch.small, self.embedding)

    def steps(self, share: float) -> int:
        """Length of the trained chains when `share` of the training is done."""
        return 1

    @abstractmethod
    def predictions(self, batch: Batch, steps: int) -> list[Tensor]:
        """By step of a chain: last hidden states for the token after each, normed, [batch, tokens, hidden]."""

    def loss(self, batch: Batch, share: float) -> Tensor:
        """Mean over scored positions, summed over the steps of a chain; `share` of the training is done."""
        context, theirs = Context(batch, self.request.penalty), batch.states[:, :, -1][batch.scored]
        with torch.no_grad():
            wanted = theirs @ self.target_rows.T
            for some, part in zip(wanted.split(context.sizes), context.parts, strict=True):
                logits = some.float()
                part.penalise(logits)
                some.copy_(logits.softmax(-1))
        total, weight, weights = torch.zeros(()), 1.0, weights_at(share, self.request)
        for states in self.predictions(batch, self.steps(share)):
            own = states[batch.scored]
            loss: Tensor = Loss.apply(own, self.rows, wanted, context, weights)
            if weights.states:
                loss = loss + weights.states * (1 - nn.functional.cosine_similarity(own, theirs.float(), -1).mean())
            total, weight = total + weight * loss, weight * DECAY
        return total


class Context:
    """Which tokens a repetition penalty applies to at the scored positions of a batch."""

    def __init__(self, batch: Batch, penalty: float) -> None:
        found = zip(batch.first[:, :-1], batch.scored, strict=True)
        self.parts = [ContextOfOne(first, scored.nonzero()[:, 0], penalty) for first, scored in found]
        self.sizes = [part.positions for part in self.parts]


class ContextOfOne:
    """The same of one conversation, in which few of all tokens occur."""

    def __init__(self, first: Tensor, places: Tensor, penalty: float) -> None:
        """`first` [size] is where each token occurs first, `places` are the scored positions."""
        self.positions, self.penalty = len(places), penalty
        self.tokens = (first <= places[-1]).nonzero()[:, 0]
        self.repeated = first[self.tokens] <= places[:, None]

    def penalise(self, logits: Tensor) -> Tensor:
        """Change logits [positions, size] in place; gives what those of `tokens` were multiplied with."""
        some = logits[:, self.tokens]
        factors = torch.where(self.repeated, torch.where(some > 0, 1 / self.penalty, self.penalty), 1.0)
        logits[:, self.tokens] = some * factors
        return factors


class Loss(torch.autograd.Function):
    """Mean loss of a draft's distributions q against the target's p, both under the penalty.

    The gradients are computed at once, conversation by conversation: their logits fit into the processor's cache.
    With respect to the logits they are q − p, q − one-hot(argmax p), and q (M − m) / A for the acceptance
    A = Σ min(p, q), where m is 1 for tokens with q < p, else 0, and M = Σ m q.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, rows: Tensor, wanted: Tensor, context: Context, weights: Weights) -> Tensor:
        """States [positions, hidden], rows [size, hidden], the target's probabilities [positions, size]."""
        total, half, given = torch.zeros(()), rows.to(PRODUCTS), states.to(PRODUCTS)
        differences = torch.empty(wanted.shape, dtype=PRODUCTS)
        tables = zip(
            given.split(context.sizes), wanted.split(context.sizes), differences.split(context.sizes), strict=True
        )
        for (some, theirs, difference), part in zip(tables, context.parts, strict=True):
            logits = (some @ half.T).float()
            factors = part.penalise(logits)
            loss, gradient = gradients(logits, theirs.float(), weights)
            total += loss
            gradient[:, part.tokens] *= factors
            difference.copy_(gradient)
        products = (differences @ half, differences.T @ given)
        ctx.save_for_backward(*(product.float() / len(states) for product in products))
        return total / len(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """The gradients of states and rows, times that of the loss."""
        states, rows = ctx.saved_tensors
        return states * gradients[0], rows * gradients[0], None, None, None


def gradients(logits: Tensor, wanted: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """Sum of the losses over positions, and its gradient; `logits` is overwritten, `wanted` are probabilities."""
    logs = logits.log_softmax(-1)
    found = torch.exp(logs, out=logits)
    losses, gradient = torch.zeros(len(logits)), found * (weights.distribution + weights.choice)
    if weights.distribution:
        losses = losses - weights.distribution * torch.linalg.vecdot(wanted, logs)
        gradient.sub_(wanted, alpha=weights.distribution)
    if weights.choice:
        chosen = wanted.argmax(-1, keepdim=True)
        losses = losses - weights.choice * logs.gather(-1, chosen)[:, 0]
        gradient.scatter_add_(-1, chosen, torch.full_like(chosen, -weights.choice, dtype=gradient.dtype))
    if weights.acceptance:
        accepted = torch.minimum(wanted, found).sum(-1, keepdim=True).clamp_(min=1e-4)
        below = found * (found < wanted)
        losses = losses - weights.acceptance * accepted.log()[:, 0]
        gradient.add_((found * below.sum(-1, keepdim=True) - below).div_(accepted), alpha=weights.acceptance)
    if weights.mistakes:
        counted = 1 + weights.mistakes * (logs.argmax(-1) != wanted.argmax(-1))
        losses, gradient = losses * counted, gradient.mul_(counted[:, None])
    return losses.sum(), gradient


class DraftLearner(Learner):
    """A draft of its own: tokens in, tokens out."""

    model: Draft

    def __init__(self, dataset: Dataset, start: Start, request: Request) -> None:
        super().__init__(dataset.output, start, request)
        self.model = Draft(start.shape, start.frequencies, len(start.layers))
        self._initialise(start)

    def predictions(self, batch: Batch, steps: int) -> list[Tensor]:
        """One pass serves all steps: what the draft proposed and was right about, it then reads."""
        return [self.model(self.embedded(batch))] * steps


class HeadLearner(Learner):
    """An EAGLE-3 head: tokens and the target's states in, tokens out."""

    model: Head

    def __init__(self, dataset: Dataset, start: Start, request: Request, norm: Array) -> None:
        """`norm` are the scales of the target's last norm."""
        super().__init__(dataset.output, start, request)
        self.model = Head(start.shape, start.frequencies, len(start.layers))
        self._initialise(start)
        for join in self.model.joins:
            nn.init.zeros_(join.weight)
        with torch.no_grad():
            self._measure(dataset)
            fitted, sizes = self._linear(dataset, torch.from_numpy(norm))
            self.model.scales.copy_(1 / sizes)
            self.model.fc.weight.copy_((fitted * sizes[:, None]).T)

    def _measure(self, dataset: Dataset) -> None:
        """Sizes of the residual stream before each layer, in the unit that is in the middle."""
        x = self.embedded(dataset.batch(next(dataset.grouped(dataset.train[:FITTED], TOKENS))))
        for index, layer in enumerate(self.model.layers):
            self.model.sizes[index] = x.square().mean((0, 1)).sqrt().median()
            x = layer(x)

    def _linear(self, dataset: Dataset, norm: Tensor) -> tuple[Tensor, Tensor]:
        """The least-squares map [3 * hidden, hidden] from three states to the last one, and the sizes of their units.

        It has the size of what the head gives out while it sees no states, by which its output is to be replaced.
        """
        width = 3 * len(norm)
        squares, products, count, size = torch.zeros(width, width), torch.zeros(width, width // 3), 0, 1.0
        for group in dataset.grouped(dataset.train[:FITTED], TOKENS):
            batch = dataset.batch(group)
            given = batch.states[:, :, :-1].flatten(2).float()[batch.scored]
            wanted = (batch.states[:, :, -1].float() / norm)[batch.scored]
            squares += given.T @ given
            products += given.T @ wanted
            if not count:
                states = batch.states[:, 1:, :-1].flatten(2).float()
                output = self.model(self.embedded(batch)[:, 1:], states, 1)[0][batch.scored[:, 1:]]
                size = output.square().mean().sqrt().item()
            count += len(given)
        sizes = (squares.diagonal() / count).sqrt().clamp(min=1e-6)
        scaled = (squares / count / sizes[:, None] / sizes).double() + 1e-3 * torch.eye(width, dtype=torch.float64)
        fitted = torch.linalg.solve(scaled, (products / count / sizes[:, None]).double()).float()
        return size * fitted / sizes[:, None], sizes

    def steps(self, share: float) -> int:
        """Longer chains later: they cost as much again, and teach little before the first step is right."""
        return 1 + sum(share >= longer for longer in (EARLY if self.request.begin else LONGER))

    def predictions(self, batch: Batch, steps: int) -> list[Tensor]:
        """At position t: what the head says after it read token t and the state before it; nothing at the first."""
        states = batch.states[:, :-1, :-1].flatten(2).float()
        outputs = self.model(self.embedded(batch)[:, 1:], states, steps)
        return [nn.functional.pad(self.model.norm(output), (0, 0, 1, 0)) for output in outputs]


def _weights(arrays: dict[str, Array]) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.from_numpy(value) for name, value in arrays.items()}


def _copy(norm: nn.Module, scales: Array) -> None:
    norm.load_state_dict({"weight": torch.from_numpy(scales.copy())})
