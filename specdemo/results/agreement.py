"""Whether both sides wrote the same text and, if not, why."""

import math

from specdemo.capabilities import ENGINES, engine_that
from specdemo.errors import capitalised
from specdemo.records import Comparison, Divergence
from specdemo.results import metrics
from specdemo.text import counted

UNCOMPRESSED = ("f32", "f16", "bf16", "F32", "F16", "BF16")  # stored weights whose activations are not quantized
_ROUNDING = (
    "a pass over several tokens runs other kernels than a pass over one and rounds differently, which decides "
    "between two tokens that are almost equally likely."
)


def agreement(comparison: Comparison) -> str:
    if not comparison.both_ran:
        return "one side only"
    index = metrics.first_divergence(comparison)
    if index is not None:
        drawn = ", as random draws do" if comparison.settings.do_sample else ""
        return f"outputs differ from token {index + 1} on{drawn}"
    compared = min(len(comparison.plain.tokens), len(comparison.speculative.tokens))
    return f"identical output, {counted(compared, 'token')} compared"


def divergence_reason(comparison: Comparison) -> str:
    """Empty if outputs are identical, or a fault explains the difference."""
    settings, divergence = comparison.settings, comparison.divergence
    if metrics.identical(comparison) or fault(comparison):
        return ""
    if settings.do_sample and settings.strategy.drafter.model and ENGINES[settings.engine].samples_exactly is False:
        return sampling_caveat()
    if settings.do_sample:
        drawn = "When sampling, each side draws its own random numbers, so the texts can diverge at any token."
        same = ENGINES[settings.engine].local  # nothing is known of a server
        return f"{drawn} Both are drawn from the same distribution." if same else drawn
    if not ENGINES[settings.engine].local:
        return f"If both servers hold the same weights in the same precision, this is rounding: {_ROUNDING}"
    if divergence is not None:
        return f"{_candidates(divergence)} This is a harmless near-tie, which rounding decides. {_remedy(comparison)}"
    return f"Both sides use the same target, but {_ROUNDING} {_remedy(comparison)}"


def sampling_caveat() -> str:
    exact = capitalised(engine_that(lambda engine: engine.samples_exactly is True))
    return (
        "When sampling with a draft model, openvino-genai 2026.4 does not keep the target's distribution: its "
        "acceptance rule compares the draft's probability with the probability of a different token. The output is "
        f"biased, not just different by chance. {exact} keeps the distribution exactly."
    )


def fault(comparison: Comparison) -> str:
    """Describe a difference between outputs that is larger than the measured rounding; empty if there is none."""
    divergence, settings = comparison.divergence, comparison.settings
    if divergence is None or divergence.near_tie or settings.do_sample or not ENGINES[settings.engine].local:
        return ""
    return (
        f"{_candidates(divergence)} The difference is larger than the rounding measured on the tokens just before. "
        "If it persists in f32, engine or model may be at fault; the run's JSON file holds all that a report needs."
    )


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
    quantized = weights not in UNCOMPRESSED and used.dynamic_quantization.startswith("groups")
    if not quantized and {used.inference_precision, used.kv_cache_precision} == {"f32"}:
        return "Inference and KV cache already use f32, so no other precision avoids it."
    return (
        f"Inference runs in {used.inference_precision} with a KV cache in {used.kv_cache_precision}; with "
        "--precision f32 --kv-cache-precision f32 --dynamic-quantization off, outputs diverge less often."
    )
