"""How many tokens target passes feed, where a change of length from one pass to the next costs time.

OpenVINO prepares every operation anew for a pass whose length differs from the one before: on a CPU that can take
a third of a small model's step or more. A round that proposes less than the one before can therefore be padded to the
same length with tokens that do not count.
"""

import numpy as np

from specdemo.records import Costs


class Width:
    """Lengths of the passes of one request, one after the other.

    They grow at once. They shrink once the padding since the last full pass has cost as much as a change (the
    ski-rental rule), to the longest length needed since then.
    """

    def __init__(self, costs: Costs | None) -> None:
        """Without costs, or where a change costs nothing, every pass feeds exactly what is needed."""
        self._passes = rising(np.array(costs.verify)) if costs is not None else np.zeros(0)
        self._change = costs.length_change or 0.0 if costs is not None else 0.0
        self._width = self._most = 0
        self._wasted = 0.0

    def of(self, needed: int) -> int:
        """How many tokens the next pass feeds, given how many it needs."""
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
    """Seconds of passes, made non-decreasing in their length.

    A shorter pass could be padded to a longer one, and other load on the machine only adds to a measurement.
    """
    return np.minimum.accumulate(passes[::-1])[::-1]
