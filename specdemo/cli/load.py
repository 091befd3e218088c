"""`load`: plain and speculative decoding with several requests in flight."""

import argparse
from functools import partial
from pathlib import Path

from specdemo.bench import files
from specdemo.bench.journal import Journal
from specdemo.bench.load.plan import LEVELS, REPEATS, LoadPlan
from specdemo.bench.load.report import headline, report_of
from specdemo.bench.load.run import load_and_memory, load_run
from specdemo.bench.suites import chosen_tasks
from specdemo.cli import terminal
from specdemo.cli.numbers import count, numbers, positive
from specdemo.cli.options import (
    Commands,
    add_json,
    add_pair,
    add_settings,
    check_json,
    chosen_pair,
    raced_settings,
)
from specdemo.cli.progress import interruptible, progress_bar, show_conversion
from specdemo.engines import load_engine
from specdemo.models.gguf_convert import convert_pair
from specdemo.settings import GenerationSettings

PROMPTS = 8
_NOT_HERE = ("do_sample", "temperature", "top_p", "top_k", "seed", "alternatives", "kv_cache", "sequential")
"""Settings of single requests, and of sampling: outputs are compared, so decoding is greedy."""


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("load", help="measure how the speedup changes with several requests at once")
    parser.set_defaults(command=_load)
    levels = ",".join(map(str, LEVELS))
    parser.add_argument(
        "--levels", metavar="LIST", help=f"requests in flight; 1 is always measured (default: {levels})"
    )
    parser.add_argument("--lookaheads", metavar="LIST", default="none", help="several to compare, such as 2,4,6")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines (default: the bundled suite)")
    parser.add_argument(
        "--limit",
        type=positive,
        default=PROMPTS,
        metavar="N",
        help=f"at most N prompts, of all tasks (default: {PROMPTS})",
    )
    parser.add_argument(
        "--requests",
        type=count,
        default=0,
        metavar="N",
        help="at least N in each block (default: every prompt, and twice as many as are in flight)",
    )
    parser.add_argument(
        "--repeats", type=positive, default=REPEATS, help=f"blocks per level and side (default: {REPEATS})"
    )
    parser.add_argument("--random-order", type=int, default=0, metavar="SEED", help="seed of all orders (default: 0)")
    parser.add_argument("--no-memory", action="store_true", help="leave out memory use")
    add_json(parser, "everything, with tables and an HTML report beside it,")
    add_settings(parser, GenerationSettings, without=_NOT_HERE)
    add_pair(parser)


def _load(options: argparse.Namespace) -> None:
    pair = chosen_pair(options)
    settings = raced_settings(options, pair)
    check_json(options.json)
    path = None if options.json in (None, "-") else Path(options.json)
    journal = None if path is None else Journal(files.beside(path, ".rows.jsonl"))
    plan = LoadPlan(
        pair,
        chosen_tasks(options.prompts, pair.target.prompts, options.limit),
        settings,
        levels=LEVELS if options.levels is None else numbers(options.levels, int),
        lookaheads=numbers(options.lookaheads, int),
        repeats=options.repeats,
        requests=options.requests,
        seed=options.random_order,
    )
    show_conversion(convert_pair(pair))
    runs = load_run if options.no_memory else load_and_memory
    result = None
    try:
        with interruptible() as stop, progress_bar() as show:
            for progress in runs(partial(load_engine, pair=pair), plan, journal=journal, stop=stop):
                result = progress.found
                show(progress.doing, progress.done, progress.total, progress.seconds_left)
        if stop():
            raise KeyboardInterrupt
    finally:
        if result is not None and result.rows:  # otherwise an earlier run's file stays
            terminal.tell(report_of(result), headline(result), path, as_json=options.json == "-")
    if journal is not None:
        journal.delete()
