"""Step costs: what a round with γ proposals takes, in plain steps, as a race spends it.

A pass over n tokens reads the weights once, as a pass over one does; it costs more only once arithmetic, not memory,
is the limit. So v(n) grows slowly, then faster, with cliffs where another kernel takes over. In a race the target's
weights push the draft's out of the processor's caches each round, so a draft step measured alone looks too cheap.
Therefore whole rounds are timed, in turns with plain steps in slices like a race's, and only their ratio is kept:
the machine's pace drifts, by a third within a minute, and moves both. Where an engine changes its lookahead between
rounds, one race has all of the usual ones, since from race to race even the ratio moves by a tenth. Quiet races of
this pair add their own rounds to the table.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from hashlib import sha256
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specdemo.capabilities import ENGINES, EngineName
from specdemo.engines.base import Engine
from specdemo.errors import PromptError, SpecdemoError
from specdemo.files import own_cache, read_bytes, writable, write_json
from specdemo.models.catalogue import pair_settings
from specdemo.models.devices import PROPERTIES_VARIABLE, instruction_sets, processor
from specdemo.racing.race import SLICE_SECONDS, LiveSettings, race
from specdemo.racing.warm_up import WARM_UP_PROMPT, OtherLoad
from specdemo.records import Comparison, Costs, ModelPair, Run
from specdemo.results import estimate
from specdemo.strategies import DRAFT_MODEL, Constant

USUAL, LONGER = (1, 2, 3, 4), (7, 15)  # lookaheads; v(n) is smooth between its cliffs, after powers of two
CONTEXT = 64  # tokens of the prompt, so that the measured rounds lie in the middle of a usual race
_TOKENS = 48  # raced per lookahead: medians over some 20 rounds, in a second
_WARM_PASSES = 2
BOUND_SECONDS = 12.0  # to measure in; what is missing then is learnt from races
_WORDS = WARM_UP_PROMPT.split()
_QUIET = 0.1  # share of the processor that others took; hand-set: what a desktop does at rest
_ENOUGH = 8  # rounds of a race with as many proposals; the median of fewer moves with a single slow one
_MEMORY = 200  # rounds: the latest races count more than older ones, since the machine and its software change
_FORMAT = "rounds"  # of the kept file
_MOST_BYTES = 2**20


def known_costs(
    engine: Engine, *, stop: Callable[[], bool] = lambda: False, bound: float = BOUND_SECONDS
) -> Costs | None:
    """Return what quiet moments on this machine have shown, else measure; see `measure_costs`."""
    return recall(engine.name, engine.pair) or measure_costs(engine, stop=stop, bound=bound)


def measure_costs(
    engine: Engine, *, stop: Callable[[], bool] = lambda: False, bound: float = BOUND_SECONDS
) -> Costs | None:
    """Race each lookahead on a short text within `bound` seconds, and keep what a quiet moment shows.

    None if stopped, if the model's context is too short, or if this engine cannot time its passes.
    """
    if engine.remote:
        return None
    load, until, samples = OtherLoad(engine.thoroughness.load_seconds), perf_counter() + bound, list[Sample]()
    text = _text(engine, CONTEXT)

    def halted() -> bool:
        return stop() or perf_counter() > until

    try:
        for lookaheads in _races(engine):
            if halted():
                break
            samples += _samples(*_timed(engine, text, lookaheads, halted))
    except PromptError:  # longer than the model's context
        return None
    if stop() or not samples:
        return None
    costs = merged(None, samples).model_copy(update={"other_load": load.share()})
    if costs.other_load is not None and costs.other_load <= _QUIET:
        remember(engine, costs)
    return costs


class Timing(NamedTuple):
    """Seconds of a round with so many proposals: the draft's (None if unknown) and the rest."""

    lookahead: int
    drafting: float | None
    rest: float


def _races(engine: Engine) -> list[tuple[int, ...]]:
    """Lookaheads measured together."""
    if _drafts(engine) and Constant.name in ENGINES[engine.name].live:
        return [USUAL, LONGER]
    return [(lookahead,) for lookahead in (*USUAL, *LONGER)]


def _drafts(engine: Engine) -> bool:
    return engine.pair.draft is not None and not engine.pair.translated  # a translated proposal is not one step


def _timed(
    engine: Engine, text: str, lookaheads: Sequence[int], stop: Callable[[], bool]
) -> tuple[list[Timing], list[Timing]]:
    """Return plain steps, and rounds with as many proposals, or passes of that length without a draft."""
    plain, rounds = _raced(engine, text, lookaheads, stop) if _drafts(engine) else ([], [])
    if rounds and all(timed.drafting is not None for timed in rounds):
        return plain, rounds
    # GenAI does not split its rounds, and a target alone has none: time passes of either length
    longest = max(lookaheads)
    before, longer, after = (_passes(engine, text, tokens) for tokens in (1, longest + 1, 1))
    if not before or not longer:
        return [], []
    single = [*before, *after]
    if not rounds:
        return [Timing(0, 0.0, seconds) for seconds in single], [Timing(longest, 0.0, seconds) for seconds in longer]
    verify = median(longer) / median(single) * median(timed.rest for timed in plain)  # at the pace of the race
    return plain, [Timing(longest, max(timed.rest - verify, 0.0), verify) for timed in rounds]


def _raced(
    engine: Engine, text: str, lookaheads: Sequence[int], stop: Callable[[], bool]
) -> tuple[list[Timing], list[Timing]]:
    """Race with these lookaheads in turns; return plain steps and the rounds with as many proposals."""
    if len(lookaheads) > 1:
        next(engine.pass_seconds(text, max(lookaheads) + 1))  # compiles their lengths
    chosen = {"policy": "constant", "num_assistant_tokens": max(lookaheads), "ignore_eos": True}
    settings = pair_settings(engine.pair, engine=engine.name, max_new_tokens=_TOKENS * len(lookaheads), **chosen)
    turns = cycle(LiveSettings(lookahead, 0.0) for lookahead in lookaheads)
    *_, comparison = race(engine, text, settings, stop=stop, live_settings=lambda: next(turns))
    if not isinstance(comparison, Comparison):
        return [], []
    rounds = [timed for timed in timings(comparison.speculative) if timed.lookahead in lookaheads]
    return timings(comparison.plain), rounds


def timings(run: Run) -> list[Timing]:
    rounds = list[Timing]()
    for step in run.rounds:
        drafting = step.draft_seconds if step.proposed else 0.0
        proposed = -1 if step.proposed is None else len(step.proposed)
        rounds.append(Timing(proposed, drafting, step.seconds - (drafting or 0.0)))
    return rounds


def _passes(engine: Engine, text: str, tokens: int) -> list[float]:
    """Time passes for a slice of a race, once their kernels are warm."""
    measured = list[float]()
    with closing(engine.pass_seconds(text, tokens)) as passes:
        for seconds in islice(passes, _WARM_PASSES, _TOKENS):
            measured.append(seconds)
            if sum(measured) > SLICE_SECONDS:
                break
    return measured


def _text(engine: Engine, tokens: int) -> str:
    sentence_tokens = max(engine.count_tokens(WARM_UP_PROMPT), 1)
    return " ".join(islice(cycle(_WORDS), max(tokens * len(_WORDS) // sentence_tokens, len(_WORDS))))


class Sample(NamedTuple):
    """Medians of some rounds with as many proposals, in plain steps of the same moment; `plain` is in seconds."""

    lookahead: int
    rounds: int
    plain: float
    drafting: float
    verify: float


def _samples(plain: Sequence[Timing], rounds: Sequence[Timing], least: int = 1) -> list[Sample]:
    """A sample for each lookahead with at least `least` rounds and known draft times."""
    samples = list[Sample]()
    step = median(timed.rest for timed in plain) if plain else math.nan
    for lookahead in {timed.lookahead for timed in rounds if timed.drafting is not None}:
        same = [timed for timed in rounds if timed.lookahead == lookahead]
        if plain and lookahead > 0 and len(same) >= least:
            drafting, verify = median(timed.drafting or 0.0 for timed in same), median(timed.rest for timed in same)
            samples.append(Sample(lookahead, len(same), step, drafting / step, verify / step))
    return samples


def merged(costs: Costs | None, samples: Sequence[Sample]) -> Costs:
    """Average the table with more samples, by numbers of rounds, and interpolate the lookaheads between."""
    rows = [*samples]
    if costs is not None:
        step, parts = costs.plain_step, costs.drafting or (0.0,) * len(costs.verify)
        table = enumerate(zip(costs.samples, parts, costs.verify, strict=False))
        rows += [
            Sample(n, min(rounds, _MEMORY), step, d / step, v / step) for n, (rounds, d, v) in table if n and rounds
        ]
    if costs is not None and not rows:  # a kept file whose samples say nothing
        return costs
    means = []
    for lookahead in sorted({row.lookahead for row in rows}):
        same = np.array([row[1:] for row in rows if row.lookahead == lookahead])
        means.append([lookahead, same[:, 0].sum(), *np.average(same[:, 1:], axis=0, weights=same[:, 0])])
    measured, rounds, plain, drafting, verify = np.array(means).T
    step, lookaheads = float(np.average(plain, weights=rounds)), np.arange(measured[-1] + 1)

    def filled(first: float, values: npt.NDArray[np.float64]) -> tuple[float, ...]:
        """From the value at lookahead 0 on; `Costs` keeps longer rounds from costing less than shorter ones."""
        return tuple(step * np.interp(lookaheads, [0, *measured], [first, *np.maximum(values, first)]))

    counts = dict(zip(measured, rounds, strict=True)) | {0: rounds.sum()}
    return Costs(
        verify=filled(1, verify),
        drafting=filled(0, drafting) if drafting.any() else (),
        samples=tuple(int(counts.get(lookahead, 0)) for lookahead in lookaheads),
    )


def learn(engine: Engine, comparison: Comparison) -> None:
    """Add a quiet race's rounds to the kept table."""
    known, load = recall(engine.name, engine.pair), estimate.mean_load((comparison, *comparison.repeats))
    if known is None or load is None or load > _QUIET or comparison.settings.drafter != DRAFT_MODEL.name:
        return  # a round with copies drafts only some of its proposals
    samples = _samples(timings(comparison.plain), timings(comparison.speculative), least=_ENOUGH)
    remember(engine, merged(known, samples).model_copy(update={"other_load": known.other_load}))


def remember(engine: Engine, costs: Costs) -> None:
    """Keep step costs, if there is a writable folder."""
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
    software = [_FORMAT, *(version(name) for name in ("openvino", "openvino-genai"))]
    machine = [processor(), instruction_sets(), os.cpu_count(), os.environ.get(PROPERTIES_VARIABLE)]
    models = pair.model_dump(mode="json", exclude={"translated"})
    key = json.dumps([engine, models, software, machine], sort_keys=True)
    return own_cache() / "costs" / f"{sha256(key.encode()).hexdigest()[:24]}.json"
