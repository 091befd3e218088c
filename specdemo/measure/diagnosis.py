"""What is asked of an engine after a race, off the clock, where its runs alone do not say enough.

Greedy outputs that part: what the target thought of both tokens where they first differ. A pass over several tokens
runs other kernels than a pass over one and rounds differently. Where two tokens are almost equally likely that
decides; where they are not, it cannot, and engine or model are at fault. How much rounding changes is measured on the
text just before.

GenAI's own counters, held against what was replayed: the same request once more. Where nothing accepted looks like a
fault, the models are loaded again first: a load can leave a draft that is never right (openvino.genai issue 4425).
"""

import math
from collections.abc import Callable

from specdemo.analysis import metrics
from specdemo.engines.base import Engine
from specdemo.errors import SpecdemoError
from specdemo.records import Alternative, Comparison, Divergence, Request, Token

_LAST = 16  # tokens before, on which rounding is measured


def find_divergence(engine: Engine, comparison: Comparison) -> Divergence | None:
    """The first divergence of a greedy comparison; None where there is none, or the engine cannot tell.

    A failure here must not cost the finished runs.
    """
    index = metrics.first_divergence(comparison)
    runs = comparison.plain, comparison.speculative
    if index is None or engine.remote or comparison.settings.do_sample:
        return None
    if any(index >= len(run.tokens) or len(run.token_ids) != len(run.tokens) for run in runs):
        return None  # one side ended there
    common, (plain, speculative) = runs[0].token_ids[:index], (run.tokens[index] for run in runs)
    before, last = common[:-_LAST], common[-_LAST:]
    request = Request.of(comparison.prompt, comparison.settings, comparison.history).plain
    try:
        together, other = (
            engine.log_probabilities(request, before, [*last, *_id(token)], apart=False)
            for token in (plain, speculative)
        )
        apart = engine.log_probabilities(request, before, [*last, *_id(plain)], apart=True)
    except (SpecdemoError, RuntimeError):
        return None
    if together is None or other is None or apart is None:
        return None
    return Divergence(
        index=index,
        plain=_alternative(plain, together[-1]),
        speculative=_alternative(speculative, other[-1]),
        rounding=max(abs(one - several) for one, several in zip(apart, together, strict=True)),
    )


def _id(token: Token) -> list[int]:
    return [] if token.id is None else [token.id]


def _alternative(token: Token, logarithm: float) -> Alternative:
    assert token.id is not None, "all ids are known"
    return Alternative(id=token.id, text=token.text, probability=math.exp(min(logarithm, 0.0)))


MOST_SECONDS = 5.0
"""A run that took longer is not repeated for its counters: this call cannot be stopped."""
ENOUGH = 12
"""Rounds in which not one proposal was accepted, before that looks like a fault."""


def with_counters(engine: Engine, comparison: Comparison, stop: Callable[[], bool] = lambda: False) -> Comparison:
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
