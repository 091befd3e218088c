"""HTML for parts of the page; `assets/page/parts.html` holds the markup."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from specdemo.capabilities import DRAFT_KINDS, ENGINES, SERVERS
from specdemo.errors import SpecdemoError
from specdemo.exports.html import page_file
from specdemo.files import glossary
from specdemo.models.catalogue import Entry, Source, example_groups
from specdemo.models.checks import PairReport
from specdemo.models.converted import stored_form
from specdemo.models.devices import draft_device, in_units
from specdemo.records import Model, ModelPair, Phase, Progress
from specdemo.text import parameters, without_folders

PHASES = {
    "converting": "Converting a GGUF file, once",
    "loading": "Loading the models",
    "calibrating": "Measuring step costs",
    "warming up": "Warming up",
    "prefilling": "Reading the prompt",
}
_ENVIRONMENT = Environment(autoescape=True, undefined=StrictUndefined)
_TEMPLATE = _ENVIRONMENT.from_string(page_file("parts.html")).make_module({"terms": glossary()})


def html(part: str, *values: Any) -> str:
    return str(getattr(_TEMPLATE, part)(*values))


def phase_text(phase: Phase) -> str:
    unit = " tokens" if phase.name == "prefilling" else ""
    parts = f"{phase.done} %" if phase.name == "converting" else f"{phase.done} of {phase.total}{unit}"
    count = f" ({parts})" if phase.total else ""
    seconds = f" ({phase.seconds:.0f} s)" if phase.seconds >= 1 else ""
    return f"{PHASES[phase.name]}{count} …{seconds}"


def progress_html(text: str, done: float, total: float, seconds_left: float | None) -> str:
    if seconds_left is not None:
        minutes, seconds = divmod(round(seconds_left), 60)
        text += f", {f'{minutes} min ' if minutes else ''}{seconds} s left" if minutes or seconds else ", finishing"
    return html("progress", text, done, max(total, 1))


def notice(text: str) -> str:
    return html("notice", text)


def alert(error: SpecdemoError) -> str:
    """Return an error as HTML, its cause folded and without the server's folders, and log it."""
    error.log()
    return html("alert", error, without_folders(error.cause) if error.cause else "")


def header_html(pair: ModelPair) -> str:
    """Show the pair, its devices and precision; `glossary.js` shows the details."""
    drafted = "" if pair.draft is None else f" + {pair.draft.name}"
    name = pair.name.removesuffix(drafted)
    drafted = pair.name.removeprefix(name)  # empty for a pair with a name of its own
    if pair.target.server is not None:
        details = f"server: {SERVERS[pair.target.server]}"
        return html("header", f"{pair.name} · {details}", pair.name, name, drafted, details)
    device, draft_on = pair.runtime.device, draft_device(pair.runtime)
    draft = f"draft {_model(pair.draft)} on {draft_on}" if pair.draft else "no draft"
    devices = f"{device} + {draft_on}" if pair.draft and draft_on != device else device
    requested = pair.runtime.precision  # a run reports the precision that its device uses
    precision = "default precision" if requested == "default" else f"precision {requested}"
    meaning = (
        f"target {_model(pair.target)} on {device}, {draft}. "
        "Precision is that of the computation; with f32 both sides write the same text."
    )
    return html("header", meaning, pair.name, name, drafted, f"{devices} · {precision}")


def _model(model: Model) -> str:
    return f"{parameters(model.parameters)} {model.weights}"


def examples_html(pair: ModelPair) -> str:
    return html("examples", example_groups(pair.target.prompts).items())


def card(entry: Entry, present: Sequence[bool], *, downloads: bool, own_directory: bool = False) -> dict[str, Any]:
    """`present`: which of its models are on this machine. `own_directory`: the user chose a models folder."""
    needs = f"{in_units(entry.disk_bytes)} of disk, up to {in_units(entry.memory_bytes)} of memory"
    buttons, commands = _actions(entry, present, downloads=downloads, own_directory=own_directory)
    return {
        "name": entry.name,
        "title": entry.title,
        "draft": DRAFT_KINDS[entry.kind].noun.partition(" ")[2],
        "about": f"{entry.prompts} · {needs}",
        "models": [
            (role, source.repository or "comes with specdemo", _facts(source))
            for role, source in zip(("target", "draft"), entry.sources, strict=True)
        ],
        "notes": entry.notes,
        "reason": None if entry.supported else entry.reason,
        "buttons": buttons if entry.supported else [],
        "commands": commands if entry.supported else [],
    }


def _facts(source: Source) -> str:
    conversion = "needs conversion" if source.format == "convert" else ""
    access = "gated: needs a token" if source.gated else ""
    return " · ".join(filter(None, [source.weights, in_units(source.disk_bytes), source.license, conversion, access]))


def _actions(
    entry: Entry, present: Sequence[bool], *, downloads: bool, own_directory: bool
) -> tuple[list[tuple[str, str]], list[str]]:
    if all(present):
        return [("select", "Use this pair")], []
    missing = [source for source, on_disk in zip(entry.sources, present, strict=True) if not on_disk]
    ready = [source for source in missing if source.format != "convert"]
    folder = "DIR" if own_directory else "~/.cache/specdemo/models"  # visitors do not see the path
    exports = [
        source.export_command(f"{folder}/{source.exported_name}") for source in missing if source.format == "convert"
    ]
    if not ready or not downloads:
        return [], [*([f"python -m specdemo models download {entry.name}"] if ready else []), *exports]
    part = ""
    if len(ready) < len(present):
        part = "the target, " if ready[0] is entry.target else "the draft, "
    size = in_units(sum(source.disk_bytes for source in ready))
    return [("download", f"Download {part}{size}")], exports


def download_html(repository: str, progress: Progress[Path | None]) -> str:
    text = f"{repository}: {in_units(progress.done)} of {in_units(progress.total)}"
    return progress_html(text, progress.done, progress.total, progress.seconds_left)


_NO_DRAFT = "No matching draft. Use prompt lookup, or see docs/drafts.md for how to make one."


def report_html(report: PairReport) -> str:
    models = [model for model in (report.target, report.draft) if model is not None]
    rows = {
        "": ["target", "draft"][: len(models)],
        "architecture": [model.architecture for model in models],
        "parameters": [parameters(model.parameters) for model in models],
        "weights": [model.weights for model in models],
        "vocabulary": [_size(model.vocabulary) for model in models],
        "context": [_size(model.context_length) for model in models],
        "chat template": ["yes" if model.chat_template else "no" for model in models],
    }
    remarks = [*_remarks(report), *([_NO_DRAFT] if report.draft is None else [])]
    return html("report", rows.items(), remarks)


def _size(number: int | None) -> str:
    return f"{number:,}" if number else "unknown"


def _remarks(report: PairReport) -> list[str]:
    free = in_units(report.memory_free)
    roles = {"target": report.target, "draft": report.draft}
    stored = {role: stored_form(model) for role, model in roles.items() if model is not None}
    lines = [f"The {role}'s weights are stored as {form}." for role, form in stored.items() if form]
    if lines:
        lines.append("The Weights setting under Runtime changes that.")
    for engine in report.engines:
        if not ENGINES[engine.engine].local:
            lines.append("A server runs it, so it takes no memory here.")
            continue
        needed = in_units(engine.memory_needed)
        lines.append(f"{engine.summary} It needs about {needed} of memory; {free} is free.")
    return lines
