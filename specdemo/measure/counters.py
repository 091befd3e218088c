"""GenAI's own counters, held against what was replayed: the same request once more, off the clock.

Where nothing accepted looks like a fault, the models are loaded again first: a load can leave a draft that is never
right (openvino.genai issue 4425).
"""

from collections.abc import Callable

from specdemo.analysis import metrics
from specdemo.engines.base import Engine
from specdemo.errors import SpecdemoError
from specdemo.records import Comparison, Request

MOST_SECONDS = 5.0
"""A run that took longer is not repeated for its counters: this call cannot be stopped."""
ENOUGH = 12
"""Rounds in which not one proposal was accepted, before that looks like a fault."""


def counted(engine: Engine, comparison: Comparison, stop: Callable[[], bool] = lambda: False) -> Comparison:
    """The finished comparison with its engine's own counters, where there are any.

    A failure here must not cost the finished runs.
    """
    run = comparison.speculative
    seconds = run.prefill.seconds + metrics.decode_seconds(run)
    if stop() or comparison.moves or run.finish_reason not in ("stop", "length") or seconds > MOST_SECONDS:
        return comparison
    request = Request.of(comparison.prompt, comparison.settings, comparison.history)
    nothing = len(run.rounds) >= ENOUGH and not any(step.accepted for step in run.rounds)
    try:
        counters = engine.counters(request, run.token_ids, reload=nothing)
    except (SpecdemoError, RuntimeError):
        return comparison
    return comparison.model_copy(update={"counters": counters})
