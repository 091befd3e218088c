"""`models`: list, describe, check and download models."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Column, Table

from specdemo.capabilities import DRAFT_KINDS
from specdemo.cli.options import Commands, add_models_dir
from specdemo.cli.terminal import progress, safe_console, show_conversion
from specdemo.errors import FetchError, PairError, UsageError
from specdemo.models import converted
from specdemo.models.catalogue import Entry, catalogue, entry_folders, exported_folder, find, hub_cache, models_dir
from specdemo.models.checks import check_pair
from specdemo.models.devices import in_units
from specdemo.models.hub import download
from specdemo.models.library import library, resolve
from specdemo.records import Model, Progress
from specdemo.text import parameters, printable


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("models", help="list, describe, check and download models")
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    def add(name: str, action: Callable[[argparse.Namespace], None], help_: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = actions.add_parser(name, help=help_)
        command.set_defaults(command=action)
        add_models_dir(command)
        return command

    add("list", _list, "list the catalogue and the models on this machine")
    command = add("info", _info, "describe a model, or a pair from the catalogue")
    command.add_argument("name", metavar="NAME|DIR", help="a model's name or folder, or a pair's name")
    command = add("check", _check, "check whether two models fit each other, and this machine")
    command.add_argument("target", metavar="TARGET", help="a model's name or folder")
    command.add_argument("draft", metavar="DRAFT", nargs="?", help="a model's name or folder")
    command = add("stored", _stored, "list converted GGUF files on this disk, or remove one")
    command.add_argument("--remove", metavar="NAME", help="remove this one; its file stays")
    command = add("download", _download, "download a pair from the catalogue, or a repository of the Hub")
    names = "a pair from the catalogue, ORGANISATION/MODEL, or ORGANISATION/MODEL:FILE.gguf"
    command.add_argument("name", metavar="NAME", help=names)


def _list(options: argparse.Namespace) -> None:
    models, directory = library(options.models_dir), options.models_dir
    pairs = [(entry, entry_folders(entry, directory)) for entry in catalogue()]
    catalogue_table = _table("Catalogue", "name", "draft", "prompts", "disk", "memory", "state")
    for entry, folders in pairs:
        sizes = (f"~{in_units(size)}" for size in (entry.disk_bytes, entry.memory_bytes))
        catalogue_table.add_row(entry.name, entry.kind, entry.prompts, *sizes, _state(entry, folders))
    local_table = _table("On this machine", "name", "architecture", "parameters", "weights", "on disk")
    for model in models.models:
        size = in_units(model.weight_bytes or 0)
        facts = (model.name, model.architecture, parameters(model.parameters), model.weights, size)
        local_table.add_row(*map(printable, facts))  # escaped before columns get their widths
    console = safe_console()
    console.print(catalogue_table)
    console.print("Sizes are estimates. `models info NAME` shows the models, their licences and notes.", style="dim")
    console.print(local_table)
    for refused in models.unusable:
        console.print(f"{refused.name}: {refused.reason}", style="dim")
    places = f"Your own models: {models_dir(directory)}\nThe Hub's: {hub_cache()}"
    console.print(places, style="dim", soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    """Return a table whose names are never cut; in 80 columns, other columns wrap."""
    wrapping = (Column(name, no_wrap=name == "name", overflow="fold") for name in columns)
    return Table(*wrapping, title=title, box=SIMPLE, title_justify="left", padding=(0, 1, 0, 0), show_edge=False)


def _state(entry: Entry, folders: tuple[Path | None, ...]) -> str:
    if not entry.supported:
        return "not supported"
    missing = [source for source, folder in zip(entry.sources, folders, strict=True) if folder is None]
    if not missing:
        return "here"
    word = "to convert" if any(source.format == "convert" for source in missing) else "to download"
    return f"{word}, gated" if any(source.gated for source in missing) else word


def _info(options: argparse.Namespace) -> None:
    entry = next((entry for entry in catalogue() if entry.name == options.name), None)
    _print_facts(_model_facts(resolve(options.name, options.models_dir)) if entry is None else _pair_facts(entry))


def _print_facts(*columns: dict[str, str]) -> None:
    table = Table(box=None, show_header=False)
    for name in columns[0]:
        table.add_row(name, *(printable(column.get(name, "")) for column in columns))
    safe_console().print(table)


def _model_facts(model: Model) -> dict[str, str]:
    return {
        "name": model.name,
        "folder": str(model.path),
        "architecture": model.architecture,
        "parameters": parameters(model.parameters),
        "precision": model.weights,
        "stored as": converted.stored_form(model) or "as it is",
        "on disk": in_units(model.weight_bytes or 0),
        "vocabulary": f"{model.vocabulary} tokens",
        "context": f"{model.context_length} tokens",
        "chat template": "yes" if model.chat_template else "no",
        "usable as target": "yes" if model.head is None else f"no: it is {DRAFT_KINDS[model.head].noun}",
    }


def _pair_facts(entry: Entry) -> dict[str, str]:
    facts = {"pair": entry.title, "supported": entry.reason or "yes"}
    for role, source in zip(("target", "draft"), entry.sources, strict=True):
        location = source.repository or str(source.path)
        facts[role] = f"{location}, {source.weights}, ~{in_units(source.disk_bytes)}, {source.license}"
        if source.gated:
            facts[role] += "; gated: accept its licence on the Hub and set HF_TOKEN"
        if source.format == "convert":
            facts[f"{role}'s export"] = source.export_command(str(exported_folder(source)))
    facts["draft is"] = "a language model" if entry.kind == "model" else DRAFT_KINDS[entry.kind].noun
    facts |= {"memory": f"~{in_units(entry.memory_bytes)}", "prompts": entry.prompts}
    return facts | ({"notes": entry.notes} if entry.notes else {})


def _check(options: argparse.Namespace) -> None:
    target, draft = (name and resolve(name, options.models_dir) for name in (options.target, options.draft))
    draft = draft and converted.as_draft(draft)
    show_conversion(converted.convert_models([target, draft]))
    report = check_pair(target, draft)
    _print_facts(*(_model_facts(model) for model in (target, draft) if model is not None))
    if report.same_tokenizer is not None:
        print("Tokenizers: identical." if report.same_tokenizer else "Tokenizers: different.")
    for engine in report.engines:
        needed, free = in_units(engine.memory_needed), in_units(report.memory_free)
        safe_console().print(f"{engine.summary} Memory: about {needed}, {free} free.")
    if not report.fits:
        raise PairError(report.reason)


def _stored(options: argparse.Namespace) -> None:
    if options.remove is not None:
        freed = converted.remove_stored(options.remove)
        if not freed:
            raise UsageError(
                f"Nothing called {options.remove!r} is stored; 'specdemo models stored' lists the names."
            )
        print(f"Removed {printable(options.remove)}: {in_units(freed)} are free again.")
        return
    table = _table(f"Converted files in {converted.conversions()}", "name", "on disk")
    for stored in converted.stored_conversions():
        table.add_row(printable(stored.name), in_units(stored.bytes))
    safe_console().print(table)


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
            _show_download(source.name or source.address, download(source.address, revision=source.revision))
    if missing:
        raise FetchError(f"The rest of this pair must be exported with optimum-intel; run: {' && '.join(missing)}")


def _show_download(name: str, states: Iterator[Progress[Path | None]]) -> None:
    with progress(f"downloading {name}") as show:
        for state in states:
            left = "" if state.seconds_left is None else f", {state.seconds_left:.0f} s left"
            show(f"downloading {name}", f", {in_units(state.done)} of {in_units(state.total)}{left}")
    print(f"{name} is on this machine; name it with --target or --draft.")
