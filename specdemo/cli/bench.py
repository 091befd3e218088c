"""`bench`: suites of tasks, with every decoding strategy."""

import argparse
from functools import partial
from pathlib import Path

from specdemo.bench import files
from specdemo.bench.journal import Journal
from specdemo.bench.methods import methods, widest
from specdemo.bench.plan import REPEATS, BenchPlan
from specdemo.bench.report import report_of
from specdemo.bench.results import headline
from specdemo.bench.run import bench, with_hardware
from specdemo.bench.suites import chosen_tasks
from specdemo.cli import terminal
from specdemo.cli.numbers import positive
from specdemo.cli.options import (
    Commands,
    add_json,
    add_pair,
    add_settings,
    check_json,
    chosen_pair,
    chosen_settings,
)
from specdemo.cli.progress import interruptible, progress_bar, show_conversion
from specdemo.engines import load_engine
from specdemo.models.gguf_convert import convert_pair
from specdemo.settings import GenerationSettings
from specdemo.strategies import ENGINES

_LATER = ("engine", "drafter", "policy")  # the methods name these


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("bench", help="measure every decoding strategy on suites of tasks")
    parser.set_defaults(command=_bench)
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines (default: the bundled suite)")
    parser.add_argument("--limit", type=positive, metavar="N", help="at most N prompts, taken from all tasks in turn")
    names = ", ".join(f"{engine} {method}" for engine in ENGINES for method in methods())
    help_ = f"such as 'traced auto,genai constant' (default: all that the pair supports of {names})"
    parser.add_argument("--methods", metavar="LIST", help=help_)
    parser.add_argument(
        "--repeats", type=positive, default=REPEATS, help=f"runs per setting and prompt (default: {REPEATS})"
    )
    parser.add_argument("--no-hardware", action="store_true", help="leave out memory use and bandwidth")
    add_json(parser, "everything, with tables and an HTML report beside it,")
    add_settings(parser, GenerationSettings, without=_LATER)
    add_pair(parser)


def _bench(options: argparse.Namespace) -> None:
    pair = chosen_pair(options)
    settings = chosen_settings(options, pair, engine=widest(pair))
    check_json(options.json)
    path = None if options.json in (None, "-") else Path(options.json)
    journal = None if path is None else Journal(files.beside(path, ".rows.jsonl"))
    tasks = chosen_tasks(options.prompts, pair.target.prompts, options.limit)
    methods = None if options.methods is None else [*map(str.strip, options.methods.split(","))]
    plan = BenchPlan(pair, tasks, settings, methods, options.repeats)
    show_conversion(convert_pair(pair))
    result = None
    try:
        with interruptible() as stop, progress_bar() as show:
            for progress in bench(partial(load_engine, pair=pair), plan, journal=journal, stop=stop):
                result = progress.found
                show(progress.doing, progress.done, progress.total, progress.seconds_left)
        assert result is not None, "a benchmark begins with a state"
        if stop():
            raise KeyboardInterrupt
        if not options.no_hardware:
            if path is not None:
                files.write(report_of(result), path)  # now, in case this process dies later
            with progress_bar() as show:  # Ctrl+C now breaks off at once: all rows are there
                show("memory and bandwidth", len(result.rows), None, None)
                result = with_hardware(result)
    finally:
        if result is not None and result.rows:  # otherwise an earlier benchmark's file stays
            terminal.tell(report_of(result), headline(result), path, as_json=options.json == "-")
    if journal is not None:
        journal.delete()
