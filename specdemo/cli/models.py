"""`models`: list, describe, check and download models."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from specdemo import records
from specdemo.cli.options import Commands, add_json, add_models_dir, check_file
from specdemo.cli.terminal import show_conversion
from specdemo.errors import FetchError, PairError, UsageError
from specdemo.files import write_json
from specdemo.models.catalogue import Entry, catalogue, find
from specdemo.models.checks import PairReport, check_pair
from specdemo.models.converted import convert_models, stored_form
from specdemo.models.devices import in_units
from specdemo.models.hub import download, download_source, exported_folder
from specdemo.models.library import Library, entry_folders, library, resolve
from specdemo.models.places import hub_cache, models_dir
from specdemo.records import Model
from specdemo.settings import RuntimeSettings
from specdemo.strategies import DRAFT_KINDS
from specdemo.summary import parameters
from specdemo.text import printable


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("models", help="list, describe, check and download models")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    def add(name: str, action: Callable[[argparse.Namespace], None], help_: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = actions.add_parser(name, help=help_)
        command.set_defaults(command=action)
        add_models_dir(command)
        return command

    command = add("list", _list, "list the catalogue and the models on this machine")
    add_json(command, "catalogue and models")
    command = add("info", _info, "describe a model, or a pair from the catalogue")
    command.add_argument("name", metavar="NAME|DIR", help="a model's name or folder, or a pair's name")
    add_json(command, "the description")
    command = add("check", _check, "check whether two models fit each other, and this machine")
    command.add_argument("target", metavar="TARGET", help="a model's name or folder")
    command.add_argument("draft", metavar="DRAFT", nargs="?", help="a model's name or folder")
    cache = RuntimeSettings.model_fields["cache_size"]
    command.add_argument("--cache-size", type=int, metavar="GB", default=cache.default, help=cache.description)
    add_json(command, "the report")
    command = add("download", _download, "download a pair from the catalogue, or a repository of the Hub")
    names = "a pair from the catalogue, ORGANISATION/MODEL, or ORGANISATION/MODEL:FILE.gguf"
    command.add_argument("name", metavar="NAME", help=names)


def _list(options: argparse.Namespace) -> None:
    check_file(options.json)
    found = library(options.models_dir)
    pairs = [(entry, entry_folders(entry, options.models_dir)) for entry in catalogue()]
    if options.json != "-":
        _print_catalogue(pairs)
        _print_library(found, options.models_dir)
    if options.json is not None:
        content = {
            "catalogue": [
                entry.model_dump(mode="json")
                | {"disk_bytes": entry.disk_bytes, "memory_bytes": entry.memory_bytes, "here": None not in folders}
                for entry, folders in pairs
            ],
            **found.model_dump(mode="json"),
        }
        write_json(content, options.json)


def _info(options: argparse.Namespace) -> None:
    check_file(options.json)
    entry = next((entry for entry in catalogue() if entry.name == options.name), None)
    described: Entry | Model = entry or resolve(options.name, options.models_dir)
    if options.json != "-":
        table = Table(box=None, show_header=False)
        for name, value in _facts(described):
            table.add_row(name, _shown(value))
        Console().print(table)
    if options.json is not None:
        write_json(described.model_dump(mode="json"), options.json)


def _check(options: argparse.Namespace) -> None:
    check_file(options.json)
    RuntimeSettings.checked(cache_size=options.cache_size)
    target, draft = (name and resolve(name, options.models_dir) for name in (options.target, options.draft))
    show_conversion(convert_models([target, draft]))
    report = check_pair(target, draft, options.cache_size)
    if options.json != "-":
        _print_report(report)
    if options.json is not None:
        write_json(report.model_dump(mode="json") | {"fits": report.fits}, options.json)
    if not report.fits:
        raise PairError(report.reason)


def _download(options: argparse.Namespace) -> None:
    if "/" in options.name:
        _show_download(options.name, download(options.name))
        return
    entry = find(options.name)
    if not entry.supported:
        raise UsageError(f"{entry.title} cannot be run: {entry.reason}")
    missing = []
    for source, folder in zip(entry.sources, entry_folders(entry, options.models_dir), strict=True):
        if folder is None and source.format == "convert":
            missing.append(source.export_command(str(exported_folder(source, options.models_dir))))
        elif folder is None and source.repository is not None:
            _show_download(source.name or source.address, download_source(source))
    if missing:
        raise FetchError(f"The rest of this pair must be exported with optimum-intel; run: {' && '.join(missing)}")


def _show_download(name: str, progress_of: Iterator[records.Progress[Path | None]]) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TextColumn("{task.fields[left]}"), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None, left="")
        for progress in progress_of:
            left = "" if progress.seconds_left is None else f"{progress.seconds_left:.0f} s left"
            bar.update(task, completed=progress.done, total=progress.total, left=left)
    print(f"{name} is on this machine; name it with --target or --draft.")


def _print_catalogue(pairs: list[tuple[Entry, tuple[Path | None, ...]]]) -> None:
    table = _table("Catalogue", "name", "draft", "prompts", "disk", "memory", "state")
    for entry, folders in pairs:
        disk, memory = in_units(entry.disk_bytes), in_units(entry.memory_bytes)
        table.add_row(entry.name, entry.kind, entry.prompts, f"~{disk}", f"~{memory}", _state(entry, folders))
    console = Console()
    console.print(table)
    console.print("Sizes are estimates. `models info NAME` shows the models, their licences and notes.", style="dim")


def _shown(text: str, *, lines: bool = False) -> str:
    """Return foreign text, such as a folder's name, for rich: no escape sequences, no markup."""
    return escape(printable(text, lines=lines))


def _table(title: str, *columns: str) -> Table:
    """Return a table whose names are never cut, even in 80 columns; last columns wrap."""
    table = Table(title=title, box=SIMPLE, title_justify="left", padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    return table


def _state(entry: Entry, folders: tuple[Path | None, ...]) -> str:
    if not entry.supported:
        return "not supported"
    if None not in folders:
        return "here"
    missing = [source for source, folder in zip(entry.sources, folders, strict=True) if folder is None]
    words = ["to convert" if any(source.format == "convert" for source in missing) else "to download"]
    words += ["gated"] if any(source.gated for source in missing) else []
    words += ["name unconfirmed"] if not all(source.confirmed for source in missing) else []
    return ", ".join(words)


def _print_library(found: Library, directory: Path | None) -> None:
    table = _table("On this machine", "name", "architecture", "parameters", "weights", "on disk")
    for model in found.models:
        size = in_units(model.weight_bytes or 0)
        table.add_row(
            *map(_shown, (model.name, model.architecture, parameters(model.parameters), model.weights, size))
        )
    console = Console()
    console.print(table)
    for folder in found.unusable:
        console.print(_shown(f"{folder.name}: {folder.reason}"), style="dim")
    places = f"Your own models: {models_dir(directory)}\nThe Hub's: {hub_cache()}"
    console.print(_shown(places, lines=True), style="dim", soft_wrap=True)


def _facts(described: Entry | Model) -> list[tuple[str, str]]:
    if isinstance(described, Model):
        return [
            ("name", described.name),
            ("folder", str(described.path)),
            ("architecture", described.architecture),
            ("parameters", parameters(described.parameters)),
            ("precision", described.weights),
            *([("stored as", stored)] if (stored := stored_form(described)) else []),
            ("on disk", in_units(described.weight_bytes or 0)),
            ("vocabulary", f"{described.vocabulary} tokens"),
            ("context", f"{described.context_length} tokens"),
            ("chat template", "yes" if described.chat_template else "no"),
            ("usable as target", "yes" if described.detokenizer else "no: it has no detokenizer"),
        ]
    facts = [("pair", described.title), ("supported", described.reason or "yes")]
    for role, source in zip(("target", "draft"), described.sources, strict=False):
        whence = source.repository or str(source.path)
        facts.append((role, f"{whence}, {source.weights}, ~{in_units(source.disk_bytes)}, {source.license}"))
        if source.format == "convert":
            facts.append(("", f"needs an export: {source.export_command(str(exported_folder(source)))}"))
        facts += [("", "gated: accept its licence on the Hub and set HF_TOKEN")] * source.gated
    facts += [("draft is", "a language model" if described.kind == "model" else DRAFT_KINDS[described.kind].noun)]
    facts += [("memory", f"~{in_units(described.memory_bytes)}"), ("prompts", described.prompts)]
    if described.published is not None:
        facts.append(("published", f"{described.published.text} ({described.published.url})"))
    return [*facts, ("", described.notes)] if described.notes else facts


def _print_report(report: PairReport) -> None:
    table = Table("", "target", "draft", box=None)
    target, draft = dict(_facts(report.target)), dict(_facts(report.draft)) if report.draft else {}
    for name, value in target.items():
        table.add_row(name, _shown(value), _shown(draft.get(name, "")))
    console = Console()
    console.print(table)
    if report.same_tokenizer is not None:
        console.print("Tokenizers: identical." if report.same_tokenizer else "Tokenizers: different.")
    for engine in report.engines:
        needed, free = in_units(engine.memory_needed), in_units(report.memory_free)
        console.print(_shown(f"{engine.summary} Memory: up to {needed} (estimate), {free} free."))
