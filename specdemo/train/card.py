"""The README of a trained draft: how it was made, what was measured, what it cannot do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdemo.train.evaluate import SHOWN, Evaluation, Groups
from specdemo.train.request import Request

_KINDS = {
    "draft": "A small language model, for both engines.",
    "eagle3": (
        "An EAGLE-3 head: it also reads the target's hidden states, so it works with this target alone, "
        "in GenAI's engine."
    ),
}


@dataclass(frozen=True)
class Figures:
    """What a draft predicts, and of how much text it learnt."""

    tokens: int
    """Of answers, trained on."""

    alike: Evaluation
    """On held-out prompts of the sources that were trained on."""

    elsewhere: Evaluation | None
    """On prompts of a source that was not; None without one."""


def card(request: Request, facts: Mapping[str, str], curve: Sequence[Figures], measured: str) -> str:
    """Markdown.

    Args:
        request: what was trained.
        facts: lines of the first table, by name.
        curve: figures of drafts of ever more text; the last is this one, often the only one.
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
    """A table of agreement by a group of answers."""

    def cell(found: tuple[int, float] | None) -> str:
        return "–" if found is None else f"{found[1]:.0%} of {found[0]}"

    rows = [f"| {one} | {cell(alike.get(one))} | {cell(other.get(one))} |" for one in sorted({*alike, *other})]
    return [f"| tokens predicted, by {name} | its sources | other source |", "|---|---|---|", *rows, ""]


def _by_text(curve: Sequence[Figures]) -> list[str]:
    """A table of what more text was worth."""

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
