"""Plain sentences about a comparison, for page and terminal: its settings, its evidence, and why outputs differ."""

import math
from collections.abc import Iterator

from specdemo import metrics
from specdemo.exports.code import command
from specdemo.models.pairs import initial_runtime, initial_settings
from specdemo.presentation.wording import run_words
from specdemo.records import Comparison, Counters, Divergence, Move, Outcome
from specdemo.strategies import ENGINES, SOURCES, Tree


def agreement(comparison: Comparison) -> str:
    """Describe whether outputs are identical, and over how many tokens."""
    if not comparison.both:
        return "one side only"
    compared = min(len(comparison.plain.tokens), len(comparison.speculative.tokens))
    index = metrics.first_divergence(comparison)
    if index is None:
        return f"identical output, {compared} tokens compared"
    return f"outputs differ from token {index + 1} on"


def made_by(comparison: Comparison) -> str:
    """Describe the pair, device and settings behind a result."""
    device = comparison.environment.device
    return f"{comparison.pair.name} on {device}: {run_words(comparison)}."


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield the source of the proposals, and everything else that qualifies the figures."""
    yield _SOURCES[comparison.trace_source]
    if (counters := comparison.counters) is not None:
        yield _counted(comparison, counters)
    if comparison.pair.translated and comparison.settings.strategy.drafter.model:
        yield (
            "Target and draft have different tokenizers: the draft's text was re-encoded for the target, "
            "so its proposals have no probabilities."
        )
    if comparison.pair.target.weights not in UNCOMPRESSED:
        asked, used = comparison.pair.runtime.dynamic_quantization, comparison.environment.dynamic_quantization
        if used.startswith("groups") and metrics.identical(comparison):
            yield _QUANTIZED_ALIKE.format(groups=used)
        elif asked in ("off", "auto"):
            yield _EXACT
    if comparison.pair.runtime.enable_prefix_caching:
        yield "Prefix caching is on: prefill counts only tokens that earlier texts had not left in the KV cache."
    if comparison.moves:
        moves = ", ".join(f"{moved_to(move)} from round {move.round} on" for move in comparison.moves)
        yield f"Settings were changed while it ran: {moves}. The figures cover several settings together."
    if comparison.history:
        yield "Both sides read the same earlier turns, with the target's own answers."


def _counted(comparison: Comparison, counters: Counters) -> str:
    """Describe GenAI's own counters, and whether they agree with the figures shown."""
    counts = f"GenAI counts {counters.proposed} proposals, {counters.rejected} rejected"
    ours = metrics.proposed_and_accepted(comparison.speculative)
    if not counters.same:
        fit = ", in another run of this request, whose text differs."
    elif ours is None:
        fit = ", in another run of this request; in this one they are unknown."
    elif ours == (counters.proposed, counters.accepted):
        fit = "; specdemo counts the same."
    else:
        fit = f"; specdemo counts {ours[0]}, {ours[0] - ours[1]} rejected."
    work = counters.processed / counters.proposed if counters.proposed else 0
    return (
        f"{counts}{fit} The last round is left out. The draft computed {work:.2f} tokens per proposal and took "
        f"{counters.draft_share:.2f} of the target's time."
    )


def moved_to(move: Move) -> str:
    """Describe a setting's new value in two words."""
    if move.num_assistant_tokens is not None:
        return f"lookahead {move.num_assistant_tokens}"
    return f"threshold {move.assistant_confidence_threshold:.2f}"


_SOURCES = {
    "measured": "Proposals were recorded as they were made.",
    "replayed": "GenAI does not report which proposals it rejected, so they were replayed: the drafter ran again "
    "over the committed text, off the clock, and each round was checked against what it committed.",
    "counts only": "GenAI does not report which proposals it rejected, and those of sampling or of a head "
    "cannot be replayed. With a constant lookahead their number is known; with a confidence threshold, or in trees, "
    "only the number of accepted ones is.",
    "reported": "The server reported how many tokens each round proposed and how many were accepted, but not the "
    "rejected tokens. Rounds are timed by the arrival of their tokens.",
    "bursts": "The server does not report its rounds. Each chunk of text that arrived at once is shown as a round; "
    "tokens are divided among chunks by length, so only their total is exact.",
}


def divergence_reason(comparison: Comparison) -> str:
    """Explain why outputs can differ with these settings; empty if they are identical."""
    if metrics.identical(comparison):
        return ""
    settings = comparison.settings
    if settings.do_sample and settings.strategy.drafter.model and ENGINES[settings.engine].samples_exactly is False:
        return SAMPLING_CAVEAT
    if settings.do_sample:
        return (
            "When sampling, each side draws its own random numbers, so the texts can diverge at any token. "
            "Both are drawn from the same distribution."
        )
    if not ENGINES[settings.engine].local:
        return _REMOTE_DIVERGENCE
    found = comparison.divergence
    tree = f" {TREES}." if isinstance(settings.strategy, Tree) else ""
    if fault(comparison):
        return _reproduced(comparison)
    if found is not None:
        return f"{_candidates(found)} {_HARMLESS} {_remedy(comparison)}{tree}"
    return (
        "Both sides use the same target, but a pass over several tokens runs different kernels than a pass over one "
        "and rounds differently, which decides between two tokens that are almost equally likely. "
        f"{_remedy(comparison)}{tree}"
    )


def fault(comparison: Comparison) -> str:
    """Name the fault if outputs differ and rounding does not explain it; else empty."""
    found, settings = comparison.divergence, comparison.settings
    if found is None or found.near_tie or settings.do_sample or not ENGINES[settings.engine].local:
        return ""
    tree = f" {TREES}." if isinstance(settings.strategy, Tree) else ""
    return f"{_candidates(found)} So this is no tie: engine or model is at fault.{tree}"


def _candidates(found: Divergence) -> str:
    """Describe the target's probabilities of both tokens, and how far rounding moves probabilities here."""
    tokens = found.plain, found.speculative
    plain, speculative = (f"{_quoted(each.text)} {each.probability * 100:.3g} %" for each in tokens)
    return (
        f"At token {found.index + 1} the target gave {plain} (plain) and {speculative} (speculative). Here, passes "
        f"over several tokens changed probabilities by up to {math.expm1(found.rounding) * 100:.2g} % (relative) "
        "compared with passes over one token."
    )


_HARMLESS = "So this is a near-tie, which rounding decides: harmless."


def _remedy(comparison: Comparison) -> str:
    """Name the precision with which outputs diverge less often, or say that none does if it is already in use."""
    precision, weights = comparison.environment, comparison.pair.target.weights
    quantized = weights not in UNCOMPRESSED and precision.dynamic_quantization.startswith("groups")
    if not quantized and {precision.inference_precision, precision.kv_cache_precision} == {"f32"}:
        return "Inference runs in f32 with a KV cache in f32 here, so no other precision avoids it."
    return (
        f"Here inference runs in {precision.inference_precision} with a KV cache in {precision.kv_cache_precision}; "
        "in f32 throughout (--precision f32 --kv-cache-precision f32), outputs diverge less often."
        + (_QUANTIZED.format(weights=weights, groups=precision.dynamic_quantization) if quantized else "")
    )


def _reproduced(comparison: Comparison) -> str:
    """Return the command that reproduces a divergence, for POSIX shells and, if different, PowerShell, a line each.

    It names only what differs from the pair's initial settings, which the terminal uses as well.
    """
    pair, words = comparison.pair, ["python", "-m", "specdemo", "compare", comparison.prompt]
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        words += [f"--{role}", model.name] if model is not None else []
    for chosen, initial in (
        (comparison.settings, initial_settings(pair)),
        (pair.runtime, initial_runtime(pair.target)),
    ):
        for name, value in chosen.model_dump().items():
            flag = name.replace("_", "-")
            if value is None or value == getattr(initial, name):
                continue
            words += [f"--{'no-' * (value is False)}{flag}", *([] if isinstance(value, bool) else [str(value)])]
    earlier = " unless the chat's earlier turns matter" if comparison.history else ""
    places = "where you gave a path or --models-dir, give it again"
    return "\n".join([f"This reproduces it{earlier} ({places}):", *command(words)])


TREES = "Outputs of EAGLE-3 trees are known to differ on CPUs (openvino issue 38079)"


_REMOTE_DIVERGENCE = (
    "If both servers hold the same weights in the same precision, this is rounding: a pass over several tokens runs "
    "different kernels than a pass over one, which decides between two tokens that are almost equally likely."
)
UNCOMPRESSED = ("f32", "f16", "bf16", "F32", "F16", "BF16")
"""Stored weight precisions, in folders and GGUF files, for which activations are not quantized."""
_EXACT = (
    "Activations are not quantized (dynamic quantization is off), so that outputs stay identical. That makes steps "
    "slower: plain ones of SmolLM2 took 1.1 to 1.5 times as long on two cores of an AMD EPYC. Runtime in the Models "
    "tab has the switch."
)
_QUANTIZED_ALIKE = (
    "Activations are quantized in {groups} (dynamic quantization), so that passes over several tokens cost less. "
    "Both outputs are identical all the same."
)
_QUANTIZED = (
    " Since the weights are stored as {weights}, activations are quantized, too, in {groups}, which magnifies such "
    "differences; with --dynamic-quantization off they stay as they are."
)


def walk_through(comparison: Comparison) -> Iterator[str]:
    """Explain the algorithm in a few sentences, illustrated by a round of this run."""
    rounds = comparison.speculative.rounds
    traced = [
        (number, step)
        for number, step in enumerate(rounds, 1)
        if step.proposed and None not in {draft.id for draft in step.proposed}
    ]
    if not traced:
        yield "The proposals of this run are unknown, so no round can serve as an example."
        return
    mixed = [(number, step) for number, step in traced if 0 < step.accepted < len(step.proposed or ())]
    number, step = (mixed or traced)[0]
    drafts, accepted = step.proposed or (), step.accepted
    who = SOURCES[step.source or comparison.settings.strategy.drafter.sources[0]]
    words = ", ".join(_quoted(draft.text) for draft in drafts)
    yield (
        f"Take round {number}. First {who} proposed {len(drafts)} token{'s' * (len(drafts) != 1)}: {words}. "
        "Then the target read all of them in a single pass, which shows what it would have written itself."
    )
    added = "".join(token.text for token in step.committed[accepted:])
    good = (
        f"It accepted {', '.join(_quoted(draft.text) for draft in drafts[:accepted])}"
        if accepted
        else "It accepted none"
    )
    refused = next((draft for draft in drafts if draft.verdict is Outcome.REJECTED), None)
    if refused is not None:
        odds = ""
        if refused.draft_probability is not None and refused.target_probability is not None:
            odds = f" (draft {refused.draft_probability:.2f}, target {refused.target_probability:.2f})"
        rest = len(drafts) - accepted - 1
        after = f" The {rest} after it {'was' if rest == 1 else 'were'} discarded unjudged." if rest else ""
        yield (
            f"{good}, rejected {_quoted(refused.text)}{odds}, and wrote {_quoted(added)}, the correction token, "
            f"instead.{after}"
        )
    elif added:
        yield f"{good}, the whole proposal, and added {_quoted(added)}, the bonus token, which the same pass yields."
    if comparison.settings.do_sample and ENGINES[comparison.settings.engine].samples_exactly:
        yield (
            "When sampling, a proposal x is accepted with probability min(1, p(x) / q(x)), where p is the target's "
            "distribution and q the draft's; a rejected one is replaced by a draw from max(0, p − q), normalized. "
            "The output then follows exactly the target's distribution (Leviathan et al. 2023)."
        )
    yield f"So one target pass committed {len(step.committed)} token{'s' * (len(step.committed) != 1)}."


def _quoted(text: str) -> str:
    return f"“{text.replace(chr(10), '↵')}”"


SAMPLING_CAVEAT = (
    "When sampling with a draft model, openvino-genai 2026.4 does not keep the target's distribution: its acceptance "
    "rule compares the draft's probability with the probability of a different token. The output is biased, not just "
    "different by chance. The traced engine keeps the distribution exactly."
)
