"""The automatic lookahead: as many proposals as pay off, given step costs and how often drafts are accepted.

A round with k proposals, all accepted with probability R, can add m more. That takes m draft steps
and a target pass over k + 1 + m tokens instead of k + 1, and commits R · (a + a² + … + aᵐ) more tokens, where a is
the acceptance of the proposals to come. Time has a price: what recent rounds committed in it, ρ tokens a second, or
plain decoding if that is more. So another proposal pays off where, for some m,

    R · (a + … + aᵐ) > ρ · (m · draft + pass(k + 1 + m) − pass(k + 1))

as in any renewal process that maximizes its reward per unit of time; m above 1 looks past a cliff in the cost of
passes. R is the product of the chances of the proposals so far, each learnt from the draft's own probability and the
verdicts. Everything learnt fades, so that a change in the text is noticed.

It starts from what was learnt in the rounds that timed draft steps. Without any, rounds start short and grow with
each accepted proposal, since a draft can be confident and wrong.

Passes keep their length where a change would cost more than padding does (see `width`), so up to that length another
proposal costs only a draft step.

Where not even a first proposal pays off, rounds are plain, apart from probes of one proposal. A probe that loses time
is followed by enough plain rounds to keep probing a small share of the time.

Clocks are not read while decoding: lookaheads follow from step costs and verdicts alone, and can be reproduced.
The constants were chosen on simulated costs with the bundled draft's proposals, as a compromise between what good
pairs lose until they are trusted and what useless ones lose until they are not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from specdemo.decoding.fading import Chance, FadingMean, log_odds
from specdemo.decoding.width import rising
from specdemo.records import Costs
from specdemo.strategies import Strategy

_TRUSTED = 1  # proposals in a round before any was accepted; each accepted one allows two more
_ROUND_MEMORY = 0.95  # the same for a round's tokens and seconds
_PROBING = 0.015  # share of the time spent on probes
_GROWING = 0.5  # share of a length change's cost that is charged to the proposal causing it
_EVERY = 8  # rounds between recomputations of the prices, which take time


@dataclass(frozen=True)
class Steps:
    """What steps take, in seconds: draft steps, and target passes by length, never falling with length.

    `change`: how much longer a pass takes whose length differs from the one before; `cap`: the most proposals to
    consider.
    """

    draft: float
    first_draft: float
    passes: npt.NDArray[np.float64]
    change: float
    cap: int

    @classmethod
    def of(cls, costs: Costs, cap: int) -> Self:
        """From measured step costs; capped at the longest pass that was measured."""
        assert costs.later_draft_step is not None, "checked when the policy was chosen"
        passes = rising(np.array(costs.verify))
        return cls(
            draft=costs.later_draft_step,
            first_draft=costs.first_draft_step or costs.later_draft_step,
            passes=passes,
            change=costs.length_change or 0.0,
            cap=min(cap, len(passes) - 1),
        )

    @property
    def plain(self) -> float:
        """A plain step."""
        return float(self.passes[0])

    def round(self, proposed: int, fed: int, *, changed: bool) -> float:
        """A round with this many proposals, at least one, whose pass feeds `fed` tokens."""
        drafting = self.first_draft + (proposed - 1) * self.draft
        return float(self.passes[fed - 1]) + self.change * changed + drafting


def seconds_of_more(steps: Steps, fed: int) -> npt.NDArray[np.float64]:
    """What m more proposals than k take, after a pass over `fed` tokens; shape (cap, cap), by k and m - 1."""
    tokens = np.arange(1, steps.cap + 2)
    filled = steps.passes[np.clip(tokens, fed, len(tokens)) - 1]
    filled = filled + _GROWING * steps.change * (tokens > fed)
    passes = np.minimum(filled, steps.passes[: len(tokens)] + steps.change)
    k, m = np.ogrid[: steps.cap, 1 : steps.cap + 1]
    more = np.asarray(passes[np.minimum(k + m, steps.cap)] - passes[k] + m * steps.draft)
    more[0] += steps.first_draft - steps.draft
    more[k + m > steps.cap] = np.inf
    return more


def needed_chances(more: npt.NDArray[np.float64], learnt: "Learnt", plain: float) -> list[float]:
    """For each number of proposals k, how likely they must all be accepted for more to pay off.

    `more` comes from `seconds_of_more`; `plain` is the seconds of a plain step. Above 1: more never pays off.
    """
    gains = (learnt.later.value ** np.arange(len(more))).cumsum()
    needed = (more / gains).min(axis=1) * max(learnt.earned.value, 1 / plain)
    first, *others = needed.tolist()
    return [first / learnt.first.value, *(chance / learnt.later.value for chance in others)]


class Learnt:
    """What verdicts taught: how likely proposals are accepted, and how many tokens rounds earn per second."""

    def __init__(self, plain: float) -> None:
        """`plain`: seconds of a plain step, the initial estimate."""
        self.chance = Chance()
        self.first, self.later = FadingMean(1.4, 2), FadingMean(3.2, 4)
        self.earned = FadingMean(1, plain, _ROUND_MEMORY)
        self.trusted = _TRUSTED

    def verdicts(self, confidences: Sequence[float], proposed: int, accepted: int) -> None:
        """Learn from a round's judged proposals, the accepted and the first after them; confidences are log-odds."""
        for index, confidence in enumerate(confidences[: accepted + 1]):
            self.chance.learn(confidence, index < accepted)
        self.first.add(min(accepted, 1), 1)
        self.later.add_run(max(accepted - 1, 0), failed=0 < accepted < proposed)
        self.trusted += 2 * accepted


class AutoPolicy:
    """A `LookaheadPolicy` for one request."""

    def __init__(self, costs: Costs, cap: int) -> None:
        """A policy that proposes at most `cap` tokens, and no more than the longest measured pass holds."""
        self._steps = Steps.of(costs, cap)
        self._more = [seconds_of_more(self._steps, fed) for fed in range(self._steps.cap + 2)]
        self._learnt = Learnt(self._steps.plain)
        self._fed, self._rounds = 1, 0
        self._probing, self._wait = False, 0.0  # plain rounds until the next probe
        self._reach, self._confidences = 1.0, list[float]()
        self._needed = list[float]()
        self._study(costs)

    def update_strategy(self, strategy: Strategy) -> bool:
        """It chooses by itself."""
        return False

    def _study(self, costs: Costs) -> None:
        """Learn from the rounds that timed draft steps, and price the first proposals."""
        for step in costs.drafted:
            self._confidences = [log_odds(probability) for probability in step.probabilities]
            self.learn(len(self._confidences), step.accepted, len(self._confidences) + 1)
        self._fed, self._rounds = 1, 0
        self._price()
        if costs.drafted and self._needed[0] >= 1:
            self._rest(self._steps.round(1, 2, changed=True) - self._steps.plain)

    def goes_on(self, proposed: int, confidence: Callable[[], float]) -> bool:
        """While another proposal pays off."""
        if not proposed:
            return self._begins()
        if proposed >= min(self._steps.cap, self._learnt.trusted) or self._probing:
            return False
        self._confidences.append(log_odds(confidence()))
        self._reach *= self._learnt.chance.of(self._confidences[-1])
        return self._reach > self._needed[proposed]

    def learn(self, proposed: int, accepted: int, fed: int) -> None:
        """Learn from the proposals that were judged."""
        before, self._fed = self._fed, min(fed, self._steps.cap + 1)
        if not proposed:
            self._wait -= 1
            self._learnt.earned.add(1, self._steps.plain)
            return
        self._learnt.verdicts(self._confidences, proposed, accepted)
        changed = before != self._fed
        seconds = self._steps.round(proposed, self._fed, changed=changed)
        self._learnt.earned.add(accepted + 1, seconds)
        if self._probing:
            self._rest(seconds - (accepted + 1) * self._steps.plain)
        self._rounds += 1
        if changed or self._rounds % _EVERY == 0:
            self._price()

    def _rest(self, lost: float) -> None:
        """Stay plain until a probe that loses this many seconds is a small share of the time."""
        # after a rest the draft has text to read; plain passes are shorter
        lost += self._steps.first_draft + self._steps.change
        self._wait = max(lost, 0) / (_PROBING * self._steps.plain)

    def _begins(self) -> bool:
        """Whether the round proposes anything."""
        self._reach = 1.0
        self._confidences.clear()
        self._probing = self._needed[0] >= 1
        return not self._probing or self._wait <= 0

    def _price(self) -> None:
        self._needed = needed_chances(self._more[self._fed], self._learnt, self._steps.plain)
