"""Evaluation of a draft on answers it was not trained on, its speedup on this machine, and its model card.

Draft and target are compared as they decode: both logits under the same repetition penalty. As long as a chain is
right, the draft reads what the target wrote, so one pass over a finished text gives the length of every chain. The
card, the README of a trained draft, says how it was made, what was measured, and what it cannot do.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov
import torch

from specdemo.analysis import metrics
from specdemo.engines import load_engine
from specdemo.measure import measure_costs, race
from specdemo.records import Comparison, Costs, ModelPair
from specdemo.settings import GenerationSettings
from specdemo.train.architecture import products
from specdemo.train.corpus import Label
from specdemo.train.dataset import Batch, Dataset
from specdemo.train.objective import Learner
from specdemo.train.prompts import from_pattern
from specdemo.train.request import FULL, Effort, Request

LOOKAHEADS = range(1, 9)
SHOWN = 4
STEPS = 200  # timed steps of a draft
OPENINGS = ("The sun was", "Once upon a time", "In the beginning", "This is", "It was the first")
Right = npt.NDArray[np.bool_]
"""Correct predictions, [steps of a chain, answer tokens]."""
Groups = dict[str, tuple[int, float]]
"""Number of tokens and agreement, by group of answers."""


class Answer(NamedTuple):
    """A draft's predictions of one conversation's answers."""

    right: Right
    loss: float
    """Sum of −log q(the target's token), over tokens in the vocabulary."""

    inside: int
    """Number of tokens in the vocabulary."""


@dataclass(frozen=True)
class Evaluation:
    """Figures on held-out greedy answers."""

    answers: int
    tokens: int
    agreement: float
    """Share of the target's tokens that the draft predicts as the first of a round."""

    loss: float
    """Mean −log q(the target's token), over tokens in the vocabulary, in nats."""

    outside: float
    """Share of the target's tokens outside the draft's vocabulary."""

    acceptance_length: dict[int, float]
    """Mean acceptance length τ, tokens committed per target pass, by lookahead."""

    kinds: Groups = field(default_factory=dict)
    """By kind of task."""

    sources: Groups = field(default_factory=dict)
    """By source of the prompts."""

    def __str__(self) -> str:
        length = self.acceptance_length[SHOWN]
        return f"agreement {self.agreement:.1%}, τ {length:.2f} at lookahead {SHOWN} ({self.answers} answers)"


def evaluate(
    learner: Learner, dataset: Dataset, indices: Sequence[int], penalty: float, answers: int = 48, tokens: int = 4096
) -> Evaluation:
    """Evaluate on at most `answers` of the greedy answers among these conversations."""
    found, labels = list[Answer](), list[Label]()
    learner.eval()
    with torch.inference_mode():
        for group in dataset.grouped(dataset.greedy(list(indices))[:answers], tokens):
            found += answers_of(learner, dataset.batch(group), penalty)
            labels += [dataset.corpus.label(index) for index in group]
    total = sum(one.right.shape[1] for one in found)
    inside = sum(one.inside for one in found)
    rights = [one.right for one in found]
    return Evaluation(
        answers=len(found),
        tokens=total,
        agreement=_agreement(rights),
        loss=sum(one.loss for one in found) / max(1, inside),
        outside=1 - inside / max(1, total),
        acceptance_length={lookahead: acceptance_length(rights, lookahead) for lookahead in LOOKAHEADS},
        kinds=_grouped(rights, [label.kind for label in labels]),
        sources=_grouped(rights, [label.source for label in labels]),
    )


def _agreement(rights: Sequence[Right]) -> float:
    return float(np.concatenate([one[0] for one in rights]).mean()) if rights else 0.0


def _grouped(rights: Sequence[Right], names: Sequence[str]) -> Groups:
    """Return the number of tokens and the agreement of the answers with each name."""
    groups = {
        name: [one for one, other in zip(rights, names, strict=True) if other == name] for name in sorted({*names})
    }
    return {name: (sum(one.shape[1] for one in some), _agreement(some)) for name, some in groups.items()}


def answers_of(learner: Learner, batch: Batch, penalty: float) -> list[Answer]:
    """Return, per conversation, which answer tokens were predicted at each step of a chain, and the loss."""
    steps = len(LOOKAHEADS)
    with products():
        predictions = learner.predictions(batch, steps)
        rows = learner.rows
        found = []
        for place in range(len(batch.ids)):
            where = batch.scored[place].nonzero()[:, 0]
            repeated = torch.zeros((int(where[-1]) + 1, len(rows) + 1), dtype=torch.bool)
            repeated[torch.arange(len(repeated)), batch.small[place, : len(repeated)]] = True
            repeated = repeated.cummax(0).values[where, :-1]
            wanted, shown, loss = batch.small[place, where + 1], list[Right](), 0.0
            inside = wanted < len(rows)
            for each in predictions:
                if shown and each is predictions[0]:  # a standalone draft is equally good at every step
                    shown.append(shown[0])
                    continue
                logits = torch.nn.functional.linear(each[place, where], rows).float()
                logits = torch.where(repeated, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
                if not shown:
                    loss = torch.nn.functional.cross_entropy(logits[inside], wanted[inside], reduction="sum").item()
                shown.append((logits.argmax(-1) == wanted).numpy())
            found.append(Answer(np.stack(shown), loss, int(inside.sum())))
    return found


def acceptance_length(rights: list[Right], lookahead: int) -> float:
    """Return the tokens committed per target pass over whole answers, at a constant lookahead."""
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


class VocabularyCost(NamedTuple):
    """Cost and coverage of a vocabulary size."""

    size: int
    outside: float
    """Share of the answers' tokens outside it."""

    seconds: float
    """Median time of one draft step; 0 if not measured."""

    def __str__(self) -> str:
        step = f", {self.seconds * 1e3:.2f} ms a step" if self.seconds else ""
        return f"{self.size} tokens: {self.outside:.1%} of the answers' tokens outside{step}"


def step_seconds(models: Sequence[ov.Model], threads: int = 0) -> list[float]:
    """Return the median seconds of a one-token step; drafts alternate, so that all run under the same conditions."""
    properties = {"INFERENCE_PRECISION_HINT": "f32"} | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
    requests = [ov.Core().compile_model(model, "CPU", properties).create_infer_request() for model in models]
    seconds: list[list[float]] = [[] for _ in models]
    for step in range(STEPS):
        turns = list(zip(requests, seconds, strict=True))
        for request, some in turns[step % len(turns) :] + turns[: step % len(turns)]:
            inputs = {
                "input_ids": np.zeros((1, 1), np.int64),
                "attention_mask": np.ones((1, step + 1), np.int64),
                "position_ids": np.full((1, 1), step, np.int64),
                "beam_idx": np.zeros(1, np.int32),
            }
            began = perf_counter()
            request.infer(inputs)
            some.append(perf_counter() - began)
    return [median(some[STEPS // 4 :]) for some in seconds]  # the first quarter is warm-up


def costs_of(pair: ModelPair) -> Costs | None:
    """Measure step costs with GenAI's engine; None if they cannot be measured."""
    with closing(load_engine("genai", pair)) as engine:
        return measure_costs(engine)


def best_lookahead(evaluation: Evaluation, costs: Costs | None) -> tuple[int, float | None]:
    """Return the lookahead with the highest predicted speedup, τ / (d(γ) + v(γ+1)), and that speedup, if known."""
    if costs is None:
        return 4, None
    speedups = {
        lookahead: length / cost
        for lookahead, length in evaluation.acceptance_length.items()
        if (cost := metrics.round_cost(costs, lookahead)) is not None
    }
    return max(speedups.items(), key=lambda item: item[1], default=(4, None))


def race_summary(pair: ModelPair, request: Request, lookahead: int, effort: Effort = FULL) -> str:
    """Race at a constant lookahead, under the repetition penalty; return a sentence on the results."""
    random = Random(f"{request.seed} races")
    made = [from_pattern(random, []).text for _ in range(effort.races)] if pair.target.chat_template else []
    prompts = made or OPENINGS[: effort.races]
    settings = GenerationSettings(
        num_assistant_tokens=lookahead, max_new_tokens=effort.race_tokens, repetition_penalty=request.penalty
    )
    with closing(load_engine("genai", pair)) as engine:
        found = [one for prompt in prompts for one in race(engine, prompt, settings) if isinstance(one, Comparison)]
    speedups = [value for one in found if (value := metrics.speedup(one)) is not None]
    if not speedups:
        return ""
    identical = sum(map(metrics.identical, found))
    return (
        f"Raced on {len(speedups)} prompts, {effort.race_tokens} tokens at most, at lookahead {lookahead}: "
        f"median speedup {median(speedups):.2f} ({min(speedups):.2f} to {max(speedups):.2f}), "
        f"output identical in {identical} of {len(found)}, on {found[0].environment.device}."
    )


_KINDS = {
    "draft": "A small language model, for both engines.",
    "eagle3": (
        "An EAGLE-3 head: it also reads the target's hidden states, so it works with this target alone, "
        "in GenAI's engine."
    ),
}


@dataclass(frozen=True)
class Figures:
    """A draft's evaluation, and how much text it was trained on."""

    tokens: int
    """Number of answer tokens trained on."""

    alike: Evaluation
    """Evaluation on held-out prompts from the training sources."""

    elsewhere: Evaluation | None
    """Evaluation on the source left out of training; None without one."""


def card(request: Request, facts: Mapping[str, str], curve: Sequence[Figures], measured: str) -> str:
    """Return the model card as Markdown.

    Args:
        request: the training request.
        facts: rows of the first table, by name.
        curve: figures of drafts trained on more and more text; the last, often the only one, is this draft.
        measured: a sentence about races, or "".
    """
    alike, elsewhere = curve[-1].alike, curve[-1].elsewhere
    lengths = alike.acceptance_length
    lines = [
        f"# A draft for {request.target}",
        "",
        _KINDS[request.kind],
        "",
        "It was trained by `python -m specdemo train-draft` on text that the target wrote itself, to predict what "
        "the target says, right or wrong. Parts of it are the target's, so the target's licence holds.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts.items()),
        "",
        f"On {alike.answers} greedy answers of the target ({alike.tokens} tokens) to held-out prompts from the "
        f"sources it was trained on, with repetition penalty {request.penalty:g} on both sides, it predicted "
        f"**{alike.agreement:.1%}** of the tokens; {alike.outside:.1%} lie outside its vocabulary.",
        "",
        *_elsewhere(request, elsewhere),
        "| lookahead | " + " | ".join(map(str, lengths)) + " |",
        "|---" * (len(lengths) + 1) + "|",
        _lengths("τ on its sources", alike),
        *([_lengths("τ on the other source", elsewhere)] if elsewhere else []),
        "",
        "τ, the mean acceptance length, is committed tokens per target pass.",
        "",
        *_by("kind of task", alike.kinds, elsewhere.kinds if elsewhere else {}),
        *_by("source of the prompts", alike.sources, elsewhere.sources if elsewhere else {}),
        *(_by_text(curve) if len(curve) > 1 else []),
        *([measured, ""] if measured else []),
        "Where the target writes a token outside the draft's vocabulary, the round ends. Text unlike that of the "
        "training is predicted less often; the other source is the better estimate for prompts of your own.",
    ]
    return "\n".join(lines) + "\n"


def _elsewhere(request: Request, found: Evaluation | None) -> list[str]:
    if found is None:
        return ["It was trained on all sources of prompts; agreement on prompts of another kind is unmeasured.", ""]
    return [
        f"On {found.answers} answers ({found.tokens} tokens) to prompts of a source that was left out of the "
        f"training, {request.hold_out}, it predicted **{found.agreement:.1%}**; {found.outside:.1%} lie outside its "
        "vocabulary.",
        "",
    ]


def _lengths(name: str, found: Evaluation) -> str:
    return f"| {name} | " + " | ".join(f"{value:.2f}" for value in found.acceptance_length.values()) + " |"


def _by(name: str, alike: Groups, other: Groups) -> list[str]:
    """Return a table of agreement by group of answers."""

    def cell(found: tuple[int, float] | None) -> str:
        return "–" if found is None else f"{found[1]:.0%} of {found[0]}"

    rows = [f"| {one} | {cell(alike.get(one))} | {cell(other.get(one))} |" for one in sorted({*alike, *other})]
    return [f"| tokens predicted, by {name} | its sources | other source |", "|---|---|---|", *rows, ""]


def _by_text(curve: Sequence[Figures]) -> list[str]:
    """Return a table of figures by amount of training text."""

    def cells(found: Evaluation | None) -> str:
        return f"{found.agreement:.1%} | {found.acceptance_length[SHOWN]:.2f}" if found else "– | –"

    rows = [f"| {one.tokens} | {cells(one.alike)} | {cells(one.elsewhere)} |" for one in curve]
    return [
        "Trained in the same way on parts of the text, drafts predict:",
        "",
        f"| tokens of answers trained on | its sources | τ({SHOWN}) | other source | τ({SHOWN}) |",
        "|---|---|---|---|---|",
        *rows,
        "",
    ]
