"""A comparison in plain sentences, for page and terminal alike."""

from typing import Literal

from specdemo import metrics
from specdemo.figures import number, percent
from specdemo.records import Comparison

_SAME = 0.02  # within this of 1× neither side is called faster


def headline(comparison: Comparison) -> str:
    """The outcome in a few words, such as "1.8× faster"."""
    speedup = metrics.speedup(comparison)
    if speedup is None:
        return "Too short to compare"
    words = {"faster": "× faster", "slower": "×: slower", "same": "×: no difference"}
    return f"{speedup:.2f}{words[tone(comparison)]}"


def tone(comparison: Comparison) -> Literal["faster", "slower", "same"]:
    """Which way the outcome goes, for colouring."""
    speedup = metrics.speedup(comparison)
    if speedup is None or abs(speedup - 1) <= _SAME:
        return "same"
    return "faster" if speedup > 1 else "slower"


def reason(comparison: Comparison) -> str:
    """Why: what a round commits against what it costs, and what that cost is made of."""
    length, cost = metrics.mean_accepted_length(comparison.speculative), metrics.round_cost(comparison)
    if length is None or cost is None:
        return "Ask for more tokens to see a difference."
    if tone(comparison) == "slower":
        round_ = f"Because a round takes as long as {cost:.2f} plain steps but commits only {length:.2f} tokens."
    else:
        round_ = f"A round commits {length:.2f} tokens in the time of {cost:.2f} plain steps."
    return " ".join(filter(None, (round_, _makeup(comparison))))


def agreement(comparison: Comparison) -> str:
    """Whether the outputs are identical, and how many tokens were compared."""
    compared = min(len(comparison.plain.token_ids), len(comparison.speculative.token_ids))
    index = metrics.first_divergence(comparison)
    if index is None:
        return f"identical output, {compared} tokens compared"
    return f"outputs differ from token {index + 1} on"


def divergence_reason(comparison: Comparison) -> str:
    """Why the outputs can differ, for these settings; empty if they do not."""
    if metrics.identical(comparison):
        return ""
    if comparison.settings.do_sample and comparison.settings.drafter == "model":
        return SAMPLING_CAVEAT
    if comparison.settings.do_sample:
        return "With sampling each side draws its own random numbers, so the texts may part at any token."
    precision = comparison.environment
    return (
        "Both sides ask the same target, but a pass over several tokens runs other kernels than a pass over one, "
        "and rounds differently. Where two tokens are almost equally likely, that decides. "
        f"Here inference runs in {precision.inference_precision} with a KV cache in {precision.kv_cache_precision}; "
        "in f32 throughout, outputs part less often."
    )


SAMPLING_CAVEAT = (
    "When sampling with a draft model, openvino-genai 2026.4 does not keep the target's distribution: its acceptance "
    "rule compares the draft's probability with that of another token. The text can differ in kind, not only in luck."
)


def _makeup(comparison: Comparison) -> str:
    settings, costs = comparison.settings, comparison.costs
    by_model = settings.drafter == "model"
    parts = []
    rate = metrics.acceptance_rate(comparison.speculative)
    if rate is not None:
        accepted = "of the draft's proposals were" if by_model else "of what prompt lookup proposed was"
        parts.append(f"{percent(rate)} {accepted} accepted")
    if costs is not None and by_model:
        parts.append(f"a draft step takes {number(metrics.draft_cost(costs))} of a target step")
    if costs is not None and settings.policy == "constant":
        tokens = settings.num_assistant_tokens + 1
        parts.append(f"verifying {tokens} tokens in one pass takes {number(metrics.verify_cost(costs, tokens))}")
    sentence = ", ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}." if sentence else ""
