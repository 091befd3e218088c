"""Step costs, how far they are off, and padded query lengths where a shape change costs time.

OpenVINO prepares every operation anew for a pass whose length differs from the previous one: on a CPU that can take a
third of a small model's step or more. A round that proposes fewer tokens can therefore be padded to the same length.
"""

from dataclasses import dataclass
from math import exp, log
from typing import Self

import numpy as np
import numpy.typing as npt

from specdemo.records import Costs

_GROWING = 0.5  # share of a length change's cost charged to the proposal that causes it
_OUTLIER = 2.0  # measured seconds are clipped to within this factor of the expected ones
# in logarithms of seconds: the noise of a measurement; how far step costs are off at first, and move from one to the
# next: of the whole machine, and of passes over several tokens and draft steps, both relative to plain passes
_NOISE, _OFF, _MOVE = 0.1, (0.3, 0.1, 0.15), (0.01, 0.001, 0.003)


@dataclass(frozen=True)
class Steps:
    """Seconds of draft steps, and of target passes by length, non-decreasing.

    `change` is the extra time of a pass whose length differs from the previous one; `cap` the maximum proposals
    considered.
    """

    draft: float
    first_draft: float
    passes: npt.NDArray[np.float64]
    change: float
    cap: int

    @classmethod
    def of(cls, costs: Costs, cap: int) -> Self:
        """Create from measured step costs, capped at the longest measured pass."""
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
        """Seconds of a plain step."""
        return float(self.passes[0])

    def drafting(self, proposed: int) -> float:
        """Return the seconds of the draft steps of a round with so many proposals."""
        return self.first_draft + (proposed - 1) * self.draft if proposed else 0.0

    def passing(self, query_length: int, *, changed: bool) -> float:
        """Return the seconds of a pass that feeds `query_length` tokens, `changed` since the one before."""
        return float(self.passes[query_length - 1]) + self.change * changed


def seconds_of_passes(steps: Steps, query_length: int) -> npt.NDArray[np.float64]:
    """Return the seconds of passes over 1 to cap + 1 tokens after one over `query_length`, padded or not."""
    tokens = np.arange(1, steps.cap + 2)
    filled = steps.passes[np.clip(tokens, query_length, len(tokens)) - 1]
    filled = filled + _GROWING * steps.change * (tokens > query_length)
    return np.minimum(filled, steps.passes[: len(tokens)] + steps.change)


def seconds_of_more(steps: Steps, passes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the extra seconds of m proposals after k, given those of passes; shape (cap, cap), by k and m - 1."""
    k, m = np.ogrid[: steps.cap, 1 : steps.cap + 1]
    more = np.asarray(passes[np.minimum(k + m, steps.cap)] - passes[k] + m * steps.draft)
    more[0] += steps.first_draft - steps.draft
    more[k + m > steps.cap] = np.inf
    return more


class CostDrift:
    """How far step costs are off, learnt from measured rounds: for the whole machine, longer passes, and the draft.

    "Longer" are passes over several tokens; these and draft steps are relative to plain passes. A deviation is
    divided between the whole machine and its kind of step by how far either may be off (a Kalman filter of
    logarithms), so a machine that slows down as a whole is recognised without plain passes.
    """

    def __init__(self) -> None:
        self.means = [0.0, 0.0, 0.0]  # the whole machine, longer passes, the draft
        self.covariances = [[off**2 * (i == j) for j in range(3)] for i, off in enumerate(_OFF)]

    @property
    def machine(self) -> float:
        """Factor of all seconds."""
        return exp(self.means[0])

    @property
    def longer(self) -> float:
        """Factor of passes over several tokens, relative to plain ones."""
        return exp(self.means[1])

    @property
    def draft(self) -> float:
        """Factor of draft steps, relative to plain passes."""
        return exp(self.means[2])

    @property
    def doubt(self) -> float:
        """Factor by which passes over several tokens may cost less or more, relative to plain ones."""
        return exp(2 * self.covariances[1][1] ** 0.5)

    def passed(self, ratio: float, *, longer: bool) -> None:
        """Learn from a pass, over several tokens if `longer`."""
        self._observe(ratio, (0, 1) if longer else (0,))

    def drafted(self, ratio: float) -> None:
        """Learn from a round's draft steps."""
        self._observe(ratio, (0, 2))

    def _observe(self, ratio: float, seen: tuple[int, ...]) -> None:
        """Learn from measured / expected seconds that depend on the means in `seen`."""
        for i in seen:
            self.covariances[i][i] += _MOVE[i] ** 2
        column = [sum(row[j] for j in seen) for row in self.covariances]
        error = log(min(max(ratio, 1 / _OUTLIER), _OUTLIER)) - sum(self.means[j] for j in seen)
        total = sum(column[j] for j in seen) + _NOISE**2
        for i in range(3):
            self.means[i] += column[i] * error / total
            for j in range(3):
                self.covariances[i][j] -= column[i] * column[j] / total


class QueryLength:
    """Padded lengths of a request's consecutive passes.

    They grow at once. They shrink once the padding since the last full pass has cost as much as a shape change (the
    ski-rental rule), to the longest length needed since then.
    """

    def __init__(self, costs: Costs | None) -> None:
        """Without costs, or if a change costs nothing, never pad."""
        self._passes = rising(np.array(costs.verify)) if costs is not None else np.zeros(0)
        self._change = costs.length_change or 0.0 if costs is not None else 0.0
        self._width = self._most = 0
        self._wasted = 0.0

    def of(self, needed: int) -> int:
        """Return how many tokens the next pass feeds, given how many it needs."""
        if needed >= self._width or self._width > len(self._passes):
            self._set(needed)
        else:
            self._most = max(self._most, needed)
            self._wasted += float(self._passes[self._width - 1] - self._passes[needed - 1])
            if self._wasted >= self._change:
                self._set(self._most)
        return self._width

    def _set(self, width: int) -> None:
        self._width, self._most, self._wasted = width, 0, 0.0


def rising(passes: np.ndarray) -> np.ndarray:
    """Return the seconds of passes, made non-decreasing in length.

    A shorter pass could be padded to a longer one, and other load on the machine only adds to a measurement.
    """
    return np.minimum.accumulate(passes[::-1])[::-1]
