"""`compare`: one prompt with plain and speculative decoding; `code`: code that reproduces its settings elsewhere."""

import argparse
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from specdemo.cli.options import Commands, add_json, add_pair, add_settings, chosen_pair, given_settings, integer
from specdemo.cli.terminal import interruptible, print_figures, print_race, progress, safe_console, show_conversion
from specdemo.engines.base import check_prompt
from specdemo.errors import ServerError
from specdemo.experiments.prompts import MAX_BYTES, check_no_file_name, decoded
from specdemo.exports import html, schema
from specdemo.exports.code import SOFTWARE, code
from specdemo.files import check_files, json_file, read_bytes, write_files, write_json
from specdemo.models.catalogue import pair_settings
from specdemo.models.checks import check_strategy, with_tokenizers_compared
from specdemo.models.converted import convert_pair
from specdemo.racing.trials import MAX_SECONDS, race_with_repeats
from specdemo.records import MAX_TOKENS, Comparison, ModelPair, Phase, Request
from specdemo.settings import GenerationSettings, option, require_effect
from specdemo.text import counted


def add_to(commands: Commands) -> None:
    compare = commands.add_parser("compare", help="compare plain and speculative decoding of a prompt")
    compare.set_defaults(command=_compare)
    compare.add_argument("prompt", metavar="PROMPT", help="the prompt; - for standard input")
    compare.add_argument(
        "--repeats",
        type=integer(0, MAX_TOKENS),
        metavar="N",
        help="runs after the first (default: until more would not narrow the speedup's interval, for as long as the "
        f"race took, if that was less than {MAX_SECONDS:.0f} s)",
    )
    compare.add_argument(
        "--explain", action="store_true", help="explain the result, with the formula of every figure"
    )
    add_json(compare, "the comparison")
    for name, kind in html.FILE_KINDS.items():
        compare.add_argument(f"--{name}", metavar="PATH", help=f"write {kind.what}")
    copy = commands.add_parser("code", help="print code that reproduces settings in other software")
    copy.set_defaults(command=_code)
    copy.add_argument("prompt", metavar="PROMPT")
    names = ", ".join(f"{name}: {software.title}" for name, software in SOFTWARE.items())
    copy.add_argument("--to", choices=SOFTWARE, default="genai", help=f"{names} (default: genai)")
    for parser in (compare, copy):
        add_settings(parser, GenerationSettings)
        add_pair(parser)


def _chosen(options: argparse.Namespace) -> tuple[ModelPair, GenerationSettings]:
    pair = chosen_pair(options)
    given = given_settings(options, GenerationSettings)
    settings = pair_settings(pair, **given)
    require_effect(given, [settings], option)
    return pair, settings


def _compare(options: argparse.Namespace) -> None:
    prompt = _prompt(options.prompt)
    pair, settings = _chosen(options)
    check_files(options.json, *(getattr(options, name) for name in html.FILE_KINDS))
    check_strategy(pair, settings.engine, settings.strategy, settings.sampling)
    check_prompt(Request.of(prompt, settings))
    show_conversion(convert_pair(pair))
    comparison = None
    try:
        with (
            progress("loading") as show,
            closing(options.load_engine(settings.engine, pair)) as engine,
            interruptible() as stop,
        ):
            for event in race_with_repeats(engine, prompt, settings, number=options.repeats, stop=stop):
                if isinstance(event, Comparison):
                    comparison = event
                    done = counted(len(event.repeats), "repeat")
                    show("repeating", f", {done} so far; Ctrl+C keeps the results so far")
                else:
                    show(event.name if isinstance(event, Phase) else "racing")
            if stop():
                raise KeyboardInterrupt
    finally:
        if comparison is not None:  # report a finished race even after Ctrl+C or a failure of its repeats
            _report(comparison, options)
    for side, reason in comparison.failures.items() if comparison is not None else ():
        raise ServerError(f"The {side} side failed: {reason}")


def _prompt(typed: str) -> str:
    if typed != "-":
        return check_no_file_name(typed, "pipe it to the prompt -")
    return decoded(read_bytes(Path("-"), MAX_BYTES, "a text"), "standard input").strip()


def _report(comparison: Comparison, options: argparse.Namespace) -> None:
    files: dict[str | Path, Callable[[], bytes]] = {
        path: partial(kind.make, comparison)
        for name, kind in html.FILE_KINDS.items()
        if (path := getattr(options, name)) is not None
    }
    if options.json == "-":
        write_json(schema.to_json(comparison), "-")
    else:
        console = safe_console()
        print_race(console, comparison)
        print_figures(console, comparison, explained=options.explain)
        if options.json is not None:
            files = {options.json: lambda: json_file(schema.to_json(comparison))} | files
    write_files(files)


def _code(options: argparse.Namespace) -> None:
    pair, settings = _chosen(options)
    print(code(options.to, with_tokenizers_compared(pair), settings, options.prompt, local=True), end="")
