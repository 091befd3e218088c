"""`sweep`: which setting is fastest here, for these prompts."""

import argparse
from contextlib import closing

from rich.console import Console

from specdemo.cli import terminal
from specdemo.cli.numbers import numbers, positive
from specdemo.cli.options import (
    Commands,
    add_json,
    add_pair,
    add_settings,
    check_effect,
    check_json,
    chosen_pair,
    raced_settings,
)
from specdemo.cli.progress import interruptible, progress_bar, show_conversion
from specdemo.engines import load_engine
from specdemo.measure.step_costs import measure_costs
from specdemo.measure.sweep import LOOKAHEADS, REPEATS, THRESHOLDS, Sweep, candidates, sweep
from specdemo.models.gguf_convert import convert_pair
from specdemo.output import write_json
from specdemo.settings import GenerationSettings


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("sweep", help="find the fastest setting for your prompts on this machine")
    parser.set_defaults(command=_sweep)
    parser.add_argument("prompts", metavar="PROMPT", nargs="+")
    add_json(parser, "what was measured")
    parser.add_argument("--lookaheads", metavar="LIST", default=None, help="such as 1-8,12 (default: 1-16)")
    parser.add_argument(
        "--thresholds", metavar="LIST", default=None, help="such as 0.3,0.5, or none (default: 0.2,0.4,0.6,0.8)"
    )
    parser.add_argument(
        "--repeats", type=positive, default=REPEATS, help=f"runs per setting and prompt (default: {REPEATS})"
    )
    parser.add_argument(
        "--random-order", type=int, default=0, metavar="SEED", help="seed of the order of runs (default: 0)"
    )
    add_settings(parser, GenerationSettings)
    add_pair(parser)


def _sweep(options: argparse.Namespace) -> None:
    pair = chosen_pair(options)
    settings = raced_settings(options, pair)
    lookaheads = LOOKAHEADS if options.lookaheads is None else numbers(options.lookaheads, int)
    thresholds = THRESHOLDS if options.thresholds is None else numbers(options.thresholds, float)
    tried = candidates(pair, settings, lookaheads, thresholds)
    check_effect(options, [candidate.settings for candidate in tried])
    check_json(options.json)
    show_conversion(convert_pair(pair))
    result, complete = None, False
    try:
        with interruptible() as stop, progress_bar() as show:
            show("loading", 0, None, None)
            with closing(load_engine(settings.engine, pair)) as engine:
                show("measuring step costs", 0, None, None)
                costs = measure_costs(engine, stop=stop)
                runs = sweep(
                    engine,
                    options.prompts,
                    settings,
                    tried,
                    repeats=options.repeats,
                    costs=costs,
                    seed=options.random_order,
                    stop=stop,
                )
                for progress in runs:
                    result = progress.found
                    best = max(result.points, key=lambda point: point.speedup.middle, default=None)
                    doing = f"best so far {best.candidate.name}" if best else "warming up"
                    show(doing, progress.done, progress.total, progress.seconds_left)
        if stop():
            raise KeyboardInterrupt
        complete = True
    finally:
        if result is not None and (result.points or complete):  # otherwise an earlier sweep's file stays
            _tell(result, options.json)


def _tell(result: Sweep, path: str | None) -> None:
    if path != "-":
        terminal.print_sweep(Console(), result)
    if path is not None:
        write_json(result.model_dump(mode="json"), path)
