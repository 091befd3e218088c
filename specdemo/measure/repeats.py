"""A race, repeated unwatched: how much its speedup varies.

A single run of a third of a second is not a measurement: within minutes, the same prompt gave 3.5×, 2.3× and 2.3×.
"""

from collections.abc import Callable, Iterator
from time import perf_counter

from specdemo.analysis import metrics
from specdemo.analysis.intervals import ENOUGH
from specdemo.engines.base import Engine
from specdemo.measure.trials import trials
from specdemo.records import Comparison, Costs

REPEAT_SECONDS = 2.0
"""What repeats may take where their number is not given; a slow pair takes longer, for enough of an interval."""
MOST_SECONDS = 15.0
MOST = 20  # more hardly narrow the interval


def repeats(
    engine: Engine,
    comparison: Comparison,
    *,
    number: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Comparison]:
    """Repeat a finished race, speculative and plain runs in turns; yield the comparison with each further repeat.

    `number` of them, or as many as `REPEAT_SECONDS` allow, or as many as an interval needs if they fit into
    `MOST_SECONDS`; none if not even one does, the race was stopped, or a setting moved in it. Once `stop` returns
    True, the unfinished repeat is dropped.

    Raises:
        SpecdemoError: the engine failed.
    """
    if comparison.moves:  # there is no single setting to repeat
        return
    sides = comparison.plain, comparison.speculative
    if any(run.finish_reason == "cancelled" for run in sides) or not all(run.rounds for run in sides):
        return
    plain, speculative = (run.prefill.seconds + metrics.decode_seconds(run) for run in sides)
    if number is None and 2 * plain + speculative > MOST_SECONDS:
        return
    enough = min(plain + ENOUGH * (plain + speculative), MOST_SECONDS)
    until = None if number is not None else perf_counter() + max(REPEAT_SECONDS, enough)
    settings = [comparison.settings] * (MOST if number is None else number)
    costs: Costs | None = comparison.costs
    for trial in trials(engine, comparison.prompt, settings, costs, stop, comparison.history):
        if trial is None:
            return
        comparison = comparison.model_copy(update={"repeats": (*comparison.repeats, trial)})
        yield comparison
        if until is not None and perf_counter() + plain + speculative > until:
            return
