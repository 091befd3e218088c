"""Measurements on engines: races, step costs, trials."""

from specdemo.measure.conditions import WARM_UP_PROMPT, OtherLoad, prepare
from specdemo.measure.race import LiveSettings, RaceEvent, race, run_alone
from specdemo.measure.step_costs import MAX_LOOKAHEAD, contexts_task, measure_costs
from specdemo.measure.trials import MOST_SECONDS, REPEAT_SECONDS, can_run, confirmed, rehearse, trials

__all__ = [
    "MAX_LOOKAHEAD",
    "MOST_SECONDS",
    "REPEAT_SECONDS",
    "WARM_UP_PROMPT",
    "LiveSettings",
    "OtherLoad",
    "RaceEvent",
    "can_run",
    "confirmed",
    "contexts_task",
    "measure_costs",
    "prepare",
    "race",
    "rehearse",
    "run_alone",
    "trials",
]
