"""Distributions over the next token, as `Sampling` shapes them, and drawing from them.

The steps and their order are GenAI's: repetition penalty, temperature, top-p, top-k. Plain sampling, the draft
and the target share this one function, so that speculative sampling can keep exactly the distribution of plain
sampling.
"""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from specdemo.settings import Sampling

Logits = npt.NDArray[np.float32]
"""Shape (vocabulary,), or (tokens, vocabulary)."""

Probabilities = npt.NDArray[np.float64]
"""Shape (vocabulary,); sums to 1."""


def penalised(logits: Logits, seen: Collection[int], penalty: float) -> Logits:
    """Logits with those of seen tokens divided by the penalty, or multiplied where negative (Keskar et al. 2019)."""
    if penalty == 1 or not seen:
        return logits
    result = logits.copy()
    ids = np.fromiter((token for token in seen if token < len(logits)), np.int64)
    values, factor = result[ids], np.float32(penalty)
    result[ids] = np.where(values >= 0, values / factor, values * factor)
    return result


def resized(logits: Logits, vocabulary: int) -> Logits:
    """A copy of the logits resized to `vocabulary` tokens; added ones cannot be chosen."""
    missing = vocabulary - len(logits)
    if missing <= 0:
        return logits[:vocabulary].copy()  # `np.pad` takes ten times as long even when there is nothing to add
    return np.pad(logits, (0, missing), constant_values=-np.inf)


def softmax(logits: Logits) -> Probabilities:
    """Probabilities of one position, in double precision."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum())


def greatest_probability(logits: Logits, likeliest: int) -> float:
    """Probability of the likeliest token, in single precision: `softmax` takes ten times as long."""
    weights = logits - logits[likeliest]
    return float(1 / np.exp(weights, out=weights).sum())


def distribution(logits: Logits, sampling: Sampling, seen: Collection[int]) -> Probabilities:
    """What the next token is drawn from; in greedy decoding, the distribution whose likeliest token is chosen."""
    scores = penalised(logits, seen, sampling.repetition_penalty)
    if not sampling.do_sample:
        return softmax(scores)
    probabilities = softmax(scores / np.float32(sampling.temperature))
    kept = _most_likely(probabilities, sampling.top_p, sampling.top_k)
    if kept is not None:
        cut = np.zeros_like(probabilities)
        cut[kept] = probabilities[kept]
        probabilities = cut / cut.sum()
    return probabilities


def greedy_choice(logits: Logits, sampling: Sampling, seen: Collection[int]) -> int:
    """The likeliest token."""
    return int(penalised(logits, seen, sampling.repetition_penalty).argmax())


def _most_likely(probabilities: Probabilities, top_p: float, top_k: int) -> npt.NDArray[np.intp] | None:
    """The fewest most likely tokens that together reach top_p, at most top_k of them; None: all."""
    size = len(probabilities)
    limit = min(top_k or size, size)
    if top_p >= 1 and limit == size:
        return None
    likeliest = np.argpartition(-probabilities, limit - 1)[:limit]
    order = likeliest[np.argsort(-probabilities[likeliest], kind="stable")]
    below = np.cumsum(probabilities[order]) < top_p
    return order[: int(below.sum()) + 1] if top_p < 1 else order


def draw(probabilities: Probabilities, uniform: float) -> int:
    """The token at this quantile of the distribution; `uniform` is drawn from [0, 1)."""
    cumulative = np.cumsum(probabilities)
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(token, int(np.flatnonzero(probabilities)[-1]))  # rounding must not reach a token of probability 0


def entropy(probabilities: Probabilities) -> float:
    """Shannon entropy in bits."""
    positive = probabilities[probabilities > 0]
    return float(max(-(positive * np.log2(positive)).sum(), 0.0))
