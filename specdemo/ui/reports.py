"""What the Benchmark and Load tabs have in common: widgets, a journal, a job that keeps its rows there, files."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gradio as gr
from markupsafe import Markup

from specdemo.bench.files import Report, write
from specdemo.bench.journal import Heading, Journal
from specdemo.errors import SpecdemoError
from specdemo.models.places import own_cache, writable
from specdemo.ui.boards.report import report_board
from specdemo.ui.events import ENGINE, PRIVATE, QUIET, Stop
from specdemo.ui.html.messages import alert, notice
from specdemo.ui.jobs import measured, working
from specdemo.ui.session import Sessions
from specdemo.ui.views import view
from specdemo.worker import Job

_SUITE = Markup(
    "<p>Prompts: {}. Your own file holds one JSON object per line, in the format of Spec-Bench or HumanEval, or "
    "<code>{{&quot;prompt&quot;: …}}</code>.</p>"
)
_JOURNALS = 50  # of runs that were not finished; older ones are deleted


class Actions(NamedTuple):
    """What starts and stops such a job, whose prompts it takes, and what it says; its elements begin with `name`."""

    name: str
    start: gr.Button
    halt: gr.Button
    file: gr.UploadButton
    message: gr.HTML


class Range(NamedTuple):
    """A slider's last value, and the one it begins with."""

    most: int
    first: int


def amounts(name: str, *, prompts: Range, repeats: Range, tokens: Range, of: str, why: str) -> list[gr.Slider]:
    """Sliders for numbers of prompts, repeats and new tokens `of` each run; `why` repeats are made."""
    return [
        gr.Slider(
            1,
            *prompts,
            step=1,
            label="Prompts",
            info="at most, taken from all tasks in turn",
            elem_id=f"{name}-limit",
        ),
        gr.Slider(1, *repeats, step=1, label="Repeats", info=why, elem_id=f"{name}-repeats"),
        gr.Slider(8, *tokens, step=8, label="New tokens", info=f"per {of}, at most", elem_id=f"{name}-tokens"),
    ]


def actions(name: str, label: str) -> Actions:
    """Make them; `label` is that of the button that starts the job."""
    with gr.Row(elem_classes="actions"):
        start = gr.Button(label, variant="primary", elem_id=f"run-{name}", scale=0, min_width=200)
        halt = gr.Button("Stop", variant="stop", elem_id=f"stop-{name}", visible=False, scale=0)
        file = gr.UploadButton(
            "Your own prompts", file_types=[".jsonl", ".json"], elem_id=f"{name}-suite", scale=0, min_width=220
        )
    suite = gr.HTML(suite_name(None), elem_id=f"{name}-suite-name")
    message = gr.HTML(elem_id=f"{name}-message", elem_classes="message")
    file.upload(suite_name, file, suite, **PRIVATE)
    return Actions(name, start, halt, file, message)


def results(act: Actions, run: Callable[..., Iterator[list[Any]]], inputs: list[Any], stop: Stop) -> None:
    """Make the board and the files, and connect all of it: `run` takes the inputs and yields what `reported` does."""
    board = view("board", f"{act.name}.html", elem_id=f"{act.name}-board")
    files = gr.File(
        label="Reports: JSON, Markdown, CSV, and HTML that opens offline",
        visible=False,
        elem_id=f"{act.name}-reports",
    )
    outputs = [act.message, board, files, act.start, act.halt]
    act.start.click(run, inputs, outputs, **QUIET, **ENGINE)
    act.halt.click(stop, **PRIVATE)


def journal_of(header: Heading, folder: str) -> Journal:
    """Where finished rows of this run are kept until it is complete, so that it can resume.

    Raises:
        SpecdemoError: nothing can be written there.
    """
    place = writable(own_cache() / folder, "Finished rows")
    for old in sorted(place.glob("*.rows.jsonl"), key=_changed, reverse=True)[_JOURNALS:]:
        old.unlink(missing_ok=True)
    return Journal(place / f"{hashlib.sha256(header.model_dump_json().encode()).hexdigest()[:16]}.rows.jsonl")


def reported(
    sessions: Sessions,
    visitor: str,
    what: str,
    job: Job,
    journal: Journal,
    report_of: Callable[[Any], Report],
    *,
    start: str,
    name: str,
) -> Iterator[list[Any]]:
    """Updates of message, board, files and buttons while such a job runs, and of its end.

    What it finds has `rows`, and is `complete` or not; then its journal goes. `start` is the label of the button that
    starts it, `name` that of the files.
    """
    idle, busy = working(start, busy=False), working(start, busy=True)
    yield [notice("Waiting for the machine …"), gr.skip(), gr.update(visible=False), *busy]
    state = None
    for update in measured(sessions, visitor, what, job, lambda progress: _board(progress.found, report_of)):
        state = update.state
        yield [update.message, update.board, gr.skip(), *busy]
    if state is None or not state.found.rows:
        yield [gr.skip(), gr.skip(), gr.skip(), *idle]
        return
    try:
        with TemporaryDirectory() as folder:
            paths = write(report_of(state.found), Path(folder) / f"{name}.json")
            if state.found.complete:
                journal.delete()
            files = gr.update(value=list(map(str, paths)), visible=True)
            yield [gr.skip(), gr.skip(), files, *idle]  # Gradio copies them before it asks for more
    except SpecdemoError as error:
        yield [alert(error), gr.skip(), gr.skip(), *idle]


def suite_name(path: str | None) -> str:
    """Whose prompts are used."""
    return str(_SUITE.format(Path(path).name if path else "the bundled suite"))


def refused(message: str, start: str) -> list[Any]:
    """Updates of the same where nothing is started, and of why."""
    return [message, gr.skip(), gr.skip(), *working(start, busy=False)]


def _board(found: Any, report_of: Callable[[Any], Report]) -> str:
    return report_board(report_of(found) if found.rows else None)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # finished meanwhile
        return 0
