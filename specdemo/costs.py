"""What a step costs, measured apart from any run, and the speedup that follows from it.

A pass over n tokens reads the weights once, as a pass over one does; it costs more only once arithmetic, not
memory, is the limit. So v(n) grows slowly at first and then faster, with cliffs where another kernel takes
over. Together with the draft's cost c it decides whether speculation can pay.
"""

from collections.abc import Callable
from contextlib import closing
from itertools import islice
from statistics import median

from specdemo.compare import steps
from specdemo.engines.base import Decoder, Engine
from specdemo.records import Costs
from specdemo.settings import GenerationSettings

MAX_LOOKAHEAD = 16
_PROMPT = "Quick foxes jump over lazy dogs while seven wizards mix black quartz"  # no word twice: lookup finds little
_WARM_UP = 2
_ROUNDS = 8
_FEWEST = 3
_SECONDS = 0.1
_TOKENS = (1 + _WARM_UP + _ROUNDS) * (MAX_LOOKAHEAD + 1)  # enough that no measured round is cut short


def measure_costs(engine: Engine, *, stop: Callable[[], bool] = lambda: False) -> Costs | None:
    """Measure plain, draft and verification steps; None if stopped.

    A target pass over n tokens is a round of prompt lookup with lookahead n − 1: it costs no draft, and GenAI
    fills up short proposals, so that every round passes exactly n tokens through the target. Lookaheads are
    measured up and down again, plain steps before, between and after, so that a machine that grows faster or
    slower meanwhile favours neither.
    """
    settings = GenerationSettings(ignore_eos=True, max_new_tokens=_TOKENS)
    plain = _seconds(engine.plain(), settings)
    verify: dict[int, list[float]] = {lookahead: [] for lookahead in range(1, MAX_LOOKAHEAD + 1)}
    for lookaheads in (list(verify), list(reversed(verify))):
        for lookahead in lookaheads:
            if stop():
                return None
            lookup = settings.model_copy(update={"drafter": "lookup", "num_assistant_tokens": lookahead})
            verify[lookahead] += _seconds(engine.speculative(lookup), lookup)
        plain += _seconds(engine.plain(), settings)
    return Costs(
        plain_step=median(plain),
        draft_step=engine.draft_step_seconds(_PROMPT, settings),
        verify=(median(plain), *map(median, verify.values())),
    )


def _seconds(decoder: Decoder, settings: GenerationSettings) -> list[float]:
    """Seconds of some rounds of a decoder, warm-up left out; fewer rounds where they are slow."""
    seconds: list[float] = []
    with closing(steps(decoder, _PROMPT, settings)) as rounds:
        for step in islice(rounds, 1 + _WARM_UP, None):  # the first is the prefill
            seconds.append(step.seconds)
            if len(seconds) >= _ROUNDS or (len(seconds) >= _FEWEST and sum(seconds) > _SECONDS):
                break
    return seconds
