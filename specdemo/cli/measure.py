"""`measure`, and a command for each of its presets."""

import argparse
import re
import sys
from functools import partial
from pathlib import Path
from time import perf_counter

from specdemo.cli.options import Commands, add_json, add_pair, add_settings, chosen_pair, given_settings, integer
from specdemo.cli.terminal import interruptible, print_report, progress, show_conversion
from specdemo.errors import UsageError, quoted
from specdemo.experiments.plan import PRESETS, Axes, Plan, Preset
from specdemo.experiments.prompts import PromptFile, check_no_file_name, chosen_tasks, read_prompts
from specdemo.experiments.report import build_report, write
from specdemo.experiments.rows import Result, measure
from specdemo.files import check_files, write_json
from specdemo.models.converted import convert_pair
from specdemo.records import Progress
from specdemo.settings import GenerationSettings, option, require_effect
from specdemo.text import counted, printable


def add_to(commands: Commands) -> None:
    for preset in PRESETS.values():
        _add(commands, preset)


def _add(commands: Commands, preset: Preset) -> None:
    parser = commands.add_parser(preset.name, help=preset.help)
    parser.set_defaults(command=partial(_measure, preset=preset))
    help_ = "prompts (default: the bundled suite); - for standard input"
    parser.add_argument("texts", metavar="PROMPT", nargs="*", help=help_)
    parser.add_argument(
        "--prompt-file",
        "--prompts",
        type=Path,
        metavar="FILE",
        help="prompts as text, CSV, JSON, JSON Lines or Parquet (needs pip install pyarrow); - for standard input",
    )
    parser.add_argument(
        "--limit",
        type=integer(1),
        metavar="N",
        help=f"at most N prompts of a suite, from all tasks in turn (default: {preset.limit or 'all'})",
    )
    group = parser.add_argument_group("what varies; none switches it off")
    for name, field in Axes.model_fields.items():
        default = ",".join(map(str, getattr(preset.axes, name)))
        shown = f" (default: {default})" if default else ""
        group.add_argument(f"--{name}", metavar="LIST", help=f"{field.description}{shown}")
    parser.add_argument(
        "--repeats",
        type=integer(1),
        help=f"runs per variant and prompt (default: {preset.repeats}, or as --minutes allow)",
    )
    limit = "none" if preset.minutes is None else f"{preset.minutes:g}, without --repeats"
    parser.add_argument("--minutes", type=float, metavar="M", help=f"how long, with loading (default: {limit})")
    add_json(parser, "everything, with tables and an HTML report beside it,")
    add_settings(parser, GenerationSettings)
    add_pair(parser)


def _measure(options: argparse.Namespace, preset: Preset) -> None:
    check_files(options.json)
    began = perf_counter()
    plan = _plan(options, preset)
    variants = [variant.settings for variant in plan.variants.values()]
    require_effect(given_settings(options, GenerationSettings), variants, option)
    limit = "" if plan.minutes is None else f", in {plan.minutes:g} min with loading; --minutes M changes that"
    size = f"{counted(len(plan.variants), 'variant')}, {counted(len(plan.tasks), 'prompt')}"
    print(f"specdemo: {size}, up to {counted(plan.total, 'run')}{limit}", file=sys.stderr)
    show_conversion(convert_pair(plan.pair))
    result = None
    try:
        with interruptible() as stop, progress("starting") as show:
            for state in measure(plan, options.load_engine, stop=stop, began=began):
                result = state.result
                show(state.doing, _details(state))
        if stop():
            raise KeyboardInterrupt
    finally:  # report finished rows even after Ctrl+C or a failure
        if result is not None and result.measured:
            _report(result, options.json)


def _details(state: Progress[Result]) -> str:
    left, of = state.seconds_left, "" if state.limit else f" of {state.total}"
    return f", {state.done}{of} runs" + ("" if left is None else f", {left // 60:.0f}:{left % 60:02.0f} left")


def _plan(options: argparse.Namespace, preset: Preset) -> Plan:
    pair = chosen_pair(options)
    settings = preset.settings(pair, **given_settings(options, GenerationSettings))
    tasks = chosen_tasks(_prompts(options), pair.target.prompts, options.limit, preset.limit)
    axes = {name: _values(text) for name in Axes.model_fields if (text := getattr(options, name)) is not None}
    return preset.plan(pair, tasks, settings, axes, repeats=options.repeats, minutes=options.minutes)


def _prompts(options: argparse.Namespace) -> PromptFile | list[str] | None:
    path, typed = options.prompt_file, options.texts
    if path is not None and typed:
        raise UsageError("Prompts come from the command line or from a file; leave one of them out.")
    if path is None and typed != ["-"]:
        return [check_no_file_name(text, f"read it with --prompt-file {quoted(text)}") for text in typed] or None
    file = read_prompts(path or Path("-"))
    for line in file.about():
        print(f"specdemo: {printable(line)}", file=sys.stderr)
    return file


def _values(text: str) -> list[str]:
    """Split names, numbers such as `1-4,8`, or `none` (an empty list); `Axes` checks them."""
    values: list[str] = []
    for part in map(str.strip, [] if text == "none" else text.split(",")):
        span = re.fullmatch(r"(\d{1,4})-(\d{1,4})", part)  # a longer number is no lookahead
        values += [*map(str, range(int(span[1]), int(span[2]) + 1))] if span else [part]
    if not values and text != "none":
        raise UsageError(f"{quoted(text)} names no numbers; write it like 1-4,8 or 0.2,0.4.")
    return values


def _report(result: Result, path: str | None) -> None:
    measured = build_report(result)
    if path == "-":
        write_json(measured.data(), "-", indent=None)
        return
    print_report(measured)
    if path is not None:
        write(measured, Path(path))
