"""Parts of the page as HTML: header and messages, the menu of examples, the catalogue and the facts about a pair."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from specdemo.errors import SpecdemoError
from specdemo.files import ASSETS
from specdemo.models.catalogue import Entry, Source, bundled_prompts, initial_settings
from specdemo.models.checks import PairReport
from specdemo.models.converted import stored_form
from specdemo.models.devices import draft_device, in_units, memory_free
from specdemo.records import Model, ModelPair, Phase, Progress
from specdemo.strategies import DRAFT_KINDS, ENGINES, SERVERS
from specdemo.summary import parameters
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
    """Describe a phase, such as "Warming up (1 of 2) …"."""
    of = " tokens" if phase.name == "prefilling" else ""
    parts = f" ({phase.done} of {phase.total}{of})" if phase.total else ""
    seconds = f" ({phase.seconds:.0f} s)" if phase.seconds >= 1 else ""
    return f"{PHASES[phase.name]}{parts} …{seconds}"


def progress_html(text: str, done: float, total: float, seconds_left: float | None) -> str:
    """Return a progress bar below its text, to which the time left, if known, is added."""
    if seconds_left is not None:
        minutes, seconds = divmod(round(seconds_left), 60)
        text += f", about {f'{minutes} min ' if minutes else ''}{seconds} s left"
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


_HEADER = Markup('<header><h1>specdemo</h1><span title="{0}">{0}</span></header>')


def header_html(pair: ModelPair) -> str:
    if pair.target.server is not None:
        return str(_HEADER.format(f"{pair.name} · remote engine: {SERVERS[pair.target.server]}"))
    runtime = pair.runtime
    target = f"target {_model(pair.target)} on {runtime.device}"
    draft = f"draft {_model(pair.draft)} on {draft_device(runtime)}" if pair.draft else "no draft"
    return str(_HEADER.format(f"{pair.name} · {target} · {draft} · {_precision(runtime.precision)}"))


def _precision(requested: str) -> str:
    """Name the requested precision; every run reports the one that its device uses."""
    return "default precision" if requested == "default" else f"precision {requested}"


def _model(model: Model) -> str:
    return f"{parameters(model.parameters)} {model.weights}"


_GROUPS = {"wins": "Speculation wins", "close": "Close", "loses": "Speculation loses"}
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
    """Return this pair's speedup by prompt, as measured by `tests/benchmarks`, and the machine; empty if unknown.

    It is unknown where the pair starts in another engine than the measured one.
    """
    if not _EXPECTATIONS.is_file() or pair.draft is None:
        return {}, ""
    found = json.loads(_EXPECTATIONS.read_text(encoding="utf-8")).get(f"{pair.target.name}|{pair.draft.name}", {})
    if found.get("engine") != initial_settings(pair).engine:
        return {}, ""
    return {entry["prompt"]: entry for entry in found.get("prompts", [])}, found.get("measured_on", "")


_CARD = Markup(
    '<article class="card entry" data-name="{name}"><h3>{title}</h3><div class="badges">{badges}</div>'
    "<dl>{models}</dl><p>{needs}</p>{notes}{action}</article>"
)
_BADGE = Markup('<span class="badge {kind}">{text}</span>')
_MODEL = Markup("<div><dt>{role}</dt><dd>{name}<small>{facts}</small></dd></div>")
_NOTE = Markup("<p>{}</p>")
_BUTTON = Markup('<button type="button" data-action="{action}">{text}</button>')
_OFFER = Markup('<div class="offer" data-name="{name}">{action}</div>')
_COMMAND = Markup("<p>In a terminal: <code>{}</code></p>")


def cards_html(able: Sequence[str], unable: Sequence[str] = ()) -> str:
    """Return cards side by side; those of pairs that cannot run on this machine are folded."""
    shown = f'<div class="entries">{"".join(able)}</div>'
    if not unable:
        return shown
    title = f"{len(unable)} that cannot run here: too large for this machine's memory, or not supported"
    return f'{shown}<details><summary>{title}</summary><div class="entries">{"".join(unable)}</div></details>'


def card_html(entry: Entry, here: Sequence[bool], *, downloads: bool, own_directory: bool = False) -> str:
    """Return one entry. `here`: which of its models are present. `own_directory`: the user chose a models folder."""
    models = Markup("").join(
        _MODEL.format(role=role, name=_title(source), facts=_facts(source))
        for role, source in zip(("target", "draft"), entry.sources, strict=False)
    )
    needs = (
        f"Needs about {in_units(entry.disk_bytes)} of disk and up to {in_units(entry.memory_bytes)} of memory; "
        f"{in_units(memory_free())} is free now."
    )
    notes = _NOTE.format(entry.notes) if entry.notes else Markup("")
    return str(
        _CARD.format(
            name=entry.name,
            title=entry.title,
            badges=Markup("").join(_badges(entry, all(here))),
            models=models,
            needs=needs if entry.supported else "",
            notes=notes,
            action=_action(entry, here, downloads=downloads, own_directory=own_directory),
        )
    )


def _title(source: Source) -> str:
    return source.repository or "comes with specdemo"


def _facts(source: Source) -> str:
    facts = [source.weights, in_units(source.disk_bytes), source.license]
    if source.format == "convert":
        facts.append("needs conversion")
    if source.gated:
        facts.append("gated: needs a token")
    return " · ".join(facts)


def _badges(entry: Entry, complete: bool) -> list[Markup]:
    found = []
    if not entry.supported:
        found.append(_BADGE.format(kind="no", text="not supported"))
    elif complete:
        found.append(_BADGE.format(kind="yes", text="on this machine"))
    if entry.kind != "model":
        found.append(_BADGE.format(kind="", text=DRAFT_KINDS[entry.kind].noun.partition(" ")[2]))
    found.append(_BADGE.format(kind="", text=entry.prompts))
    return found


def _action(entry: Entry, here: Sequence[bool], *, downloads: bool, own_directory: bool) -> Markup:
    folder = "DIR" if own_directory else "~/.cache/specdemo/models"  # visitors do not see the path
    if not entry.supported:
        return _NOTE.format(entry.reason or "")
    if all(here):
        return _BUTTON.format(action="select", text="Use this pair")
    missing = [source for source, is_here in zip(entry.sources, here, strict=True) if not is_here]
    steps = Markup("")
    fetched = [source for source in missing if source.format != "convert"]
    if fetched and downloads:
        size = in_units(sum(source.disk_bytes for source in fetched))
        steps += _BUTTON.format(action="download", text=f"Download {_which(entry, fetched)}{size}")
    elif fetched:
        steps += _COMMAND.format(f"python -m specdemo models download {entry.name}")
    for source in missing:
        if source.format == "convert":
            steps += _COMMAND.format(source.export_command(f"{folder}/{source.exported_name}"))
    return steps


def _which(entry: Entry, sources: Sequence[Source]) -> str:
    if len(sources) == len(entry.sources):
        return ""
    return f"the {'target' if sources[0] is entry.target else 'draft'}, "


def offer_html(name: str) -> str:
    """Return a button that downloads a model which is not on this machine."""
    return str(_OFFER.format(name=name, action=_BUTTON.format(action="download", text=f"Download {name}")))


def download_html(repository: str, progress: Progress[Path | None]) -> str:
    text = f"{repository}: {in_units(progress.done)} of {in_units(progress.total)}"
    return progress_html(text, progress.done, progress.total, progress.seconds_left)


_TABLE = Markup("<table><thead>{head}</thead><tbody>{rows}</tbody></table>")
_ROW = Markup("<tr>{}</tr>")
_HEAD = Markup("<th>{}</th>")
_CELL = Markup("<td>{}</td>")


def table_html(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table; the first cell of each row is its title."""

    def row(cells: Sequence[str], titles: int) -> Markup:
        return _ROW.format(Markup("").join((_HEAD if at < titles else _CELL).format(c) for at, c in enumerate(cells)))

    return _TABLE.format(head=row(head, len(head)), rows=Markup("").join(row(cells, 1) for cells in rows))


def report_html(report: PairReport) -> str:
    models = [model for model in (report.target, report.draft) if model is not None]
    rows = zip(_ROWS, *map(_values, models), strict=True)
    table = table_html(("", "target", "draft")[: len(models) + 1], rows)
    remarks = Markup("").join(_NOTE.format(text) for text in _remarks(report))
    return str(table + remarks + (_NO_DRAFT if report.draft is None else Markup("")))


_NO_DRAFT = _NOTE.format("No matching draft found. Use prompt lookup, or see docs/drafts.md for how to make one.")
_ROWS = ("architecture", "parameters", "weights", "vocabulary", "context", "chat template")


def _values(model: Model) -> tuple[str, ...]:
    sizes = (model.vocabulary, model.context_length)
    vocabulary, context = (f"{size:,}" if size else "unknown" for size in sizes)
    template = "yes" if model.chat_template else "no"
    return model.architecture, parameters(model.parameters), model.weights, vocabulary, context, template


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
