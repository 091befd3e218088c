"""The one training loop, for targets, drafts and heads; it goes on where it was stopped.

AdamW with a short rise and a cosine's fall of the learning rate over a budget that is known beforehand: steps, or
seconds of training, which are counted over all starts. Products are in bfloat16, which CPUs that have it compute ten
times as fast; weights and sums stay in float32.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

WARM_UP = 100  # steps; a tenth of all steps where that is less
SAVE_SECONDS, TELL_SECONDS = 120.0, 150.0  # between checkpoints, and between early figures


@dataclass(frozen=True)
class Plan:
    """How long and how fast to learn. Exactly one of `steps` and `seconds` is the budget; the other is 0."""

    steps: int = 0
    seconds: float = 0
    learning_rate: float = 1e-3
    decay: float = 0.05


@dataclass
class Progress:
    """How far training is; saved with the weights."""

    step: int = 0
    seconds: float = 0

    def share(self, plan: Plan) -> float:
        """Of the budget that is spent."""
        return self.step / plan.steps if plan.steps else self.seconds / plan.seconds


def fit(
    model: nn.Module,
    loss: Callable[[Any, float], Tensor],
    batches: Callable[[int], Any],
    plan: Plan,
    checkpoint: Path,
    say: Callable[[str], None] = print,
    figures: Callable[[], str] = str,
) -> None:
    """Train in place.

    `batches` gives the batch of a step, always the same one; `loss` is told the share of the training that is done.
    """
    matrices = [weights for weights in model.parameters() if weights.dim() == 2]
    others = [weights for weights in model.parameters() if weights.dim() != 2]
    groups = [{"params": matrices, "weight_decay": plan.decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.98), fused=True)
    warm_up = min(WARM_UP, plan.steps / 10) if plan.steps else WARM_UP
    progress = _restore(model, optimizer, checkpoint)
    model.train()
    recent, last, saved, told = list[float](), time.monotonic(), time.monotonic(), time.monotonic()
    while progress.share(plan) < 1:
        rate = plan.learning_rate * min(1, (progress.step + 1) / warm_up) * _fall(progress.share(plan))
        for group in optimizer.param_groups:
            group["lr"] = rate
        torch.manual_seed(progress.step)  # of dropout; a run that is continued draws the same
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(batches(progress.step), progress.share(plan))
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        recent.append(value.item())
        now = time.monotonic()
        progress.step, progress.seconds, last = progress.step + 1, progress.seconds + now - last, now
        if now - saved > SAVE_SECONDS:
            _save(model, optimizer, progress, checkpoint)
            saved = now
        if now - told > TELL_SECONDS or progress.step == 5:
            say(_line(progress, plan, recent) + "; " + figures())
            recent, told, last = [], time.monotonic(), time.monotonic()
    _save(model, optimizer, progress, checkpoint)
    model.eval()


def _fall(share: float) -> float:
    return 0.02 + 0.49 * (1 + math.cos(math.pi * min(1, share)))


def _line(progress: Progress, plan: Plan, recent: list[float]) -> str:
    share = max(1e-9, progress.share(plan))
    left = progress.seconds * (1 - share) / share
    mean = sum(recent) / len(recent)
    return f"training: step {progress.step}, {share:.0%}, {left / 60:.0f} minutes left, loss {mean:.3f}"


def _save(model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, checkpoint: Path) -> None:
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": progress.step,
        "seconds": progress.seconds,
    }
    partial = checkpoint.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(checkpoint)  # whole or not at all


def _restore(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path) -> Progress:
    if not checkpoint.exists():
        return Progress()
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return Progress(state["step"], state["seconds"])


def endless(epoch: Callable[[int], list[Any]], read: Callable[[Any], Any]) -> Callable[[int], Any]:
    """The batch of a step, epoch after epoch."""
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
