"""The oracle: the fewest passes that could have decoded a text, knowing in advance where the draft is right."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Passes:
    """The passes of target and draft that a choice of lookaheads takes to decode a text."""

    lookaheads: tuple[int, ...]

    @property
    def target(self) -> int:
        """Target passes, one per round."""
        return len(self.lookaheads)

    @property
    def draft(self) -> int:
        """Draft passes, one per proposed token."""
        return sum(self.lookaheads)


def passes(agrees: Sequence[bool], lookahead: int | None, room: int) -> Passes:
    """The rounds that decode a text, given for each token whether the draft would have proposed it.

    `agrees[i]` is about the token after i decoded ones, given the text before it; `room` is how many tokens were
    allowed, some of them perhaps unused after an end-of-text token. With a `lookahead` the rounds are those of a
    constant one; without (None), those of the oracle: every round ends just before the draft's first mismatch, so no
    proposal is rejected and no pass verifies fewer tokens than it could. In greedy decoding both are exact, since
    everything a draft proposes before its first mismatch is committed text.
    """
    lookaheads: list[int] = []
    position, right = 0, runs(agrees)
    while position < len(agrees):
        most = max(room - position - 1, 0)
        limit = most if lookahead is None else min(most, lookahead)
        accepted = min(right[position], limit)
        lookaheads.append(accepted if lookahead is None else limit)
        position += accepted + 1
    return Passes(tuple(lookaheads))


def runs(agrees: Sequence[bool]) -> list[int]:
    """For each token, how many the draft would have proposed rightly from it on."""
    lengths = [0]
    for right in reversed(agrees):
        lengths.append(lengths[-1] + 1 if right else 0)
    return lengths[:0:-1]
