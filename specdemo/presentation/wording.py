"""Settings in words, as every result names them; and text in pieces, coloured in the terminal and in pictures."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Literal, NamedTuple

from specdemo.records import Comparison, ModelPair, Outcome, Round, Run, Side
from specdemo.settings import GenerationSettings
from specdemo.strategies import ENGINES


def run_words(comparison: Comparison) -> str:
    """Describe a run's settings, with every value of a setting that changed: "lookahead 2 → lookahead 6"."""
    strategy = comparison.settings.strategy
    strategies = [strategy]
    for move in comparison.moves:
        moved = move.model_dump(exclude={"round"}, exclude_none=True)
        strategies.append(
            replace(strategies[-1], **{name: moved[name] for name in moved.keys() & strategy.parameters()})
        )
    words = " → ".join(word for word, _ in groupby(each.words for each in strategies))
    return f"{words}, {shared_words(comparison.settings)}"


def shared_words(settings: GenerationSettings) -> str:
    """Describe settings without the decoding strategy, which sweeps and benchmarks vary."""
    return ", ".join(
        [
            settings.strategy.drafter.words,
            ENGINES[settings.engine].words,
            common_words(settings),
        ]
    )


def common_words(settings: GenerationSettings) -> str:
    """Describe settings without strategy, drafter and engine."""
    return f"{_sampling(settings)}, {length_words(settings)}"


def length_words(settings: GenerationSettings) -> str:
    """Describe settings as `common_words` does, but without sampling, which temperature sweeps vary."""
    cache = ["no KV cache"] if settings.kv_cache == "off" else []
    return ", ".join([*cache, f"at most {settings.max_new_tokens} tokens"])


def is_chat(pair: ModelPair, settings: GenerationSettings) -> bool:
    """Check if prompts are chat messages."""
    return pair.target.chat_template and settings.apply_chat_template


def prompt_of(comparison: Comparison) -> str:
    """Return the prompt as shown before the text, which continues it or, in a chat, answers it on the next line."""
    return comparison.prompt + ("\n" if is_chat(comparison.pair, comparison.settings) else "")


def _sampling(settings: GenerationSettings) -> str:
    penalty = f", repetition penalty {settings.repetition_penalty:g}" if settings.repetition_penalty != 1 else ""
    if not settings.do_sample:
        return f"greedy{penalty}"
    return (
        f"sampling at temperature {settings.temperature:g}, top-p {settings.top_p:g}, top-k {settings.top_k}"
        f"{penalty}, seed {settings.seed}"
    )


PieceKind = Literal["plain", "accepted", "own", "rejected"]


class Piece(NamedTuple):
    """Text and its kind; `own` is a correction or bonus token, or a round's only token."""

    text: str
    kind: PieceKind


def pieces(step: Round, side: Side = "speculative") -> Iterator[Piece]:
    """Yield the pieces of a round: accepted proposals, the rejected one unless unknown, then the target's token."""
    accepted = step.accepted
    for token in step.committed[:accepted]:
        yield Piece(token.text, "accepted")
    for draft in (step.proposed or ())[accepted:]:
        if draft.verdict is Outcome.REJECTED and draft.id is not None:
            yield Piece(draft.text.replace("\n", "↵"), "rejected")
    for token in step.committed[accepted:]:
        yield Piece(token.text, "plain" if side == "plain" else "own")


def pieces_of(run: Run, side: Side = "speculative") -> Iterator[Piece]:
    """Yield the pieces of a whole run, starting with its prefill."""
    for step in (run.prefill, *run.rounds):
        yield from pieces(step, side)
