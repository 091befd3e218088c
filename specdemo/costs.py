"""Step costs, measured apart from any run.

A pass over n tokens reads the weights once, as a pass over one does; it costs more only once arithmetic, not memory,
is the limit. So v(n) grows slowly, then faster, with cliffs where another kernel takes over. Together with the
draft's cost c it decides whether speculation can pay off; both grow with the context. Beside other programs such
short measurements can come out at almost anything, so those of a quiet moment are kept for this pair, engine and
machine.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from hashlib import sha256
from importlib.metadata import version
from itertools import cycle, islice, takewhile
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import NamedTuple

from specdemo.decoding.lookahead import best_lookahead
from specdemo.engines.base import Engine
from specdemo.errors import PromptError, SpecdemoError
from specdemo.files import own_cache, read_bytes, writable, write_json
from specdemo.models.catalogue import pair_settings
from specdemo.models.devices import PROPERTIES_VARIABLE, instruction_sets, processor
from specdemo.models.folder import agreement_per_step
from specdemo.records import TIMED_LOOKAHEAD, Costs, ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import ENGINES, LOCAL, Constant, EngineName
from specdemo.warm_up import WARM_UP_PROMPT, OtherLoad

MAX_LOOKAHEAD = 16
SHORTEST = 5  # passes up to this length are always measured
CONTEXT = 64  # tokens before the measured steps; with more, passes over several slow down faster than plain steps
_WORDS = WARM_UP_PROMPT.split()
_LENGTHS = range(1, MAX_LOOKAHEAD + 2)
_VISITED = (1, *_LENGTHS)  # plain steps twice, since all others are compared with them
_WARM_UP = 16  # passes at most, after which a model that fits the processor's caches is in them again
_WARM_UP_SECONDS = 0.04  # at most: larger models take nearly as long from their first pass on
_FEW = 2  # passes per visit
_AT_LEAST = 2  # visits
_ENOUGH = 1.5  # seconds of visits
BOUND_SECONDS = 5.0  # after a single text, for slow or busy machines


_QUIET = 0.1  # share of the processor that others took; hand-set: what a desktop does at rest
_BELOW = 0.9  # of v(1): a pass over several tokens cannot take clearly less than one over a single token
_ATTEMPTS = 3  # then the machine is busy
_MOST_BYTES = 2**20
_CLEARLY = 0.85  # of the time a token; two moments of one machine gave plain steps of 10 and 14 ms


def needs_costs(settings: GenerationSettings) -> bool:
    strategy = settings.strategy
    return strategy.needs_costs or strategy.fixed_lookahead is None


def measure_costs(
    engine: Engine, *, stop: Callable[[], bool] = lambda: False, bound: float = BOUND_SECONDS
) -> Costs | None:
    """Measure steps after a short text; beside other programs, prefer what was measured in a quiet moment.

    Impossible costs are refused and measured again. None if stopped, or if the model's context is too short.
    """
    costs, began = None, perf_counter()
    for _ in range(_ATTEMPTS):
        load = OtherLoad(engine.thoroughness.load_seconds)
        found = measure_once(engine, stop=stop, bound=bound)
        if found is None or stop():
            return found
        costs = found.model_copy(update={"other_load": load.share()})
        if plausible(costs) or perf_counter() - began > bound:
            break
    if costs is None or costs.other_load is None:  # a simulated clock
        return costs
    if plausible(costs) and costs.other_load <= _QUIET:
        remember(engine, costs)
        return costs
    return recall(engine.name, engine.pair) or costs.bounded()


def plausible(costs: Costs) -> bool:
    """Check that no pass over several tokens took clearly less time than one over a single token."""
    return min(costs.verify) >= _BELOW * costs.verify[0]


def remember(engine: Engine, costs: Costs) -> None:
    """Keep step costs from a quiet moment, if there is a writable folder."""
    with suppress(SpecdemoError):
        place = _place(engine.name, engine.pair)
        writable(place.parent, "Step costs")
        write_json(costs.model_dump(mode="json"), place)


def recall(engine: EngineName, pair: ModelPair) -> Costs | None:
    if not ENGINES[engine].local:
        return None
    with suppress(SpecdemoError, ValueError):
        return Costs.model_validate_json(read_bytes(_place(engine, pair), _MOST_BYTES, "step costs"))
    return None


def _place(engine: EngineName, pair: ModelPair) -> Path:
    """Return the file of this pair, engine, software and machine; all of them decide what a step costs."""
    software = [version(name) for name in ("openvino", "openvino-genai")]
    machine = [processor(), instruction_sets(), os.cpu_count(), os.environ.get(PROPERTIES_VARIABLE)]
    key = json.dumps(
        [engine, pair.model_dump(mode="json", exclude={"translated"}), software, machine], sort_keys=True
    )
    return own_cache() / "costs" / f"{sha256(key.encode()).hexdigest()[:24]}.json"


class Prediction(NamedTuple):
    """The lookahead that should be fastest (0: plain decoding is), its speedup, and its seconds a token."""

    lookahead: int
    speedup: float
    token_seconds: float


def predicted(pair: ModelPair, engine: EngineName) -> Prediction | None:
    """Predict from step costs of a quiet moment and the agreement that the draft's folder states; None if unknown."""
    costs = recall(engine, pair)
    if costs is None or pair.draft is None or pair.draft.path is None:
        return None
    agreement = agreement_per_step(pair.draft.path)
    if not agreement:
        return None
    lookahead, speedup = best_lookahead(agreement, costs)
    return Prediction(lookahead, speedup, costs.plain_step / speedup)


def fastest_engine(pair: ModelPair) -> EngineName | None:
    """Return the engine whose tokens should take least time: the pair's own, unless another should be clearly faster;
    None until step costs of two are known.
    """
    found = {name: known.token_seconds for name in LOCAL if (known := predicted(pair, name)) is not None}
    if len(found) < 2:
        return None
    best, own = min(found, key=found.__getitem__), pair_settings(pair).engine
    return best if found[best] < _CLEARLY * found.get(own, math.inf) else own


def start_settings(pair: ModelPair, engine: EngineName | None = None) -> GenerationSettings:
    """Return the settings that the page starts with: the pair's defaults, with the engine and lookahead best here."""
    chosen = engine or fastest_engine(pair)
    settings = pair_settings(pair, **({} if chosen is None else {"engine": chosen}))
    found = predicted(pair, settings.engine)
    if found is None or not isinstance(settings.strategy, Constant):
        return settings
    return settings.model_copy(update={"num_assistant_tokens": max(found.lookahead, 1)})


def measure_once(
    engine: Engine, *, stop: Callable[[], bool] = lambda: False, bound: float = math.inf
) -> Costs | None:
    """Measure plain, draft and verification steps after a text.

    Passes over 1 to 17 tokens are visited repeatedly in different orders, so that the machine's drift favours none.
    After `bound` seconds, the longest passes are left out, and values that few strategies use come once at most.
    """
    _seconds(engine, WARM_UP_PROMPT, 1, passes=1)  # the first pass may compile more, which is not to be measured
    began, text = perf_counter(), _text(engine, CONTEXT)

    def late() -> bool:
        return perf_counter() - began > bound

    seconds: dict[int, list[float]] = {tokens: [] for tokens in _LENGTHS}
    try:
        # First what every automatic choice needs; the remaining time goes to pass lengths.
        rounds = [] if stop() else engine.draft_rounds(text, TIMED_LOOKAHEAD)
        first = [] if late() or stop() else [step.seconds for step in engine.draft_rounds(text, 1)]
        for tokens in visits_in_order(engine.thoroughness.visits, late):
            found = [] if stop() else _seconds(engine, text, tokens, passes=_FEW)
            if not found:  # or this engine cannot time them
                return None
            seconds[tokens] += found
    except PromptError:  # longer than the model's context
        return None
    draft = [step.seconds / TIMED_LOOKAHEAD for step in rounds]
    verify = tuple(map(median, takewhile(bool, seconds.values())))
    return Costs(
        plain_step=verify[0],
        draft_step=median(draft) if draft else None,
        verify=verify,
        first_draft_step=median(first) if first else None,
        drafted=tuple(step for step in rounds if step.probabilities),
    )


def _text(engine: Engine, tokens: int) -> str:
    each = max(engine.count_tokens(" ".join(_WORDS)), 1)  # tokens of all words together
    return " ".join(islice(cycle(_WORDS), max(tokens * len(_WORDS) // each, len(_WORDS))))


def visits_in_order(visits: int, late: Callable[[], bool]) -> Iterator[int]:
    """Yield pass lengths in the order of their visits: first ascending, so that it can end early, then at random.

    After `_ENOUGH` seconds, two visits to each suffice; once `late`, one, and to the shortest only.
    """
    random, began = Random(0), perf_counter()
    for visit in range(visits):
        if visit >= _AT_LEAST and perf_counter() - began > _ENOUGH:
            return
        for tokens in random.sample(_VISITED, len(_VISITED)) if visit else sorted(_VISITED):
            if late() and (visit or tokens > SHORTEST):
                return
            yield tokens


def _seconds(engine: Engine, text: str, tokens: int, *, passes: int) -> list[float]:
    with closing(engine.pass_seconds(text, tokens)) as seconds:
        warmed = 0.0
        for each in islice(seconds, _WARM_UP):
            warmed += each
            if warmed > _WARM_UP_SECONDS:
                break
        return list(islice(seconds, passes))
