"""The speedup of each lookahead, predicted from step costs and acceptance. Not a measurement: label it so.

A round at lookahead γ takes γ draft steps and one target pass over γ + 1 tokens, and commits τ tokens, so that the
speedup is τ / (γc + v(γ + 1)). The textbook sets v = 1 (Leviathan et al. 2023, theorem 3.8), as if verifying
several tokens cost no more than one; since they cost more, the best lookahead is shorter than the textbook's.
"""

from collections.abc import Sequence
from functools import partial

from specdemo.analysis import metrics
from specdemo.records import Costs, Record
from specdemo.ways import Drafter

FORMULAS = {
    "expected_length": "(1 − α^(γ+1)) / (1 − α)",
    "predicted_speedup": "τ / (γc + v(γ+1))",
}


class Prediction(Record):
    """The speedup predicted for lookaheads 1, 2, …: with measured verification costs, and by the textbook."""

    predicted: tuple[float, ...]
    textbook: tuple[float, ...]

    @property
    def best(self) -> int:
        """The lookahead with the highest prediction; 0 where none is above 1 and plain decoding is best."""
        return _best(self.predicted)

    @property
    def textbook_best(self) -> int:
        """The same by the textbook."""
        return _best(self.textbook)


def expected_length(acceptance: float, lookahead: int) -> float:
    """τ of a round if each proposal is accepted with the same probability α, independently of the others.

    (1 − α^(γ+1)) / (1 − α), Leviathan et al. 2023, equation 1.
    """
    return sum(acceptance**i for i in range(lookahead + 1))


def predict(costs: Costs, acceptance: float, drafter: Drafter = "model") -> Prediction | None:
    """Speedups with acceptance α at every lookahead whose verification was measured.

    None where the draft's cost is unknown. Prompt lookup proposes at no cost; the prediction then assumes that it
    finds something in every round.
    """
    cost = 0.0 if drafter == "lookup" else metrics.draft_cost(costs)
    if cost is None:
        return None
    length = partial(expected_length, acceptance)
    lookaheads = range(1, len(costs.verify))
    verify = [passes / costs.verify[0] for passes in costs.verify]
    return Prediction(
        predicted=tuple(length(n) / (n * cost + verify[n]) for n in lookaheads),
        textbook=tuple(length(n) / (n * cost + 1) for n in lookaheads),
    )


def _best(speedups: Sequence[float]) -> int:
    lookahead, speedup = max(enumerate(speedups, 1), key=lambda pair: pair[1], default=(0, 0.0))
    return lookahead if speedup > 1 else 0
