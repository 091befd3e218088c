"""Parts of the page as HTML."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from specdemo.errors import SpecdemoError
from specdemo.files import ASSETS
from specdemo.models.catalogue import Entry, Source, bundled_prompts, initial_settings
from specdemo.models.checks import PairReport
from specdemo.models.converted import stored_form
from specdemo.models.devices import draft_device, in_units
from specdemo.records import Model, ModelPair, Phase, Progress
from specdemo.results.summary import parameters
from specdemo.strategies import DRAFT_KINDS, ENGINES, SERVERS
from specdemo.text import without_folders

PHASES = {
    "converting": "Converting the GGUF file, once",
    "loading": "Loading the models",
    "calibrating": "Measuring step costs",
    "warming up": "Warming up",
    "prefilling": "Reading the prompt",
}
_PROGRESS = Markup(
    '<div class="progress" role="status"><p>{text}</p><progress value="{done}" max="{total}"></progress></div>'
)


def describe(phase: Phase) -> str:
    return notice(phase_words(phase))


def phase_words(phase: Phase) -> str:
    of = " tokens" if phase.name == "prefilling" else ""
    parts = f" ({phase.done} of {phase.total}{of})" if phase.total else ""
    seconds = f" ({phase.seconds:.0f} s)" if phase.seconds >= 1 else ""
    return f"{PHASES[phase.name]}{parts} …{seconds}"


def progress_html(text: str, done: float, total: float, seconds_left: float | None) -> str:
    if seconds_left is not None:
        minutes, seconds = divmod(round(seconds_left), 60)
        text += f", {f'{minutes} min ' if minutes else ''}{seconds} s left" if minutes or seconds else ", finishing"
    return str(_PROGRESS.format(text=text, done=done, total=max(total, 1)))


def notice(text: str) -> str:
    return str(Markup('<p role="status">{}</p>').format(text))


def code_html(lines: str) -> str:
    return str(Markup('<pre role="status" tabindex="0">{}</pre>').format(lines))


def alert(error: SpecdemoError) -> str:
    """Return an error as HTML, its cause folded and without the server's folders, and log it."""
    error.log()
    text = Markup('<p role="alert">{}</p>').format(error)
    if error.cause:
        folded = Markup("<details><summary>Cause</summary><pre>{}</pre></details>")
        text += folded.format(without_folders(error.cause))
    return str(text)


_HEADER = Markup('<header><h1>specdemo</h1><span tabindex="0" data-meaning="{}">{}</span></header>')


def header_html(pair: ModelPair) -> str:
    """The pair, where it runs and its precision; the details in `glossary.js`'s way."""
    if pair.target.server is not None:
        words = f"{pair.name} · remote engine: {SERVERS[pair.target.server]}"
        return str(_HEADER.format(words, words))
    device, draft_on = pair.runtime.device, draft_device(pair.runtime)
    draft = f"draft {_model(pair.draft)} on {draft_on}" if pair.draft else "no draft"
    details = f"target {_model(pair.target)} on {device}, {draft}"
    devices = f"{device} + {draft_on}" if pair.draft and draft_on != device else device
    return str(_HEADER.format(details, f"{pair.name} · {devices} · {_precision(pair.runtime.precision)}"))


def _precision(requested: str) -> str:
    """The requested one; every run reports the one that its device uses."""
    return "default precision" if requested == "default" else f"precision {requested}"


def _model(model: Model) -> str:
    return f"{parameters(model.parameters)} {model.weights}"


_GROUPS = {"wins": "Speculation wins", "close": "Nearly even", "loses": "Speculation loses"}
_EXPECTATIONS = ASSETS / "expectations.json"
_GROUP = Markup("<section><h3>{title}</h3>{entries}</section>")
_ENTRY = Markup('<button type="button" data-prompt="{prompt}">{prompt}{measured}</button>')
_WHERE = Markup("<p>Measured on {}; other machines differ.</p>")
_MEASURED = Markup(" <small>{:.2f}×</small>")


def examples_html(pair: ModelPair) -> str:
    prompts, (measured, where) = bundled_prompts(pair.target.prompts), _measured(pair)
    if not all(prompt in measured for prompt in prompts):
        return str(_entries(prompts, {}))
    groups = {
        title: [prompt for prompt in prompts if measured[prompt]["expect"] == expected]
        for expected, title in _GROUPS.items()
    }
    return str(
        Markup("").join(
            _GROUP.format(title=title, entries=_entries(held, measured)) for title, held in groups.items() if held
        )
        + _WHERE.format(where)
    )


def _entries(prompts: Sequence[str], measured: Mapping[str, dict[str, Any]]) -> Markup:
    return Markup("").join(
        _ENTRY.format(prompt=prompt, measured=_MEASURED.format(measured[prompt]["speedup"]) if measured else "")
        for prompt in prompts
    )


def _measured(pair: ModelPair) -> tuple[dict[str, dict[str, Any]], str]:
    """Speedups by prompt, measured by `tests/benchmarks`, and the machine; empty if unknown for this engine."""
    if not _EXPECTATIONS.is_file() or pair.draft is None:
        return {}, ""
    found = json.loads(_EXPECTATIONS.read_text(encoding="utf-8")).get(f"{pair.target.name}|{pair.draft.name}", {})
    if found.get("engine") != initial_settings(pair).engine:
        return {}, ""
    return {entry["prompt"]: entry for entry in found.get("prompts", [])}, found.get("measured_on", "")


_CARD = Markup(
    '<article class="card entry" data-name="{name}"><h3>{title}</h3><p>{about}</p><dl>{models}</dl>{notes}{action}'
    "</article>"
)
_MODEL = Markup("<div><dt>{role}</dt><dd>{name}<small>{facts}</small></dd></div>")
_NOTE = Markup("<p>{}</p>")
_BUTTON = Markup('<button type="button" data-action="{action}">{text}</button>')
_OFFER = Markup('<div class="offer" data-name="{name}">{action}</div>')
_COMMAND = Markup("<p>In a terminal: <code>{}</code></p>")


def cards_html(able: Sequence[str], unable: Sequence[str] = ()) -> str:
    """Those of pairs that cannot run on this machine are folded."""
    shown = f'<div class="entries">{"".join(able)}</div>'
    if not unable:
        return shown
    title = f"{len(unable)} that cannot run here: too large for this machine's memory, or not supported"
    return f'{shown}<details><summary>{title}</summary><div class="entries">{"".join(unable)}</div></details>'


def card_html(entry: Entry, here: Sequence[bool], *, downloads: bool, own_directory: bool = False) -> str:
    """`here`: which of its models are present. `own_directory`: the user chose a models folder."""
    models = (
        _MODEL.format(role=role, name=source.repository or "comes with specdemo", facts=_facts(source))
        for role, source in zip(("target", "draft"), entry.sources, strict=False)
    )
    needs = f"{in_units(entry.disk_bytes)} of disk, up to {in_units(entry.memory_bytes)} of memory"
    about = f"{DRAFT_KINDS[entry.kind].noun.partition(' ')[2]} · {entry.prompts} · {needs}"
    notes = _NOTE.format(entry.notes) if entry.notes else Markup("")
    action = _action(entry, here, downloads=downloads, own_directory=own_directory)
    return str(
        _CARD.format(
            name=entry.name,
            title=entry.title,
            about=about,
            models=Markup("").join(models),
            notes=notes,
            action=action,
        )
    )


def _facts(source: Source) -> str:
    doubts = {
        "needs conversion": source.format == "convert",
        "gated: needs a token": source.gated,
    }
    facts = [source.weights, in_units(source.disk_bytes), source.license]
    return " · ".join([*facts, *(doubt for doubt, holds in doubts.items() if holds)])


def _action(entry: Entry, here: Sequence[bool], *, downloads: bool, own_directory: bool) -> Markup:
    if not entry.supported:
        return _NOTE.format(entry.reason or "")
    if all(here):
        return _BUTTON.format(action="select", text="Use this pair")
    missing = [source for source, is_here in zip(entry.sources, here, strict=True) if not is_here]
    fetched = [source for source in missing if source.format != "convert"]
    steps = Markup("")
    if fetched and downloads:
        part = "" if len(fetched) == len(here) else "the target, " if fetched[0] is entry.target else "the draft, "
        size = in_units(sum(source.disk_bytes for source in fetched))
        steps += _BUTTON.format(action="download", text=f"Download {part}{size}")
    elif fetched:
        steps += _COMMAND.format(f"python -m specdemo models download {entry.name}")
    folder = "DIR" if own_directory else "~/.cache/specdemo/models"  # visitors do not see the path
    for source in missing:
        if source.format == "convert":
            steps += _COMMAND.format(source.export_command(f"{folder}/{source.exported_name}"))
    return steps


def offer_html(name: str) -> str:
    return str(_OFFER.format(name=name, action=_BUTTON.format(action="download", text=f"Download {name}")))


def download_html(repository: str, progress: Progress[Path | None]) -> str:
    text = f"{repository}: {in_units(progress.done)} of {in_units(progress.total)}"
    return progress_html(text, progress.done, progress.total, progress.seconds_left)


_TABLE = Markup("<table>{}</table>")
_ROW = Markup("<tr><th>{}</th>{}</tr>")
_CELL = Markup("<td>{}</td>")
_NO_DRAFT = "No matching draft found. Use prompt lookup, or see docs/drafts.md for how to make one."


def report_html(report: PairReport) -> str:
    """A table with a column for each model, and remarks below."""
    models = [model for model in (report.target, report.draft) if model is not None]
    rows = {
        "": ("target", "draft"),
        "architecture": [model.architecture for model in models],
        "parameters": [parameters(model.parameters) for model in models],
        "weights": [model.weights for model in models],
        "vocabulary": [_size(model.vocabulary) for model in models],
        "context": [_size(model.context_length) for model in models],
        "chat template": ["yes" if model.chat_template else "no" for model in models],
    }
    table = Markup("").join(
        _ROW.format(title, Markup("").join(map(_CELL.format, cells[: len(models)]))) for title, cells in rows.items()
    )
    remarks = [*_remarks(report), *([_NO_DRAFT] if report.draft is None else [])]
    return str(_TABLE.format(table) + Markup("").join(map(_NOTE.format, remarks)))


def _size(number: int | None) -> str:
    return f"{number:,}" if number else "unknown"


def _remarks(report: PairReport) -> list[str]:
    free = in_units(report.memory_free)
    stored = stored_form(report.target)
    lines = [f"Its weights are stored as {stored}; Weights, under Runtime, changes that."] if stored else []
    for engine in report.engines:
        if not ENGINES[engine.engine].local:
            lines.append("A server runs it, so it takes no memory here.")
            continue
        needed = in_units(engine.memory_needed)
        lines.append(f"{engine.summary} It needs up to {needed} of memory (estimate); {free} is free.")
    return lines
