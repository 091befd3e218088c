"""`specdemo measure`, and its presets under names of their own."""

import argparse
import sys
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
    check_file,
    chosen,
    chosen_pair,
    numbers,
    whole,
)
from specdemo.cli.terminal import interruptible, progress_bar, show_conversion
from specdemo.errors import UsageError
from specdemo.experiments.plan import Axes, Plan
from specdemo.experiments.presets import PRESETS, Preset
from specdemo.experiments.report import beside, fastest, joined, read_result, report, times
from specdemo.experiments.rows import Checkpoint, Result, run
from specdemo.experiments.suites import chosen_tasks, typed_tasks
from specdemo.models.converted import convert_pair
from specdemo.settings import GenerationSettings
from specdemo.worker import EngineFactory

_HELP = {
    "lookaheads": "such as 1-8,12",
    "thresholds": "confidence thresholds, such as 0.3,0.6",
    "policies": "such as auto,heuristic; all: those without a number",
    "strategies": "engine and strategy, such as 'traced auto,genai constant'; all: those that the pair supports",
    "temperatures": "such as 0,0.4,0.8; 0 is greedy decoding",
    "precisions": "such as 'as loaded,target bf16,cache u8', of target, draft and cache; join several with +",
    "concurrency": "numbers of requests at once, such as 1,2,4,8",
}
_ALIASES = {"strategies": ["--methods"], "concurrency": ["--levels"]}
_PARSE: dict[str, Callable[[str], list[Any]]] = {
    **dict.fromkeys(("lookaheads", "concurrency"), lambda text: numbers(text, int)),
    **dict.fromkeys(("thresholds", "temperatures"), lambda text: numbers(text, float)),
}


def add_to(commands: Commands) -> None:
    for preset in PRESETS.values():
        _add(commands, preset)


def _add(commands: Commands, preset: Preset) -> None:
    parser = commands.add_parser(preset.name, help=preset.help)
    parser.set_defaults(command=partial(_measure, preset=preset))
    parser.add_argument("texts", metavar="PROMPT", nargs="*", help="prompts (default: the bundled suite)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts as JSON lines")
    parser.add_argument(
        "--limit",
        type=whole(1),
        metavar="N",
        help=f"at most N prompts of a suite, from all tasks in turn (default: {preset.limit or 'all'})",
    )
    group = parser.add_argument_group("what varies; none switches it off")
    for name in Axes.model_fields:
        default = ",".join(
            f"{value:g}" if isinstance(value, float) else str(value) for value in getattr(preset.axes, name)
        )
        shown = f" (default: {default})" if default else ""
        group.add_argument(f"--{name}", *_ALIASES.get(name, []), metavar="LIST", help=_HELP[name] + shown)
    parser.add_argument(
        "--repeats",
        type=whole(1),
        help=f"runs per variant and prompt (default: {preset.repeats}, or as --minutes allow)",
    )
    limit = "none" if preset.minutes is None else f"{preset.minutes:g}, without --repeats"
    parser.add_argument("--minutes", type=float, metavar="M", help=f"how long to measure, roughly (default: {limit})")
    parser.add_argument("--random-order", type=int, default=0, metavar="SEED", help="seed of the order of runs")
    parser.add_argument("--against", type=Path, metavar="FILE", help="another measurement's JSON, to compare with")
    add_json(parser, "everything, with tables and an HTML report beside it,")
    add_settings(parser, GenerationSettings)
    add_pair(parser)


def _measure(options: argparse.Namespace, preset: Preset) -> None:
    pair = chosen_pair(options)
    settings = preset.settings(pair, **chosen(options, GenerationSettings))
    check_file(options.json)
    if options.texts and options.prompts is not None:
        raise UsageError("Prompts come from the command line or from a file; leave one of them out.")
    limit = preset.limit if options.limit is None and options.prompts is None else options.limit
    tasks = typed_tasks(options.texts) if options.texts else chosen_tasks(options.prompts, pair.target.prompts, limit)
    axes = {name: _values(name, text) for name in Axes.model_fields if (text := getattr(options, name)) is not None}
    length = {"repeats": options.repeats, "minutes": options.minutes, "seed": options.random_order}
    plan = preset.plan(pair, tasks, settings, axes, **length)
    check_effect(options, [variant.settings for variant in plan.variants.values()])
    other = None if options.against is None else read_result(options.against)

    def compared(result: Result) -> Result:
        return result if other is None else joined(result, other, options.against.name)

    _run(plan, options.load_engine, options.json, compared)


def _values(name: str, text: str) -> list[Any]:
    if text == "none":
        return []
    return _PARSE[name](text) if name in _PARSE else [*filter(None, map(str.strip, text.split(",")))]


def _run(plan: Plan, load: EngineFactory, json: str | None, compared: Callable[[Result], Result]) -> None:
    """Run a plan with progress on standard error; print its report, and write its files next to the JSON.

    Finished rows are kept next to the JSON until all repeats are there, so that the same command continues.
    """
    path = None if json in (None, "-") else Path(json or "")
    checkpoint = None if path is None else Checkpoint(beside(path, ".rows.jsonl"))
    limit = "" if plan.minutes is None else f", for about {plan.minutes:g} min; --minutes M goes on longer"
    what = f"{times(len(plan.variants), 'variant')}, {times(len(plan.tasks), 'prompt')}"
    print(f"specdemo: {what}, up to {times(plan.total, 'run')}{limit}", file=sys.stderr)
    show_conversion(convert_pair(plan.pair))
    result = None
    try:
        with interruptible() as stop, progress_bar() as show:
            for progress in run(plan, load, checkpoint=checkpoint, fastest=fastest, stop=stop):
                result = progress.result
                show(progress.doing, progress.done, progress.total, progress.seconds_left)
        if stop():
            raise KeyboardInterrupt
    finally:
        if result is not None and result.measured:  # otherwise keep an earlier run's file
            terminal.print_result(report(compared(result)), path, as_json=json == "-")
    if checkpoint is not None and result is not None and len(result.rows) >= plan.total:
        checkpoint.delete()
