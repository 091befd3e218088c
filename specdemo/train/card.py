"""The README of a trained draft: how it was made, what was measured, what it cannot do."""

from collections.abc import Mapping

from specdemo.train.judge import Judgement
from specdemo.train.plan import Request

_KINDS = {
    "draft": "A small language model, for both engines.",
    "eagle3": (
        "An EAGLE-3 head: it also reads the target's hidden states, so it works with this target alone, "
        "in GenAI's engine."
    ),
}


def card(request: Request, facts: Mapping[str, str], judgement: Judgement, measured: str) -> str:
    """Markdown; `facts` are lines of the table by name, `measured` is a sentence about races, or empty."""
    lengths = judgement.accepted_length
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
        f"On {judgement.answers} greedy answers of the target ({judgement.tokens} tokens) to prompts that were held "
        f"out, with repetition penalty {request.penalty:g} on both sides, it predicted "
        f"**{judgement.agreement:.1%}** of the tokens.",
        "",
        "| lookahead | " + " | ".join(map(str, lengths)) + " |",
        "|---" * (len(lengths) + 1) + "|",
        "| committed tokens a target pass, τ | " + " | ".join(f"{value:.2f}" for value in lengths.values()) + " |",
        "",
        *([measured, ""] if measured else []),
        "Where the target writes a token outside the draft's vocabulary, the round ends. Text unlike that of the "
        "training is predicted less often.",
    ]
    return "\n".join(lines) + "\n"
