"""Which of two sources proposes in a round: prompt lookup, which costs nothing, or the draft.

Whether copied tokens are accepted depends on how many of the last tokens were seen before: after one, seldom; after
three, often; and once the first is accepted, the others mostly are. That is learnt in every round, whichever source
proposed, since the committed tokens show what a copy would have been worth. The draft's worth is what its own rounds
earned, in tokens per second of the measured step costs. A copy is proposed where it is expected to earn more:

    (1 + f + f·a + … + f·aᵏ⁻¹) / pass(k + 1) > tokens / seconds of the draft's rounds, and of plain ones

for the best k up to the number of tokens found, where f is the chance that the first is accepted and a that of each
after it. Where copies are of no use, every round is the draft's, as without them. Where the draft's rounds earn less
than plain decoding, it rests: rounds are plain, apart from copies and from probes, each followed by enough plain
rounds to keep what probes lose a small share of the time. Everything learnt fades, so that a change in the text is
noticed.
"""

from collections.abc import Sequence

import numpy as np

from specdemo.decoding.auto import Steps
from specdemo.decoding.fading import FadingMean
from specdemo.decoding.indexes import Match
from specdemo.records import Costs

_FIRST = (0.15, 0.35, 0.55)
"""The chance that a copy's first token is accepted after so many tokens seen before, until verdicts are known."""
_LATER = 0.8
_WEIGHT = 3.0  # of these, in verdicts
_DRAFT_GAIN = 1.5  # the draft's rounds against plain decoding, before there was one
_ROUND_MEMORY = 0.95
_PROBING = 0.03  # share of the time that probes may lose


class Sources:
    """What both sources are worth in one request."""

    def __init__(self, costs: Costs, *, resting: bool = True) -> None:
        """Copies hold no more tokens than the longest measured pass. Without `resting`, the draft never rests."""
        self._resting, self._wait = resting, 0.0  # plain rounds until the next probe
        self._steps = Steps.of(costs, cap=len(costs.verify))
        self._first = [FadingMean(_WEIGHT * chance, _WEIGHT) for chance in _FIRST]
        self._later = FadingMean(_WEIGHT * _LATER, _WEIGHT)
        self._earned = FadingMean(_DRAFT_GAIN, self._steps.plain, _ROUND_MEMORY)

    @property
    def cap(self) -> int:
        """The most tokens of a copy."""
        return self._steps.cap

    def copied(self, found: Match) -> int:
        """How many of the found tokens to propose; 0: the draft proposes."""
        most = min(len(found.tokens), self.cap)
        if not most:
            return 0
        first, later = self._chance(found.size).value, self._later.value
        gains = 1 + first * (later ** np.arange(most)).cumsum()
        rates = gains / self._steps.passes[1 : most + 1]
        best = int(rates.argmax())
        return best + 1 if rates[best] > max(self._earned.value, 1 / self._steps.plain) else 0

    def rests(self) -> bool:
        """Whether the draft rests in this round, so that it is plain."""
        if not self._losing or self._wait <= 0:
            return False
        self._wait -= 1
        return True

    @property
    def _losing(self) -> bool:
        return self._resting and self._earned.value * self._steps.plain < 1

    def copy_judged(self, found: Match, committed: Sequence[int]) -> None:
        """Learn from what a round committed, where these tokens had been found, proposed or not."""
        right = 0
        while right < min(len(found.tokens), len(committed)) and found.tokens[right] == committed[right]:
            right += 1
        if not found.tokens:
            return
        self._chance(found.size).add(min(right, 1), 1)
        self._later.add_run(max(right - 1, 0), failed=0 < right < min(len(found.tokens), len(committed)))

    def drafted(self, proposed: int, accepted: int, fed: int) -> None:
        """Learn from a round of the draft's; without proposals it was plain."""
        if not proposed:
            self._earned.add(1, self._steps.plain)
            return
        length = min(max(fed, proposed + 1), len(self._steps.passes))
        seconds = self._steps.round(proposed, length, changed=False)
        if self._losing:
            self._wait = (seconds / self._steps.plain - (accepted + 1)) / _PROBING
        self._earned.add(accepted + 1, seconds)

    def _chance(self, size: int) -> FadingMean:
        return self._first[min(size, len(self._first)) - 1]
