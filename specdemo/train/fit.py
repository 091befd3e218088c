"""The resumable training loop for targets, drafts and heads.

AdamW with a short warm-up and a cosine decay of the learning rate over a fixed budget: steps, or seconds of training,
added up over all starts. The held-out loss is measured at equal shares of the budget; the best weights are kept, and
training stops early if the loss no longer falls. Products are in bfloat16 if the processor supports it; weights and
sums stay in float32.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from specdemo.train.architecture import products
from specdemo.train.request import FULL

WARM_UP = 100  # steps; at most a tenth of all steps
CHECKS, PATIENCE = 20, 5  # held-out evaluations, and how many in a row may bring no improvement


@dataclass(frozen=True)
class Plan:
    """Training budget and learning rate. Exactly one of `steps` and `seconds` is the budget; the other is 0."""

    steps: int = 0
    seconds: float = 0
    learning_rate: float = 1e-3
    decay: float = 0.05


@dataclass(frozen=True)
class Point:
    """A point of the learning curve."""

    step: int
    seconds: float
    loss: float
    """Mean loss of the training batches since the previous point."""

    held_out_loss: float
    agreement: float
    """Agreement on held-out answers, to prompts like those trained on."""


class Check(Protocol):
    """Result of an evaluation on held-out text."""

    @property
    def loss(self) -> float:
        """Held-out loss; lower is better."""

    @property
    def agreement(self) -> float:
        """Share of the target's tokens that are predicted."""


@dataclass
class Progress:
    """Training progress, saved with the weights."""

    step: int = 0
    seconds: float = 0
    curve: list[Point] = field(default_factory=list)

    def share(self, plan: Plan) -> float:
        """Return the share of the budget that is spent."""
        return self.step / plan.steps if plan.steps else self.seconds / plan.seconds

    @property
    def best(self) -> int:
        """Index of the point with the lowest held-out loss."""
        return min(range(len(self.curve)), key=lambda index: self.curve[index].held_out_loss)

    @property
    def stalled(self) -> bool:
        """True if the held-out loss has stopped falling."""
        return len(self.curve) - self.best > PATIENCE if self.curve else False


def fit(
    model: nn.Module,
    loss: Callable[[Any, float], Tensor],
    batches: Callable[[int], Any],
    plan: Plan,
    checkpoint: Path,
    check: Callable[[], Check],
    say: Callable[[str], None] = print,
    save_seconds: float = FULL.save_seconds,
) -> list[Point]:
    """Train in place, load the best weights and return the learning curve.

    `batches` returns the batch of a step, the same one each time; `loss` takes a batch and the share of the training
    that is done.
    """
    matrices = [weights for weights in model.parameters() if weights.dim() == 2]
    others = [weights for weights in model.parameters() if weights.dim() != 2]
    groups = [{"params": matrices, "weight_decay": plan.decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.98), fused=True)
    warm_up = min(WARM_UP, plan.steps / 10) if plan.steps else WARM_UP
    store = _Store(checkpoint, model, optimizer)
    progress = store.restore()
    model.train()
    recent, last, saved = list[float](), time.monotonic(), time.monotonic()
    while progress.share(plan) < 1 and not progress.stalled:
        rate = plan.learning_rate * min(1, (progress.step + 1) / warm_up) * _fall(progress.share(plan))
        for group in optimizer.param_groups:
            group["lr"] = rate
        torch.manual_seed(progress.step)  # for dropout; a resumed run draws the same
        with products():
            value = loss(batches(progress.step), progress.share(plan))
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        recent.append(value.item())
        now = time.monotonic()
        progress.step, progress.seconds, last = progress.step + 1, progress.seconds + now - last, now
        found = check() if progress.share(plan) * CHECKS >= len(progress.curve) + 1 else None
        if found:
            model.train()
            mean = sum(recent) / len(recent)
            progress.curve.append(Point(progress.step, progress.seconds, mean, found.loss, found.agreement))
            if progress.best == len(progress.curve) - 1:
                store.best()
            recent = []
        if now - saved > save_seconds:
            store.save(progress)
            saved = time.monotonic()
        if found:
            say(_line(progress, plan) + f"; {found}")
            last = time.monotonic()
    store.save(progress)
    if progress.stalled:
        say(f"training ended early: the held-out loss has not fallen since step {progress.curve[progress.best].step}")
    store.load_best()
    model.eval()
    return progress.curve


def write_json(curve: Sequence[Any], file: Path) -> None:
    """Write the points of a curve, which are dataclasses, as JSON."""
    file.write_text(json.dumps([asdict(point) for point in curve], indent=1) + "\n", encoding="utf-8")


def _fall(share: float) -> float:
    return 0.02 + 0.49 * (1 + math.cos(math.pi * min(1, share)))


def _line(progress: Progress, plan: Plan) -> str:
    share, point = max(1e-9, progress.share(plan)), progress.curve[-1]
    left = progress.seconds * (1 - share) / share
    return (
        f"training: step {progress.step}, {share:.0%}, {left / 60:.0f} minutes left, loss {point.loss:.3f}, "
        f"held out {point.held_out_loss:.3f}"
    )


class _Store:
    """A checkpoint: weights, best weights so far, optimizer state and progress."""

    def __init__(self, file: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.file, self.model, self.optimizer = file, model, optimizer
        self.weights: dict[str, Tensor] | None = None

    def best(self) -> None:
        """Record the current weights as the best."""
        self.weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def load_best(self) -> None:
        """Load the best weights."""
        if self.weights is not None:
            self.model.load_state_dict(self.weights)

    def save(self, progress: Progress) -> None:
        """Write the checkpoint atomically."""
        state = {
            "model": self.model.state_dict(),
            "best": self.weights,
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(progress),
        }
        partial = self.file.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.file)

    def restore(self) -> Progress:
        """Load the checkpoint, if there is one."""
        if not self.file.exists():
            return Progress()
        state = torch.load(self.file, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.weights = state["best"]
        progress = state["progress"]
        return Progress(progress["step"], progress["seconds"], [Point(**one) for one in progress["curve"]])


def endless(epoch: Callable[[int], list[Any]], read: Callable[[Any], Any]) -> Callable[[int], Any]:
    """Return a function from a step to its batch, epoch after epoch."""
    current: tuple[int, int, list[Any]] = (-1, 0, [])

    def at(step: int) -> Any:
        nonlocal current
        number, first, batches = current
        while step >= first + len(batches):
            number, first = number + 1, first + len(batches)
            batches = epoch(number)
            current = (number, first, batches)
        return read(batches[step - first])

    return at
