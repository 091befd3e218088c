"""What a step costs, measured apart from any run, and the speedup that follows from it.

A pass over n tokens reads the weights once, as a pass over one does; it costs more only once arithmetic, not
memory, is the limit. So v(n) grows slowly at first and then faster, with cliffs where another kernel takes
over. Together with the draft's cost c it decides whether speculation can pay.
"""

from collections.abc import Callable
from contextlib import closing
from itertools import islice
from statistics import median

from specdemo.compare import WARM_UP_PROMPT
from specdemo.engines.base import Engine
from specdemo.errors import PromptError
from specdemo.records import Costs

MAX_LOOKAHEAD = 16
_WARM_UP = 2
_PASSES = 8
_FEWEST = 3
_SECONDS = 0.1


def measure_costs(engine: Engine, *, stop: Callable[[], bool] = lambda: False) -> Costs | None:
    """Measure plain, draft and verification steps; None if stopped, or if the model's context is too short for it.

    Passes over 2 to 17 tokens are measured up and down again, plain steps before, between and after, so that a
    machine that grows faster or slower meanwhile favours neither.
    """
    try:
        return _measure(engine, stop)
    except PromptError:
        return None


def _measure(engine: Engine, stop: Callable[[], bool]) -> Costs | None:
    plain = _seconds(engine, 1)
    verify: dict[int, list[float]] = {tokens: [] for tokens in range(2, MAX_LOOKAHEAD + 2)}
    for order in (list(verify), list(reversed(verify))):
        for tokens in order:
            if stop():
                return None
            verify[tokens] += _seconds(engine, tokens)
        plain += _seconds(engine, 1)
    return Costs(
        plain_step=median(plain),
        draft_step=engine.draft_step_seconds(WARM_UP_PROMPT),
        verify=(median(plain), *map(median, verify.values())),
    )


def _seconds(engine: Engine, tokens: int) -> list[float]:
    """Seconds of some passes, warm-up left out; fewer where they are slow."""
    seconds: list[float] = []
    with closing(engine.pass_seconds(WARM_UP_PROMPT, tokens)) as passes:
        for one in islice(passes, _WARM_UP, None):
            seconds.append(one)
            if len(seconds) >= _PASSES or (len(seconds) >= _FEWEST and sum(seconds) > _SECONDS):
                break
    return seconds
