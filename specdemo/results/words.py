"""Settings and traces in words, and text as pieces to print."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Literal, NamedTuple

from specdemo.capabilities import ENGINES
from specdemo.errors import listed
from specdemo.records import Comparison, ModelPair, Outcome, Request, Round, Side
from specdemo.results.agreement import UNCOMPRESSED
from specdemo.settings import GenerationSettings


def notes(comparison: Comparison) -> Iterator[str]:
    pair, settings = comparison.pair, comparison.settings
    yield _SOURCES[comparison.trace_source]
    run, source = comparison.speculative, comparison.trace_source
    counts = run.draft_counts
    if counts is not None and counts.of_server:
        yield "The server's counts of proposals cover all its requests during this run."
    hidden = comparison.plain.hidden_tokens + run.hidden_tokens
    if hidden:
        yield f"The servers counted {hidden} tokens that they never sent, such as thoughts; no rate includes them."
    if source == "bursts" and run.token_ids:
        chunks = "Some chunks hold tokens of several rounds, joined by a busy server or a proxy"
        single = all(len(step.committed) == 1 for step in run.rounds)
        yield f"{'Each chunk holds one token, not a round' if single else chunks}; the tokens are exact."
    if pair.translated and settings.strategy.drafter.model:
        yield (
            "Target and draft have different tokenizers: the draft's text was re-encoded for the target, "
            "so its proposals have no probabilities."
        )
    if pair.target.weights not in UNCOMPRESSED:
        setting, used = pair.runtime.dynamic_quantization, comparison.environment.dynamic_quantization
        if setting in ("off", "auto") and not used.startswith("groups"):
            yield _NOT_QUANTIZED
    if comparison.settings_updates:
        rounds = listed([str(update.round) for update in comparison.settings_updates])
        yield f"Settings were changed in round {rounds}; the figures cover all of them together."
    if comparison.history:
        yield "Both sides read the same earlier turns, with the target's own answers."


_SOURCES = {
    "measured": "Proposals were recorded as they were made.",
    "replayed": "GenAI does not report which proposals it rejected, so they were replayed: the drafter ran again "
    "over the committed text, off the clock, and each round was checked against its committed tokens.",
    "counts only": "GenAI does not report which proposals it rejected, and those of sampling or of a head "
    "cannot be replayed. With a constant lookahead their number is known; with a confidence threshold, or in trees, "
    "only the number of accepted ones is.",
    "reported": "The server reported how many tokens each round accepted and, where shown, how many it proposed, but "
    "not the rejected tokens. Rounds are timed by the arrival of their tokens.",
    "bursts": "The server does not report its rounds. Each chunk of text that arrived at once is shown as a round; "
    "tokens without ids are divided among chunks by length, so only their total is exact. Started with "
    "--per-request-spec-decode-metrics summary, vLLM counts proposals.",
}
_NOT_QUANTIZED = (
    "Activations are not quantized here (dynamic quantization is off), which keeps outputs identical and makes steps "
    "slower. The switch is under Runtime in the Models tab."
)


def run_words(comparison: Comparison) -> str:
    form = comparison.pair.runtime.weights
    weights = "" if form == "auto" else f", {form} weights"
    return f"{strategy_words(comparison)}, {shared_words(comparison.settings)}{weights}"


def strategy_words(comparison: Comparison, *, short: bool = False) -> str:
    """A run's strategy, with every value of a setting that changed: "lookahead 2 → lookahead 6"."""
    strategies = [comparison.settings.strategy]
    for update in comparison.settings_updates:
        names = update.values.keys() & strategies[0].parameters()
        strategies.append(replace(strategies[-1], **{name: update.values[name] for name in names}))
    words = (strategy.label if short else strategy.description for strategy in strategies)
    return " → ".join(word for word, _ in groupby(words))


def shared_words(settings: GenerationSettings) -> str:
    """Without lookahead or threshold."""
    words = [settings.strategy.drafter.label.lower(), ENGINES[settings.engine].noun]
    if settings.do_sample:
        words.append(f"sampling at temperature {settings.temperature:g}, top-p {settings.top_p:g}")
        words.append(f"top-k {settings.top_k}, seed {settings.seed}")
    else:
        words.append("greedy")
    if settings.repetition_penalty != 1:
        words.append(f"repetition penalty {settings.repetition_penalty:g}")
    if settings.kv_cache == "off":
        words.append("no KV cache")
    return ", ".join([*words, f"at most {settings.max_new_tokens} tokens"])


def is_chat(pair: ModelPair, settings: GenerationSettings | Request) -> bool:
    return pair.target.chat_template and settings.apply_chat_template


def prompt_of(comparison: Comparison) -> str:
    """Return the prompt as shown before the text, which continues it or, in a chat, answers on the next line."""
    return comparison.prompt + ("\n" if is_chat(comparison.pair, comparison.settings) else "")


PieceKind = Literal["plain", "accepted", "target", "rejected"]


class Piece(NamedTuple):
    """`target` is a correction or bonus token, or a round's only token."""

    text: str
    kind: PieceKind


def pieces(step: Round, side: Side = "speculative") -> Iterator[Piece]:
    """Accepted proposals, the rejected one unless unknown, then the target's token."""
    for token in step.committed[: step.accepted]:
        yield Piece(token.text, "accepted")
    for draft in (step.proposed or ())[step.accepted :]:
        if draft.outcome is Outcome.REJECTED and draft.id is not None:
            yield Piece(draft.text.replace("\n", "↵"), "rejected")
    for token in step.committed[step.accepted :]:
        yield Piece(token.text, "plain" if side == "plain" else "target")
