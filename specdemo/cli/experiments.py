"""Commands of experiments: `sweep` for typed prompts, and one for every other kind."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from specdemo.cli import terminal
from specdemo.cli.options import (
    Commands,
    add_json,
    add_pair,
    add_settings,
    check_effect,
    check_json,
    chosen,
    chosen_pair,
    count,
    numbers,
    positive,
    raced_settings,
)
from specdemo.cli.terminal import interruptible, progress_bar, show_conversion
from specdemo.engines import Engine
from specdemo.experiments import (
    KINDS,
    LOOKAHEADS,
    REPEATS,
    THRESHOLDS,
    Checkpoint,
    Kind,
    Option,
    Plan,
    Report,
    Result,
    SweepPlan,
    beside,
    candidates,
    chosen_tasks,
    never,
    prompts_as_tasks,
    read_bench,
    report_against,
    run,
    write,
)
from specdemo.models.converted import convert_pair
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName
from specdemo.worker import EngineFactory

_TYPES: dict[str, Callable[[str], Any]] = {
    "names": lambda text: [*map(str.strip, text.split(","))],
    "integers": lambda text: numbers(text, int),
    "numbers": lambda text: numbers(text, float),
}


def add_to(commands: Commands) -> None:
    """Add the commands."""
    _add_sweep(commands)
    for kind in KINDS:
        add_kind(commands, kind)


def add_kind(commands: Commands, kind: Kind) -> None:
    """Add the command for one kind."""
    parser = commands.add_parser(kind.name, help=kind.help)
    parser.set_defaults(command=partial(_experiment, kind=kind))
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines (default: the bundled suite)")
    default = "" if kind.limit is None else f" (default: {kind.limit})"
    parser.add_argument(
        "--limit",
        type=positive,
        default=kind.limit,
        metavar="N",
        help=f"at most N prompts, taken from all tasks in turn{default}",
    )
    for option in kind.options:
        parser.add_argument(*_flags(option), dest=option.name, **_shape(option))
    _add_runs(parser, kind.repeats.first)
    if kind.extras is not None:
        parser.add_argument(f"--no-{kind.extras.name}", action="store_true", help=f"leave out {kind.extras.name} use")
    if kind.compares:
        parser.add_argument("--against", type=Path, metavar="FILE", help="another benchmark's JSON, to compare with")
    add_json(parser, "everything, with tables and an HTML report beside it,")
    add_settings(parser, GenerationSettings, without=kind.without)
    add_pair(parser)


def _flags(option: Option) -> list[str]:
    return [f"--{name}" for name in (option.name, *option.aliases)]


def _shape(option: Option) -> dict[str, Any]:
    default = option.default
    shown = f" (default: {','.join(map(str, default))})" if default and option.type != "count" else ""
    if option.type == "count":
        return {"metavar": "N", "type": count, "default": option.default, "help": option.help}
    return {"metavar": "LIST", "help": f"{option.help}{shown}"}


def _value(option: Option, text: str | int | None) -> Any:
    """Return the given value, or the default.

    Raises:
        UsageError: it is not of the option's type.
    """
    return _TYPES[option.type](text) if isinstance(text, str) else option.default if text is None else text


def _add_runs(parser: argparse.ArgumentParser, repeats: int) -> None:
    parser.add_argument(
        "--repeats", type=positive, default=repeats, help=f"runs per setting and prompt (default: {repeats})"
    )
    parser.add_argument(
        "--random-order", type=int, default=0, metavar="SEED", help="seed of the order of runs (default: 0)"
    )


def _experiment(options: argparse.Namespace, kind: Kind) -> None:
    pair = chosen_pair(options)
    if kind.settings is None:
        settings = raced_settings(options, pair)
    else:
        settings = kind.settings(pair, **chosen(options, GenerationSettings))
    check_json(options.json)
    tasks = chosen_tasks(options.prompts, pair.target.prompts, options.limit, turns=kind.turns)
    given = {option.name: _value(option, getattr(options, option.name)) for option in kind.options}
    plan = kind.plan(pair, tasks, settings, repeats=options.repeats, seed=options.random_order, **given)
    check_effect(options, list(plan.variants.values()))
    extras = kind.extras is not None and not getattr(options, f"no_{kind.extras.name}")
    other = getattr(options, "against", None)
    there = None if other is None else (read_bench(other), other.name)
    _measure(plan, options.load_engine, options.json, extras=extras, report_of=partial(report_against, there=there))


def _add_sweep(commands: Commands) -> None:
    parser = commands.add_parser("sweep", help="find the fastest setting for your prompts on this machine")
    parser.set_defaults(command=_sweep)
    parser.add_argument("prompts", metavar="PROMPT", nargs="+")
    parser.add_argument("--lookaheads", metavar="LIST", default=None, help="such as 1-8,12 (default: 1-16)")
    parser.add_argument(
        "--thresholds", metavar="LIST", default=None, help="such as 0.3,0.5, or none (default: 0.2,0.4,0.6,0.8)"
    )
    _add_runs(parser, REPEATS)
    add_json(parser, "what was measured, with tables and an HTML report beside it,")
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
    tasks = prompts_as_tasks(options.prompts)
    plan = SweepPlan(pair, tasks, settings, tried, repeats=options.repeats, seed=options.random_order)
    _measure(plan, options.load_engine, options.json)


def _measure(
    plan: Plan[Any, Any, Any],
    load_engine: EngineFactory,
    json: str | None,
    *,
    extras: bool = False,
    report_of: Callable[[Result], Report] = report_against,
) -> None:
    """Run a plan with progress on standard error; print its report, and write its files next to the JSON.

    Finished rows are kept next to the JSON until the run is complete.
    """
    path = None if json in (None, "-") else Path(json)
    checkpoint = None if path is None else Checkpoint(beside(path, ".rows.jsonl"))

    def load(name: EngineName, pair: ModelPair = plan.pair) -> Engine:
        return load_engine(name, pair)

    show_conversion(convert_pair(plan.pair))
    result = None
    try:
        with interruptible() as stop, progress_bar() as show:
            for progress in run(plan, load, checkpoint=checkpoint, stop=stop):
                result = progress.result
                show(progress.doing, progress.done, progress.total, progress.seconds_left)
        assert result is not None, "a run begins with a state"
        if stop():
            raise KeyboardInterrupt
        if extras:
            if path is not None:
                write(report_of(result), path)  # early, in case this process dies later
            with progress_bar() as show:  # Ctrl+C aborts at once from here on: all rows are there
                show("measuring memory", result.total, None, None)
                result = plan.extras(result, never)
    finally:
        if result is not None and result.measured:  # otherwise keep an earlier run's file
            terminal.print_result(report_of(result), path, as_json=json == "-")
    if checkpoint is not None:
        checkpoint.delete()
