"""Sampling: from logits to the next token, independent of models.

Distributions apply, in GenAI's order, repetition penalty, temperature, top-p and top-k. Plain sampling, draft and
target share one function, so speculative sampling keeps exactly the distribution of plain sampling.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specdemo.settings import Sampling

Ids = Sequence[int] | npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]  # shape (vocabulary,), or (tokens, vocabulary)
Probabilities = npt.NDArray[np.float64]  # shape (vocabulary,); sums to 1


def penalised(logits: Logits, seen: Ids, penalty: float) -> Logits:
    """Divide logits of seen tokens by the penalty, once each, or multiply where negative (Keskar et al. 2019)."""
    if penalty == 1 or len(seen) == 0:
        return logits
    result, tokens = logits.copy(), np.asarray(seen, np.int64)
    tokens = tokens[tokens < len(logits)]
    values, factor = result[tokens], np.float32(penalty)
    result[tokens] = np.where(values >= 0, values / factor, values * factor)
    return result


def resize(logits: Logits, vocabulary: int) -> Logits:
    """Return a copy of the logits resized to `vocabulary` tokens; added ones cannot be chosen."""
    missing = vocabulary - len(logits)
    if missing <= 0:
        return logits[:vocabulary].copy()  # `np.pad` takes ten times as long even when there is nothing to add
    return np.pad(logits, (0, missing), constant_values=-np.inf)


def softmax(logits: Logits) -> Probabilities:
    """Return the probabilities at one position, in double precision."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum())


def greatest_probability(logits: Logits, likeliest: int) -> float:
    """Return the likeliest token's probability, in single precision: `softmax` takes ten times as long."""
    weights = logits - logits[likeliest]
    return float(1 / np.exp(weights, out=weights).sum())


def distribution(logits: Logits, sampling: Sampling, seen: Ids) -> Probabilities:
    scores = penalised(logits, seen, sampling.repetition_penalty)
    if not sampling.do_sample:
        return softmax(scores)
    probabilities = softmax(scores / np.float32(sampling.temperature))
    likeliest = likeliest_tokens(probabilities, sampling.top_p, sampling.top_k)
    if likeliest is not None:
        truncated = np.zeros_like(probabilities)
        truncated[likeliest] = probabilities[likeliest]
        probabilities = truncated / truncated.sum()
    return probabilities


def greedy_choice(logits: Logits, sampling: Sampling, seen: Ids) -> int:
    return int(penalised(logits, seen, sampling.repetition_penalty).argmax())


def likeliest_tokens(probabilities: Probabilities, top_p: float, top_k: int) -> npt.NDArray[np.intp] | None:
    """Return the fewest likeliest tokens that together reach top_p, at most top_k; None for all."""
    size = len(probabilities)
    limit = min(top_k or size, size)
    if top_p >= 1 and limit == size:
        return None
    likeliest = np.argpartition(-probabilities, limit - 1)[:limit]
    order = likeliest[np.argsort(-probabilities[likeliest], kind="stable")]
    below = np.cumsum(probabilities[order]) < top_p
    return order[: int(below.sum()) + 1] if top_p < 1 else order


def draw(probabilities: Probabilities, uniform: float) -> int:
    cumulative = np.cumsum(probabilities)
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(token, int(np.flatnonzero(probabilities)[-1]))  # rounding must not reach a token of probability 0


def entropy(probabilities: Probabilities) -> float:
    """Return the Shannon entropy in bits."""
    positive = probabilities[probabilities > 0]
    return float(max(-(positive * np.log2(positive)).sum(), 0.0))


class Uniform(Protocol):
    """A source of uniform random numbers, such as `numpy.random.Generator`."""

    def random(self) -> float: ...
