"""The mathematics of verification, without a model: which proposals survive a target pass."""

from collections.abc import Sequence

from specdemo.records import Verdict


def greedy_verdicts(
    proposed: Sequence[int], committed: Sequence[int], *, ended: bool = False
) -> list[Verdict] | None:
    """Verdicts of proposals when the target committed these tokens in the same round.

    In greedy decoding the target accepts proposals as long as each equals its own choice; the first that
    differs is rejected, and those after it are discarded. The round then commits one token of the target's
    own, unless an accepted end-of-text token ended it.

    Args:
        proposed: ids the draft proposed, in order.
        committed: ids the round committed, at least one.
        ended: whether the run ended with this round.

    Returns:
        One verdict a proposal, or None where these proposals cannot have led to these tokens.
    """
    accepted = 0
    while accepted < min(len(proposed), len(committed)) and proposed[accepted] == committed[accepted]:
        accepted += 1
    if accepted == len(committed) and ended:  # by an accepted token: what follows it was never judged
        return [Verdict.ACCEPTED] * accepted + [Verdict.DISCARDED] * (len(proposed) - accepted)
    if accepted != len(committed) - 1:
        return None
    return verdicts_from_counts(len(proposed), accepted)


def verdicts_from_counts(proposed: int, accepted: int) -> list[Verdict]:
    """Verdicts of a round of which only the numbers are known: accepted ones, one rejected, the rest discarded."""
    left = proposed - accepted
    return [Verdict.ACCEPTED] * accepted + [Verdict.REJECTED] * min(left, 1) + [Verdict.DISCARDED] * max(left - 1, 0)
