"""The expected speedup for assumed acceptance and step costs, and what a run's own were."""

from typing import NamedTuple, Self

from specdemo.records import Comparison, Costs
from specdemo.results import estimate, metrics

_MAX_LOOKAHEAD = 16


class Assumptions(NamedTuple):
    """`acceptance`: of a proposal after accepted ones. In plain steps: `draft_step`, and what each token more adds to
    a pass of the target, so v(n) = 1 + `slope` · (n − 1).
    """

    acceptance: float = 0.7
    draft_step: float = 0.2
    slope: float = 0.05

    @property
    def speedups(self) -> tuple[float, ...]:
        lookaheads = range(_MAX_LOOKAHEAD + 1)
        drafting = tuple(self.draft_step * lookahead for lookahead in lookaheads)
        verify = tuple(1 + self.slope * lookahead for lookahead in lookaheads)
        return metrics.expected_speedups(Costs(drafting=drafting, verify=verify), self.acceptance)


class RunValues(NamedTuple):
    values: Assumptions
    lookahead: float  # mean of the rounds
    speedup: estimate.Speedup

    @classmethod
    def of(cls, comparison: Comparison) -> Self | None:
        """None without known proposals or costs."""
        run, speedup = comparison.speculative, estimate.of_comparison(comparison)
        acceptance = metrics.judged_acceptance(run)
        if acceptance is None or speedup is None:
            return None
        lookahead = sum(len(step.proposed or ()) for step in run.rounds) / len(run.rounds)
        costs = metrics.round_costs(comparison, speedup.plain_steps_per_round)
        if costs is None or costs.verify is None:
            return None
        values = Assumptions(acceptance, costs.draft_step or 0.0, max(costs.verify - 1, 0.0) / lookahead)
        return cls(values, lookahead, speedup)
