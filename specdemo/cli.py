"""The terminal: the page's features as commands.

Exit codes: 0, 2 for bad usage, 1 for a run that failed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from rich.console import Console

from specdemo import schema
from specdemo.compare import Phase, race
from specdemo.costs import measure_costs
from specdemo.engines import load_engine
from specdemo.errors import SpecdemoError, UsageError
from specdemo.models.pairs import bundled_pair, pair_from_folders
from specdemo.records import Comparison, ModelPair
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.terminal import print_comparison


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        options.command(options)
    except UsageError as error:
        return _complain(error, 2)
    except SpecdemoError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return 130
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; options for settings come from the settings types."""
    parser = argparse.ArgumentParser(prog="python -m specdemo", description="Does speculative decoding pay here?")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    compare = commands.add_parser("compare", help="decode a prompt plainly and speculatively, and compare")
    compare.set_defaults(command=_compare)
    compare.add_argument("prompt", metavar="PROMPT")
    compare.add_argument("--json", metavar="PATH", help="write the comparison as JSON; - for standard output")
    _add_settings(compare, GenerationSettings)
    _add_pair(compare)

    serve = commands.add_parser("serve", help="start the page")
    serve.set_defaults(command=_serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument(
        "--port",
        type=int,
        choices=range(1, 65536),
        metavar="PORT",
        help="port to listen on (default: the first free from 7860 on)",
    )
    serve.add_argument("--auth", metavar="USER:PASSWORD", help="ask visitors for this name and password")
    _add_pair(serve)
    return parser


def _add_pair(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", type=Path, metavar="DIR", help="OpenVINO folder (default: the bundled pair)")
    parser.add_argument("--draft", type=Path, metavar="DIR", help="OpenVINO folder of the draft")
    _add_settings(parser, RuntimeSettings)


def _add_settings(parser: argparse.ArgumentParser, settings: type[GenerationSettings | RuntimeSettings]) -> None:
    """One option a field. Unset options stay out of the namespace, so that defaults live in the type alone."""
    for name, field in settings.model_fields.items():
        flag = "--" + name.replace("_", "-")
        default = "" if field.default in (None, False) else f" (default: {field.default})"
        help_ = f"{field.description}{default}".replace("%", "%%")
        parser.add_argument(flag, dest=name, default=argparse.SUPPRESS, help=help_, **_kind(field))


def _kind(field: FieldInfo) -> dict[str, Any]:
    annotation = field.annotation
    if annotation is bool:
        return {"action": "store_true"}
    if get_origin(annotation) is Literal:
        return {"choices": get_args(annotation)}
    if get_origin(annotation) in (Union, UnionType):
        annotation = get_args(annotation)[0]
    return {"type": annotation, "metavar": getattr(annotation, "__name__", "value").upper()}


def _chosen(options: argparse.Namespace, settings: type[GenerationSettings | RuntimeSettings]) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name in settings.model_fields}


def chosen_pair(options: argparse.Namespace) -> ModelPair:
    """The pair that the options name: the bundled one, or the user's own folders."""
    runtime = _chosen(options, RuntimeSettings)
    if options.target is None:
        if options.draft is not None:
            raise UsageError("--draft needs --target; name both folders.")
        return bundled_pair(**runtime)
    return pair_from_folders(options.target, options.draft, RuntimeSettings.checked(**runtime))


def _compare(options: argparse.Namespace) -> None:
    settings = GenerationSettings.checked(**_chosen(options, GenerationSettings))
    if options.json is not None and options.json != "-":  # better now than after the run
        path = Path(options.json)
        if not options.json or path.is_dir() or not path.parent.is_dir():
            raise UsageError(f"There is no file to write at {options.json!r}; choose another path.")
    pair = chosen_pair(options)
    if pair.draft is None and settings.drafter == "model":
        raise UsageError("A target alone has no draft model; name one with --draft, or choose --drafter lookup.")
    status = Console(stderr=True)
    with status.status("loading"):
        engine = load_engine(settings.engine, pair)
    comparison = None
    with status.status("racing") as busy:
        for progress in race(engine, options.prompt, settings):
            if isinstance(progress, Comparison):
                comparison = progress
            busy.update(progress.name if isinstance(progress, Phase) else "racing")
        assert comparison is not None, "a race that nobody stops ends with a comparison"
        busy.update("measuring step costs")
        comparison = comparison.model_copy(update={"costs": measure_costs(engine)})
    if options.json != "-":
        print_comparison(Console(), comparison)
    if options.json is not None:
        _write_json(comparison, options.json)


def _write_json(comparison: Comparison, path: str) -> None:
    text = json.dumps(schema.to_json(comparison), ensure_ascii=path == "-", indent=2)  # any terminal takes ASCII
    if path == "-":
        print(text)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise SpecdemoError(f"Cannot write {path!r} ({error.strerror}); choose another path.") from error


def _serve(options: argparse.Namespace) -> None:
    from specdemo.ui.page import serve  # gradio takes seconds to import

    user, colon, password = (options.auth or "").partition(":")
    if options.auth is not None and not (user and colon and password):
        raise UsageError("--auth takes USER:PASSWORD, both not empty.")
    try:
        serve(chosen_pair(options), host=options.host, port=options.port, auth=(user, password) if user else None)
    except OSError as error:
        raise UsageError(f"The page cannot listen there ({error}); choose another --host or --port.") from error


def _complain(error: SpecdemoError, code: int) -> int:
    print(f"specdemo: {error}", file=sys.stderr)
    return code
