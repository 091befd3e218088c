"""The mathematics of verification, without a model: which proposals survive a target pass."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from specdemo.decoding.sampling import Probabilities, draw
from specdemo.records import Verdict


class Uniform(Protocol):
    """A source of random numbers, such as `numpy.random.Generator`."""

    def random(self) -> float:
        """A number drawn uniformly from [0, 1)."""


class Verified(NamedTuple):
    """How many proposals were accepted, and the target's own token that follows them."""

    accepted: int
    own: int


def rejection_sample(
    proposed: Sequence[int], drafts: Iterable[Probabilities], targets: Iterable[Probabilities], random: Uniform
) -> Verified:
    """Judge sampled proposals so that what is committed has exactly the target's distribution.

    A token x is accepted with probability min(1, p(x) / q(x)); the first that is not is replaced by a draw from
    the normalised max(0, p − q); after the last accepted one comes a draw from p (Leviathan et al. 2023,
    algorithm 1; Chen et al. 2023, algorithm 2).

    Args:
        proposed: n token ids, each drawn from its draft distribution.
        drafts: n distributions q.
        targets: n + 1 distributions p, each given the proposals before it; read only as far as needed.
        random: the source of random numbers.
    """
    remaining = iter(targets)
    for index, (token, q) in enumerate(zip(proposed, drafts, strict=True)):
        p = next(remaining)
        if random.random() * q[token] >= p[token]:
            residual = np.maximum(p - q, 0)
            return Verified(
                index, draw(residual if residual.any() else p, random.random())
            )  # all zero through rounding
    return Verified(len(proposed), draw(next(remaining), random.random()))


def judge(proposed: Sequence[int], committed: Sequence[int], *, ended: bool = False) -> list[Verdict] | None:
    """Verdicts of proposals when the target committed these tokens in the same round.

    The target accepts a prefix of the proposals; the next one is rejected, and those after it are discarded.
    The round then commits one of the target's own tokens, which differs from the rejected one: by
    definition in greedy decoding, and in sampling because max(0, p − q) is 0 where a proposal can be rejected.
    An accepted end-of-text token ends the round without one.

    Args:
        proposed: ids the draft proposed, in order.
        committed: ids the round committed, at least one.
        ended: whether the run ended with this round.

    Returns:
        One verdict per proposal, or None if these proposals cannot have led to these tokens.
    """
    accepted = 0
    while accepted < min(len(proposed), len(committed)) and proposed[accepted] == committed[accepted]:
        accepted += 1
    if accepted == len(committed) and ended:  # an accepted token ended it: what follows was never judged
        return [Verdict.ACCEPTED] * accepted + [Verdict.DISCARDED] * (len(proposed) - accepted)
    if accepted != len(committed) - 1:
        return None
    return verdicts_from_counts(len(proposed), accepted)


def verdicts_from_counts(proposed: int, accepted: int) -> list[Verdict]:
    """Verdicts of a round of which only the counts are known: accepted ones, one rejected, the rest discarded."""
    left = proposed - accepted
    return [Verdict.ACCEPTED] * accepted + [Verdict.REJECTED] * min(left, 1) + [Verdict.DISCARDED] * max(left - 1, 0)
