"""Small parts of the page as HTML: the header, tables, and messages on what is happening or went wrong."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from specdemo.errors import SpecdemoError
from specdemo.models.devices import draft_device
from specdemo.presentation.figures import parameters
from specdemo.progress import Phase
from specdemo.records import Model, ModelPair
from specdemo.strategies import SERVERS

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
    """A phase as a message."""
    return notice(phase_words(phase))


def phase_words(phase: Phase) -> str:
    """A phase in words, such as "Warming up (1 of 2) …"."""
    of = " tokens" if phase.name == "prefilling" else ""
    parts = f" ({phase.done} of {phase.total}{of})" if phase.total else ""
    seconds = f" ({phase.seconds:.0f} s)" if phase.seconds >= 1 else ""
    return f"{PHASES[phase.name]}{parts} …{seconds}"


def progress_html(text: str, done: float, total: float, seconds_left: float | None) -> str:
    """Progress, with a bar."""
    if seconds_left is not None:
        minutes, seconds = divmod(round(seconds_left), 60)
        text += f", about {f'{minutes} min ' if minutes else ''}{seconds} s left"
    return str(_PROGRESS.format(text=text, done=done, total=max(total, 1)))


def notice(text: str) -> str:
    """A passing message as HTML."""
    return str(Markup('<p role="status">{}</p>').format(text))


def code_html(lines: str) -> str:
    """Lines of code as HTML."""
    return str(Markup('<pre role="status" tabindex="0">{}</pre>').format(lines))


def alert(error: SpecdemoError) -> str:
    """An error as HTML."""
    return str(Markup('<p role="alert">{}</p>').format(error))


_TABLE = Markup("<table><thead>{head}</thead><tbody>{rows}</tbody></table>")
_ROW = Markup("<tr>{}</tr>")
_HEAD = Markup("<th>{}</th>")
_CELL = Markup("<td>{}</td>")


def table_html(head: Sequence[str], rows: Iterable[Sequence[str]], *, titled: bool = False) -> Markup:
    """A table; `titled`: the first cell of each row is its title."""

    def row(cells: Sequence[str], titles: int) -> Markup:
        return _ROW.format(Markup("").join((_HEAD if at < titles else _CELL).format(c) for at, c in enumerate(cells)))

    body = Markup("").join(row(cells, int(titled)) for cells in rows)
    return _TABLE.format(head=row(head, len(head)), rows=body)


_HEADER = Markup('<header><h1>specdemo</h1><span title="{0}">{0}</span></header>')


def header_html(pair: ModelPair) -> str:
    """Name, and what runs where."""
    if pair.target.server is not None:
        return str(_HEADER.format(f"{pair.name} · served by {SERVERS[pair.target.server]}"))
    runtime = pair.runtime
    target = f"target {_model(pair.target)} on {runtime.device}"
    draft = f"draft {_model(pair.draft)} on {draft_device(runtime)}" if pair.draft else "no draft"
    return str(_HEADER.format(f"{pair.name} · {target} · {draft} · {_precision(runtime.precision)}"))


def _precision(asked: str) -> str:
    """As requested; what the device actually uses is reported with every run."""
    return "default precision" if asked == "default" else f"precision {asked}"


def _model(model: Model) -> str:
    return f"{parameters(model.parameters)} {model.weights}"
