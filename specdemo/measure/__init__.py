"""Measurements on engines: races, step costs, trials, load, hardware."""

from specdemo.measure.closed_loop import NamedRequest, batch_engine, decode_at_once, serve, shuffled
from specdemo.measure.conditions import WARM_UP_PROMPT, OtherLoad, prepare
from specdemo.measure.hardware import MEBIBYTE, Bound, Loader, MemoryUse, draft_extra, measure_bound, measure_memory
from specdemo.measure.race import LiveSettings, RaceEvent, race, run_alone
from specdemo.measure.step_costs import MAX_LOOKAHEAD, contexts_task, measure_costs
from specdemo.measure.trials import MOST_SECONDS, REPEAT_SECONDS, can_run, confirmed, rehearse, trials

__all__ = [
    "MAX_LOOKAHEAD",
    "MEBIBYTE",
    "MOST_SECONDS",
    "REPEAT_SECONDS",
    "WARM_UP_PROMPT",
    "Bound",
    "LiveSettings",
    "Loader",
    "MemoryUse",
    "NamedRequest",
    "OtherLoad",
    "RaceEvent",
    "batch_engine",
    "can_run",
    "confirmed",
    "contexts_task",
    "decode_at_once",
    "draft_extra",
    "measure_bound",
    "measure_costs",
    "measure_memory",
    "prepare",
    "race",
    "rehearse",
    "run_alone",
    "serve",
    "shuffled",
    "trials",
]
