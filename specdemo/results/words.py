"""Outputs, settings and numbers in words, and text as pieces to print; none of it needs an estimate."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Literal, NamedTuple

from specdemo.capabilities import ENGINES
from specdemo.errors import listed
from specdemo.records import Comparison, Divergence, ModelPair, Outcome, Round, Side
from specdemo.results import metrics
from specdemo.settings import GenerationSettings
from specdemo.text import counted

_UNCOMPRESSED = ("f32", "f16", "bf16", "F32", "F16", "BF16")  # of stored weights whose activations are not quantized


def agreement(comparison: Comparison) -> str:
    if not comparison.both_ran:
        return "one side only"
    index = metrics.first_divergence(comparison)
    if index is not None:
        drawn = ", as draws do" if comparison.settings.do_sample else ""
        return f"outputs differ from token {index + 1} on{drawn}"
    compared = min(len(comparison.plain.tokens), len(comparison.speculative.tokens))
    return f"identical output, {counted(compared, 'token')} compared"


def notes(comparison: Comparison) -> Iterator[str]:
    pair, settings = comparison.pair, comparison.settings
    yield _SOURCES[comparison.trace_source]
    run, source = comparison.speculative, comparison.trace_source
    counts = run.draft_counts
    if counts is not None and counts.of_server:
        yield "Its counts of proposals are those of the whole server while this ran."
    if source == "bursts" and run.token_ids:
        yield "Some chunks hold tokens of several rounds, joined by a busy server or a proxy; the tokens are exact."
    elif (
        source == "reported"
        and "vLLM" in comparison.environment.draft_device
        and run.rounds
        and all(step.proposed is None for step in run.rounds)
        # if nothing was accepted, a detailed report may leave open which rounds had proposals
        and (counts is None or counts.of_server or counts.accepted)
    ):
        yield "Started with --per-request-spec-decode-metrics detailed, vLLM reports each round's proposals, too."
    if pair.translated and settings.strategy.drafter.model:
        yield (
            "Target and draft have different tokenizers: the draft's text was re-encoded for the target, "
            "so its proposals have no probabilities."
        )
    if pair.target.weights not in _UNCOMPRESSED:
        setting, used = pair.runtime.dynamic_quantization, comparison.environment.dynamic_quantization
        if setting in ("off", "auto") and not used.startswith("groups"):
            yield _NOT_QUANTIZED
    if comparison.moves:
        rounds = listed([str(move.round) for move in comparison.moves])
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
    "tokens without ids are divided among chunks by length, so only their total is exact.",
}
SAMPLING_CAVEAT = (
    "When sampling with a draft model, openvino-genai 2026.4 does not keep the target's distribution: its acceptance "
    "rule compares the draft's probability with the probability of a different token. The output is biased, not just "
    "different by chance. The traced engine keeps the distribution exactly."
)
_ROUNDING = (
    "a pass over several tokens runs other kernels than a pass over one and rounds differently, which decides "
    "between two tokens that are almost equally likely."
)
_NOT_QUANTIZED = (
    "Activations are not quantized here (dynamic quantization is off), which keeps outputs identical and makes steps "
    "slower. The switch is under Runtime in the Models tab."
)


def divergence_reason(comparison: Comparison) -> str:
    """Empty if outputs are identical, or a fault explains the difference."""
    settings, divergence = comparison.settings, comparison.divergence
    if metrics.identical(comparison) or fault(comparison):
        return ""
    if settings.do_sample and settings.strategy.drafter.model and ENGINES[settings.engine].samples_exactly is False:
        return SAMPLING_CAVEAT
    if settings.do_sample:
        return (
            "When sampling, each side draws its own random numbers, so the texts can diverge at any token. "
            "Both are drawn from the same distribution."
        )
    if not ENGINES[settings.engine].local:
        return f"If both servers hold the same weights in the same precision, this is rounding: {_ROUNDING}"
    if divergence is not None:
        return f"{_candidates(divergence)} This is a harmless near-tie, which rounding decides. {_remedy(comparison)}"
    return f"Both sides use the same target, but {_ROUNDING} {_remedy(comparison)}"


def fault(comparison: Comparison) -> str:
    """Describe a difference between outputs that rounding does not explain; empty if there is none."""
    divergence, settings = comparison.divergence, comparison.settings
    if divergence is None or divergence.near_tie or settings.do_sample or not ENGINES[settings.engine].local:
        return ""
    report = "Please report it with the run's JSON file, which holds everything needed to reproduce it."
    return f"{_candidates(divergence)} Rounding does not explain this: engine or model is at fault. {report}"


def _candidates(divergence: Divergence) -> str:
    plain, speculative = (
        f"“{token.text}” {token.probability * 100:.3g} %".replace("\n", "↵")
        for token in (divergence.plain, divergence.speculative)
    )
    return (
        f"At token {divergence.index + 1} the target gave {plain} (plain) and {speculative} (speculative). Here, "
        f"passes over several tokens changed probabilities by up to {math.expm1(divergence.rounding) * 100:.2g} % "
        "(relative) compared with passes over one token."
    )


def _remedy(comparison: Comparison) -> str:
    """Name the precision with which outputs diverge less often, or say that it is already in use."""
    used, weights = comparison.environment, comparison.pair.target.weights
    quantized = weights not in _UNCOMPRESSED and used.dynamic_quantization.startswith("groups")
    if not quantized and {used.inference_precision, used.kv_cache_precision} == {"f32"}:
        return "Inference and KV cache already use f32, so no other precision avoids it."
    return (
        f"Inference runs in {used.inference_precision} with a KV cache in {used.kv_cache_precision}; with "
        "--precision f32 --kv-cache-precision f32 --dynamic-quantization off, outputs diverge less often."
    )


def run_words(comparison: Comparison) -> str:
    """A run's settings, with every value of one that changed: "lookahead 2 → lookahead 6"."""
    strategies = [comparison.settings.strategy]
    for move in comparison.moves:
        changed = move.model_dump(exclude={"round"}, exclude_none=True)
        names = changed.keys() & strategies[0].parameters()
        strategies.append(replace(strategies[-1], **{name: changed[name] for name in names}))
    words = " → ".join(word for word, _ in groupby(strategy.description for strategy in strategies))
    return f"{words}, {shared_words(comparison.settings)}"


def shared_words(settings: GenerationSettings) -> str:
    """Settings in words, without lookahead or threshold."""
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


def is_chat(pair: ModelPair, settings: GenerationSettings) -> bool:
    return pair.target.chat_template and settings.apply_chat_template


def prompt_of(comparison: Comparison) -> str:
    """Return the prompt as shown before the text, which continues it or, in a chat, answers on the next line."""
    return comparison.prompt + ("\n" if is_chat(comparison.pair, comparison.settings) else "")


PieceKind = Literal["plain", "accepted", "own", "rejected"]


class Piece(NamedTuple):
    """`own` is a correction or bonus token, or a round's only token."""

    text: str
    kind: PieceKind


def pieces(step: Round, side: Side = "speculative") -> Iterator[Piece]:
    """Accepted proposals, the rejected one unless unknown, then the target's token."""
    for token in step.committed[: step.accepted]:
        yield Piece(token.text, "accepted")
    for draft in (step.proposed or ())[step.accepted :]:
        if draft.verdict is Outcome.REJECTED and draft.id is not None:
            yield Piece(draft.text.replace("\n", "↵"), "rejected")
    for token in step.committed[step.accepted :]:
        yield Piece(token.text, "plain" if side == "plain" else "own")


def number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:.2f}{unit}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def parameters(count: int) -> str:
    """Such as 1.1M or 7.0B."""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"


def milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.2f} ms"
