"""How often a draft is right on answers that were held out, and what that is worth in rounds.

Draft and target are compared as they decode: both logits under the same repetition penalty. While a chain is right,
the draft reads what the target wrote, so one pass over known text tells every chain's length.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from specdemo.train.lessons import Lesson
from specdemo.train.material import Batch, Material

LOOKAHEADS = range(1, 9)
SHOWN = 4
Right = npt.NDArray[np.bool_]
"""Whether a token was foretold, [steps of a chain, tokens of an answer]."""


@dataclass(frozen=True)
class Judgement:
    """What was found on held-out greedy answers."""

    answers: int
    tokens: int
    agreement: float
    """Share of the target's tokens that the draft foretells as the first of a round."""

    accepted_length: dict[int, float]
    """τ, committed tokens a target pass, by lookahead."""

    def __str__(self) -> str:
        length = self.accepted_length[SHOWN]
        return (
            f"agreement {self.agreement:.1%}, τ {length:.2f} at lookahead {SHOWN} ({self.answers} held-out answers)"
        )


def judge(lesson: Lesson, material: Material, penalty: float, answers: int = 48, tokens: int = 4096) -> Judgement:
    """Judge on at most so many held-out greedy answers."""
    chosen = [index for index in material.held_out if material.greedy(index)][:answers]
    rights = list[Right]()
    lesson.eval()
    with torch.inference_mode():
        for group in material.grouped(chosen, tokens):
            rights += right(lesson, material.batch(group), penalty)
    lesson.train()
    agreement = float(np.concatenate([one[0] for one in rights]).mean()) if rights else 0.0
    lengths = {lookahead: accepted_length(rights, lookahead) for lookahead in LOOKAHEADS}
    return Judgement(len(rights), sum(one.shape[1] for one in rights), agreement, lengths)


def right(lesson: Lesson, batch: Batch, penalty: float) -> list[Right]:
    """Per conversation, whether each token of the answer was foretold at each step of a chain."""
    steps = len(LOOKAHEADS)
    with torch.autocast("cpu", torch.bfloat16):
        predictions = lesson.predictions(batch, steps)
        rows = lesson.rows
        found = []
        for place in range(len(batch.ids)):
            where = batch.judged[place].nonzero()[:, 0]
            seen = torch.zeros((int(where[-1]) + 1, len(rows) + 1), dtype=torch.bool)
            seen[torch.arange(len(seen)), batch.small[place, : len(seen)]] = True
            seen = seen.cummax(0).values[where, :-1]
            wanted, shown = batch.small[place, where + 1], list[Right]()
            for each in predictions:
                if shown and each is predictions[0]:  # a draft of its own is as good at every step
                    shown.append(shown[0])
                    continue
                logits = torch.nn.functional.linear(each[place, where], rows).float()
                logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
                shown.append((logits.argmax(-1) == wanted).numpy())
            found.append(np.stack(shown))
    return found


def accepted_length(rights: list[Right], lookahead: int) -> float:
    """Committed tokens per target pass over whole answers, at a constant lookahead."""
    tokens = passes = 0
    for steps in rights:
        at, end = 0, steps.shape[1]
        while at < end:
            accepted = 0
            while accepted < lookahead and at + accepted < end and steps[accepted, at + accepted]:
                accepted += 1
            at += accepted + 1
            passes += 1
        tokens += end
    return tokens / max(1, passes)
