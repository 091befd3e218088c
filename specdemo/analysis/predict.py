"""The speedup of each lookahead, predicted from step costs and acceptance. Not a measurement: label it so.

A round at lookahead γ takes γ draft steps, of cost d(γ), and one target pass over γ + 1 tokens, and commits τ tokens,
so the speedup is τ / (d(γ) + v(γ + 1)). The textbook sets d(γ) = γc and v = 1 (Leviathan et al. 2023, theorem 3.8),
as if verifying several tokens cost no more than one, and a round's first draft step no more than the later ones.
Since they cost more, the best lookahead is shorter than the textbook's.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from specdemo.analysis import metrics
from specdemo.records import Costs, Record

_HALVINGS = 10


class Prediction(Record):
    """Speedups predicted for lookaheads 1, 2, …: with measured verification costs, and by the textbook."""

    predicted: tuple[float, ...]
    textbook: tuple[float, ...]

    @property
    def best(self) -> int:
        """Lookahead with the highest prediction; 0 if none is above 1 and plain decoding is best."""
        return _best(self.predicted)

    @property
    def textbook_best(self) -> int:
        """The best lookahead by the textbook."""
        return _best(self.textbook)


class WhatIf(NamedTuple):
    """What-if step costs, as factors of a draft step and of the extra cost of more than one token.

    `growth` multiplies v(n) − 1. If plain steps are limited by memory, and the cost of more tokens is arithmetic, a
    machine with twice the bandwidth halves plain and draft steps alike but not the rest: c stays, and v(n) − 1
    doubles.
    """

    draft: float = 1.0
    growth: float = 1.0

    def of(self, costs: Costs) -> Costs:
        """Return the costs with these factors applied."""
        plain = costs.plain_step
        return Costs(
            plain_step=plain,
            draft_step=costs.draft_step and costs.draft_step * self.draft,
            first_draft_step=costs.first_draft_step and costs.first_draft_step * self.draft,
            # noise can make a pass over several tokens look faster than one over a single token; keep it positive
            verify=tuple(max(plain + (passes - plain) * self.growth, 0.1 * plain) for passes in costs.verify),
        )


AS_MEASURED = WhatIf()
WHAT_IFS = {
    "As measured": AS_MEASURED,
    "A draft twice as fast": WhatIf(draft=0.5),
    "Twice the memory bandwidth": WhatIf(growth=2.0),
}
"""Scenarios by name."""


def expected_length(acceptance: float, lookahead: int) -> float:
    """Return τ of a round if each proposal is accepted independently with probability α.

    (1 − α^(γ+1)) / (1 − α), Leviathan et al. 2023, equation 1.
    """
    return sum(acceptance**i for i in range(lookahead + 1))


def predict(costs: Costs, acceptance: float, *, free: bool = False) -> Prediction | None:
    """Predict speedups with acceptance α at every lookahead whose verification was measured.

    None if the draft's cost is unknown. `free`: proposals cost nothing, as those of prompt lookup; the prediction
    assumes some in every round.
    """
    cost = 0.0 if free else metrics.draft_cost(costs)
    if cost is None:
        return None
    length = partial(expected_length, acceptance)
    lookaheads = range(1, len(costs.verify))
    rounds = (metrics.round_cost(costs, n, free=free) for n in lookaheads)
    return Prediction(
        predicted=tuple(length(n) / each for n, each in enumerate(rounds, 1) if each is not None),
        textbook=tuple(length(n) / (n * cost + 1) for n in lookaheads),
    )


def ceiling(costs: Costs, *, free: bool = False) -> tuple[float, int] | None:
    """Return the speedup of a perfect draft, whose every proposal is accepted, and its best lookahead.

    None if the draft's cost is unknown. Passes measured as faster than one over a single token count as equal to it.
    """
    least = costs.verify[0]
    possible = costs.model_copy(update={"verify": tuple(max(least, seconds) for seconds in costs.verify)})
    found = predict(possible, 1.0, free=free)
    if found is None or not found.predicted:
        return None
    lookahead, speedup = max(enumerate(found.predicted, 1), key=lambda pair: pair[1])
    return speedup, lookahead


def break_even(costs: Costs, *, free: bool = False) -> tuple[float | None, ...]:
    """Return the acceptance α from which each lookahead is predicted to gain; None if it cannot even at α = 1.

    Empty if the draft's cost is unknown. The prediction grows with α, so bisection finds it.
    """
    found: list[float | None] = []
    most = predict(costs, 1.0, free=free)
    for index, best in enumerate(most.predicted if most is not None else ()):
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            prediction = predict(costs, middle, free=free)
            assert prediction is not None, "the draft's cost is the same"
            low, high = (low, middle) if prediction.predicted[index] > 1 else (middle, high)
        found.append(high if best > 1 else None)
    return tuple(found)


def _best(speedups: Sequence[float]) -> int:
    lookahead, speedup = max(enumerate(speedups, 1), key=lambda pair: pair[1], default=(0, 0.0))
    return lookahead if speedup > 1 else 0
