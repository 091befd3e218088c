"""Step costs: what a round with γ proposals takes, in plain steps, as a race spends it.

A pass over n tokens reads the weights once, as a pass over one does; it costs more only once arithmetic, not memory,
is the limit. So v(n) grows slowly, then faster, with cliffs where another kernel takes over. In a race the target's
weights push the draft's out of the processor's caches each round, so a draft step measured alone looks too cheap.
Therefore whole rounds are timed, in turns with plain steps in slices like a race's, and only their ratio is kept:
the machine's pace drifts, by a third within a minute, and moves both. Where an engine changes its lookahead between
rounds, one race has all of the short ones, since from race to race even the ratio moves by a tenth.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from hashlib import sha256
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import NamedTuple

import numpy as np

from specdemo.capabilities import ENGINES, EngineName
from specdemo.engines.base import Engine
from specdemo.errors import PromptError, SpecdemoError
from specdemo.files import cache_folder, read_bytes, writable_folder, write_json
from specdemo.models.catalogue import pair_settings
from specdemo.models.devices import PROPERTIES_VARIABLE, instruction_sets, processor
from specdemo.racing.race import SLICE_SECONDS, LiveSettings, race
from specdemo.racing.warm_up import WARM_UP_PROMPT, OtherLoad
from specdemo.records import Comparison, Costs, ModelPair
from specdemo.strategies import Constant

SHORT_LOOKAHEADS, LONG_LOOKAHEADS = (1, 2, 3, 4), (7, 15)  # v(n) is smooth between its cliffs, after powers of two
_PROMPT_WORDS = 48  # some 64 tokens, so that the measured rounds lie in the middle of a typical race
_RACE_TOKENS = 48  # per lookahead: medians over some 20 rounds, in a second
_WARM_UP_PASSES = 2
_PASSES_SHARE = 0.15  # of the time: copies need long passes; those not raced are timed alone, as slow models allow
MAX_SECONDS = 12.0  # to measure in; longer rounds are left out then
_MIN_ROUNDS = 12  # in the first race, even if compiling on a busy machine has taken all the time
_QUIET_LOAD = 0.1  # share of the processor that others took; hand-set: what a desktop does at rest
_FORMAT = "rounds, long passes, rough heads"  # of the kept file
_MAX_FILE_BYTES = 2**20


def known_costs(
    engine: Engine, *, stop: Callable[[], bool] = lambda: False, seconds: float = MAX_SECONDS
) -> Costs | None:
    """Return the step costs kept for this machine, else measure them; see `measure_costs`."""
    return load_costs(engine.name, engine.pair) or measure_costs(engine, stop=stop, seconds=seconds)


def measure_costs(
    engine: Engine, *, stop: Callable[[], bool] = lambda: False, seconds: float = MAX_SECONDS
) -> Costs | None:
    """Race each lookahead on a short text within `seconds`, the first ones a few rounds longer if need be. Keep the
    result if the machine was quiet, unless a limit shorter than `MAX_SECONDS` cut it off.

    None if stopped, if the model's context is too short, or if this engine cannot time its passes.
    """
    if not engine.local:
        return None
    load, until, rounds = OtherLoad(engine.thoroughness.load_seconds), perf_counter() + seconds, list[_RoundCost]()
    text = " ".join(islice(cycle(WARM_UP_PROMPT.split()), _PROMPT_WORDS))
    races_until = until - _PASSES_SHARE * seconds

    def halted(begun: int = _MIN_ROUNDS) -> bool:
        """Whether to end a race with this many rounds begun."""
        return stop() or (perf_counter() > races_until and (begun >= _MIN_ROUNDS or bool(rounds)))

    try:
        for lookaheads in _races(engine):
            if halted():
                break
            rounds += _round_costs(engine, text, lookaheads, halted)
        cut, races_until = halted(), until
        for lookahead in LONG_LOOKAHEADS if rounds else ():
            last = rounds[-1]
            if lookahead > last.lookahead and not halted() and (alone := _passes(engine, text, lookahead)):
                rounds.append(alone._replace(drafting=last.drafting * lookahead / last.lookahead))
    except PromptError:  # longer than the model's context
        return None
    if stop() or not rounds:
        return None
    costs = _table(rounds).model_copy(update={"other_load": load.share()})
    if (seconds >= MAX_SECONDS or not cut) and costs.other_load is not None and costs.other_load <= _QUIET_LOAD:
        save_costs(engine, costs)
    return costs


class _RoundCost(NamedTuple):
    """What rounds with this many proposals took, in plain steps of the same race, whose seconds are `plain_step`."""

    lookahead: int
    plain_step: float
    drafting: float
    verify: float


def _races(engine: Engine) -> list[tuple[int, ...]]:
    if _drafts(engine) and Constant.name in ENGINES[engine.name].live:
        return [SHORT_LOOKAHEADS, LONG_LOOKAHEADS]
    return [(lookahead,) for lookahead in (*SHORT_LOOKAHEADS, *LONG_LOOKAHEADS)]


def _drafts(engine: Engine) -> bool:
    return engine.pair.draft is not None and not engine.pair.translated  # a translated proposal is not one step


def _round_costs(
    engine: Engine, text: str, lookaheads: Sequence[int], halted: Callable[[int], bool]
) -> Iterator[_RoundCost]:
    """Yield medians over the rounds of a race with these lookaheads in turns; without a draft, of passes alone."""
    if not _drafts(engine):
        for lookahead in lookaheads:
            if alone := _passes(engine, text, lookahead):
                yield alone
        return
    comparison = _race(engine, text, lookaheads, halted)
    if comparison is None or not comparison.plain.rounds:
        return
    step = median(one.seconds for one in comparison.plain.rounds)
    for lookahead in lookaheads:
        rounds = [one for one in comparison.speculative.rounds if len(one.proposed or ()) == lookahead]
        if not rounds:
            continue
        if all(one.draft_seconds is not None for one in rounds):
            drafting = median(one.draft_seconds or 0.0 for one in rounds) / step
            verify = median(one.seconds - (one.draft_seconds or 0.0) for one in rounds) / step
            yield _RoundCost(lookahead, step, drafting, verify)
        elif alone := _passes(engine, text, lookahead):  # GenAI does not split its rounds
            drafting = max(median(one.seconds for one in rounds) / step - alone.verify, 0.0)
            yield alone._replace(plain_step=step, drafting=drafting)


def _race(engine: Engine, text: str, lookaheads: Sequence[int], halted: Callable[[int], bool]) -> Comparison | None:
    if len(lookaheads) > 1:
        next(engine.pass_seconds(text, max(lookaheads) + 1))  # compiles their lengths
    chosen = {"policy": "constant", "num_assistant_tokens": max(lookaheads), "ignore_eos": True}
    max_new_tokens = _RACE_TOKENS * len(lookaheads)
    settings = pair_settings(engine.pair, engine=engine.name, max_new_tokens=max_new_tokens, **chosen)
    begun = list[int]()

    def next_lookahead() -> LiveSettings:
        begun.append(lookaheads[len(begun) % len(lookaheads)])
        return {"num_assistant_tokens": begun[-1]}

    *_, last = race(engine, text, settings, stop=lambda: halted(len(begun)), live_settings=next_lookahead)
    return last if isinstance(last, Comparison) else None


def _passes(engine: Engine, text: str, lookahead: int) -> _RoundCost | None:
    """Time passes over one token and over a round's, without drafting; None if the engine cannot time them."""
    before, longer, after = (_pass_seconds(engine, text, count) for count in (1, lookahead + 1, 1))
    if not (before and longer):
        return None
    step = median([*before, *after])
    return _RoundCost(lookahead, step, 0.0, median(longer) / step)


def _pass_seconds(engine: Engine, text: str, tokens: int) -> list[float]:
    """Time passes for a slice of a race, once their kernels are warm."""
    measured = list[float]()
    with closing(engine.pass_seconds(text, tokens)) as passes:
        for seconds in islice(passes, _WARM_UP_PASSES, _RACE_TOKENS):
            measured.append(seconds)
            if sum(measured) > SLICE_SECONDS:
                break
    return measured


def _table(rounds: Sequence[_RoundCost]) -> Costs:
    step, lookaheads = mean(one.plain_step for one in rounds), range(max(one.lookahead for one in rounds) + 1)
    measured = [0, *(one.lookahead for one in rounds)]
    verify = step * np.interp(lookaheads, measured, [1, *(one.verify for one in rounds)])
    drafting = step * np.interp(lookaheads, measured, [0, *(one.drafting for one in rounds)])
    return Costs(verify=tuple(verify), drafting=tuple(drafting) if drafting.any() else ())


def save_costs(engine: Engine, costs: Costs) -> None:
    with suppress(SpecdemoError):
        place = _place(engine.name, engine.pair)
        writable_folder(place.parent, "Step costs")
        write_json(costs.model_dump(mode="json"), place)


def load_costs(engine: EngineName, pair: ModelPair) -> Costs | None:
    """Return the step costs kept for this pair on this machine, or None."""
    if not ENGINES[engine].local:
        return None
    with suppress(SpecdemoError, ValueError):
        return Costs.model_validate_json(read_bytes(_place(engine, pair), _MAX_FILE_BYTES, "step costs"))
    return None


def _place(engine: EngineName, pair: ModelPair) -> Path:
    """Return the file of this pair, engine, software and machine; all of them decide what a step costs."""
    software = [_FORMAT, *(version(name) for name in ("openvino", "openvino-genai"))]
    machine = [processor(), instruction_sets(), os.cpu_count(), os.environ.get(PROPERTIES_VARIABLE)]
    models = pair.model_dump(mode="json", exclude={"translated"})
    key = json.dumps([engine, models, software, machine], sort_keys=True)
    return cache_folder() / "costs" / f"{sha256(key.encode()).hexdigest()[:24]}.json"
