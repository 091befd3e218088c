"""A draft's training objective: first the target's distribution over the draft's vocabulary, then acceptance.

Both models are compared as they will decode, under the repetition penalty. A draft trained without it is less sure
than its target of the words that every text repeats; the penalty then turns it away from them sooner, and it is right
less often.

Cross-entropy with the whole distribution teaches the most from little text. A small draft cannot match it everywhere,
though, and what counts is agreement on the likeliest tokens. So the objective changes during training:

    distribution   −Σ p log q
    choice         −log q(argmax p): the token that greedy decoding commits
    acceptance     −log Σ min(p, q): the probability that sampling accepts; its gradient favours likely tokens

with the target's p and the draft's q (LK losses, arXiv 2602.23881). Two terms are optional: in the first half, one
minus the cosine between the draft's last hidden state and the target's; in the last part, a higher weight for tokens
that the draft currently gets wrong. In greedy decoding a chain ends at a draft's mistake and is never read further,
so replaying mistakes means training on these tokens again, not on the text that would follow them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from specdemo.train.architecture import PRODUCTS, Draft, Head
from specdemo.train.dataset import Batch, Dataset
from specdemo.train.network import Array, Start
from specdemo.train.request import Objective, Request

DECAY = 0.8  # weight of each step of a head's chain, relative to the previous one
LONGER = (0.4, 0.75)  # shares of the training after which a head is trained on chains of two and of three steps
EARLY = (0.05, 0.1)  # the same for a head that starts from a draft or head, whose first step is already as good
FITTED, TOKENS = 400, 4096  # conversations, and tokens per batch, for a head's initial linear fit
SHARPEN, REPLAY = 0.5, 0.8  # shares of the training after which the later weights apply, and mistakes count more
STATES, MISTAKES = 1.0, 1.0  # weights of the distance between states, and of mistakes on top of 1


class Weights(NamedTuple):
    """Weights of the terms of a loss."""

    distribution: float
    choice: float
    acceptance: float
    states: float = 0
    """Weight of one minus the cosine of the last hidden states."""

    mistakes: float = 0
    """Extra weight, on top of 1, for tokens where the draft's likeliest token is not the target's."""


LATER: dict[Objective, Weights] = {
    "distribution": Weights(1, 0, 0),
    "choice": Weights(0.5, 0.5, 0),
    "acceptance": Weights(0, 0.3, 1),
}
MATCHING = LATER["distribution"]


def weights_at(share: float, request: Request) -> Weights:
    """Return the loss weights when `share` of the training is done."""
    first = share < SHARPEN
    return (MATCHING if first else LATER[request.objective])._replace(
        states=STATES * (request.match_states and first), mistakes=MISTAKES * (request.replay and share >= REPLAY)
    )


class Learner(nn.Module, ABC):
    """A draft with its loss; the kinds differ in their inputs."""

    model: Draft | Head

    def __init__(self, target_rows: Tensor, start: Start, request: Request) -> None:
        """Use `target_rows` [size, hidden], the target's output rows, which stay frozen."""
        super().__init__()
        self.start, self.request = start, request
        self.target_rows: Tensor
        self.register_buffer("target_rows", target_rows.to(PRODUCTS), persistent=False)
        self.embedding = nn.Parameter(torch.from_numpy(start.embedding.copy()))
        shared = np.array_equal(start.embedding[:-1], start.rows)  # if so, they stay tied and are stored once
        self.apart = None if shared else nn.Parameter(torch.from_numpy(start.rows.copy()))

    @property
    def rows(self) -> Tensor:
        """Output rows of the draft, [size, hidden]."""
        return self.embedding[:-1] if self.apart is None else self.apart

    def trained(self) -> Start:
        """Return the initial weights with the trained embedding and output rows."""
        embedding, rows = (table.detach().numpy() for table in (self.embedding, self.rows))
        return replace(self.start, embedding=embedding, rows=rows)

    def _initialise(self, start: Start) -> None:
        for own, weights in zip(self.model.layers, start.layers, strict=True):
            own.load_state_dict(_tensors({f"{name}.weight": value for name, value in weights.items()}))
        _copy(self.model.norm, start.norm)
        self.eval()  # until it is trained

    def embedded(self, batch: Batch) -> Tensor:
        """Embed the tokens, [batch, tokens, hidden]."""
        return nn.functional.embedding(batch.small, self.embedding)

    def steps(self, share: float) -> int:
        """Return the chain length to train on when `share` of the training is done."""
        return 1

    @abstractmethod
    def predictions(self, batch: Batch, steps: int) -> list[Tensor]:
        """Return, per step of a chain, normed hidden states that predict the next token, [batch, tokens, hidden]."""

    def loss(self, batch: Batch, share: float) -> Tensor:
        """Return the mean over learned positions, summed over a chain's steps; `share` is that of training done."""
        context, theirs = Context(batch, self.request.penalty), batch.states[:, :, -1][batch.learned]
        with torch.no_grad():
            wanted = self._wanted(batch, context, theirs)
        total, weight, weights = torch.zeros(()), 1.0, weights_at(share, self.request)
        for states in self.predictions(batch, self.steps(share)):
            own = states[batch.learned]
            loss: Tensor = Loss.apply(own, self.rows, wanted, context, weights)
            if weights.states:
                loss = loss + weights.states * (1 - nn.functional.cosine_similarity(own, theirs.float(), -1).mean())
            total, weight = total + weight * loss, weight * DECAY
        return total

    def _wanted(self, batch: Batch, context: "Context", theirs: Tensor) -> list[Tensor]:
        """Return, per conversation, the target's probabilities [positions, size], or its tokens if unlabelled."""
        wanted = []
        for place, (states, part) in enumerate(zip(theirs.split(context.sizes), context.parts, strict=True)):
            if batch.labelled[place]:
                logits = (states @ self.target_rows.T).float()
                part.penalise(logits)
                wanted.append(logits.softmax(-1).to(PRODUCTS))
            else:  # its states are zeros
                wanted.append(batch.small[place, 1:][batch.learned[place, :-1]])
        return wanted


class Context:
    """Tokens under a repetition penalty, at the learned positions of a batch."""

    def __init__(self, batch: Batch, penalty: float) -> None:
        found = zip(batch.first[:, :-1], batch.learned, strict=True)
        self.parts = [ContextOfOne(first, learned.nonzero()[:, 0], penalty) for first, learned in found]
        self.sizes = [part.positions for part in self.parts]


class ContextOfOne:
    """Tokens under a repetition penalty in one conversation, where few tokens of the vocabulary occur."""

    def __init__(self, first: Tensor, places: Tensor, penalty: float) -> None:
        """Take each token's first position (`first` [size]), and the learned positions (`places`)."""
        self.positions, self.penalty = len(places), penalty
        last = places[-1] if len(places) else -1
        self.tokens = (first <= last).nonzero()[:, 0]
        self.repeated = first[self.tokens] <= places[:, None]

    def penalise(self, logits: Tensor) -> Tensor:
        """Penalise logits [positions, size] in place; return the factors applied to those of `tokens`."""
        some = logits[:, self.tokens]
        factors = torch.where(self.repeated, torch.where(some > 0, 1 / self.penalty, self.penalty), 1.0)
        logits[:, self.tokens] = some * factors
        return factors


class Loss(torch.autograd.Function):
    """Mean loss of a draft's distributions q against the target's p, both under the penalty.

    Gradients are computed together with the loss, one conversation at a time, whose logits fit into the CPU cache.
    With respect to the logits they are q − p, q − one-hot(argmax p), and q (M − m) / A for the acceptance
    A = Σ min(p, q), where m is 1 for tokens with q < p, else 0, and M = Σ m q.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, rows: Tensor, wanted: list[Tensor], context: Context, weights: Weights
    ) -> Tensor:
        """Take states [positions, hidden], rows [size, hidden], and what to learn in each conversation."""
        total, half, given = torch.zeros(()), rows.to(PRODUCTS), states.to(PRODUCTS)
        differences = torch.empty((len(states), len(rows)), dtype=PRODUCTS)
        tables = zip(given.split(context.sizes), wanted, differences.split(context.sizes), strict=True)
        for (some, theirs, difference), part in zip(tables, context.parts, strict=True):
            logits = (some @ half.T).float()
            factors = part.penalise(logits)
            loss, gradient = gradients(logits, theirs, weights)
            total += loss
            gradient[:, part.tokens] *= factors
            difference.copy_(gradient)
        products = (differences @ half, differences.T @ given)
        ctx.save_for_backward(*(product.float() / len(states) for product in products))
        return total / len(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Scale the gradients of states and rows by that of the loss."""
        states, rows = ctx.saved_tensors
        return states * gradients[0], rows * gradients[0], None, None, None


def gradients(logits: Tensor, wanted: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """Return the summed loss and its gradient; `logits` is overwritten.

    `wanted` are probabilities [positions, size], or tokens [positions], each of which stands for a probability of 1.
    """
    logs = logits.log_softmax(-1)
    found = torch.exp(logs, out=logits)
    if wanted.dim() == 1:  # all three terms are −log q(token)
        weights = weights._replace(distribution=0, choice=sum(weights[:3]), acceptance=0)
    else:
        wanted = wanted.float()
    losses, gradient = torch.zeros(len(logits)), found * (weights.distribution + weights.choice)
    if weights.distribution:
        losses = losses - weights.distribution * torch.linalg.vecdot(wanted, logs)
        gradient.sub_(wanted, alpha=weights.distribution)
    if weights.choice:
        chosen = _choice(wanted)[:, None]
        losses = losses - weights.choice * logs.gather(-1, chosen)[:, 0]
        gradient.scatter_add_(-1, chosen, torch.full_like(chosen, -weights.choice, dtype=gradient.dtype))
    if weights.acceptance:
        accepted = torch.minimum(wanted, found).sum(-1, keepdim=True).clamp_(min=1e-4)
        below = found * (found < wanted)
        losses = losses - weights.acceptance * accepted.log()[:, 0]
        gradient.add_((found * below.sum(-1, keepdim=True) - below).div_(accepted), alpha=weights.acceptance)
    if weights.mistakes:
        counted = 1 + weights.mistakes * (logs.argmax(-1) != _choice(wanted))
        losses, gradient = losses * counted, gradient.mul_(counted[:, None])
    return losses.sum(), gradient


def _choice(wanted: Tensor) -> Tensor:
    """Return the target's likeliest tokens, [positions]."""
    return wanted if wanted.dim() == 1 else wanted.argmax(-1)


class DraftLearner(Learner):
    """A standalone draft: tokens in, tokens out."""

    model: Draft

    def __init__(self, dataset: Dataset, start: Start, request: Request) -> None:
        super().__init__(dataset.output, start, request)
        self.model = Draft(start.shape, start.frequencies, len(start.layers))
        self._initialise(start)

    def predictions(self, batch: Batch, steps: int) -> list[Tensor]:
        """Use one pass for all steps: a draft's correct proposals are the text that it reads next anyway."""
        return [self.model(self.embedded(batch))] * steps


class HeadLearner(Learner):
    """An EAGLE-3 head: tokens and the target's states in, tokens out."""

    model: Head

    def __init__(self, dataset: Dataset, start: Start, request: Request, norm: Array) -> None:
        """Start from an earlier head, or fit the projection of states; `norm` are the target's last norm's scales."""
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
            if start.head:
                self._restore(start.head)

    def _restore(self, earlier: Mapping[str, Array]) -> None:
        """Take over an earlier head's projections, whose scales are folded in."""
        weights = _tensors(earlier)
        weights["fc.weight"] = weights["fc.weight"] / self.model.scales
        for index, size in enumerate(self.model.sizes):
            weights[f"joins.{index}.weight"] = weights[f"joins.{index}.weight"] / size
        unexpected = self.model.load_state_dict(weights, strict=False).unexpected_keys
        assert not unexpected, unexpected

    def _measure(self, dataset: Dataset) -> None:
        """Measure the size (median RMS over units) of the residual stream before each layer."""
        x = self.embedded(dataset.batch(next(dataset.grouped(dataset.train[:FITTED], TOKENS))))
        for index, layer in enumerate(self.model.layers):
            self.model.sizes[index] = x.square().mean((0, 1)).sqrt().median()
            x = layer(x)

    def _linear(self, dataset: Dataset, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least-squares map [3 * hidden, hidden] from three states to the last, and their units' RMS.

        The map is scaled to the head's own output without states, which replaces the last state later in a chain.
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
        """Lengthen chains later: each step costs as much again, and teaches little before the first one is right."""
        longer = (EARLY if self.request.begin else LONGER)[: self.request.chain - 1]
        return 1 + sum(share >= one for one in longer)

    def predictions(self, batch: Batch, steps: int) -> list[Tensor]:
        """Return the head's output at t from token t and the state before it; zeros at the first position."""
        states = batch.states[:, :-1, :-1].flatten(2).float()
        outputs = self.model(self.embedded(batch)[:, 1:], states, steps)
        return [nn.functional.pad(self.model.norm(output), (0, 0, 1, 0)) for output in outputs]


def _tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in arrays.items()}


def _copy(norm: nn.Module, scales: Array) -> None:
    norm.load_state_dict({"weight": torch.from_numpy(scales.copy())})
