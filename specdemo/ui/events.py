"""The page's events: their options in Gradio, and the updates of a long job."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import gradio as gr

from specdemo.errors import SpecdemoError
from specdemo.records import Phase, Progress
from specdemo.ui.parts import alert, describe, notice, progress_html
from specdemo.ui.session import Sessions
from specdemo.worker import Job

Stop = Callable[[gr.Request], None]
"""Callback that stops one of a visitor's activities."""
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
"""Options of events that show their own progress."""
PRIVATE: dict[str, Any] = {**QUIET, "queue": False}
"""Options of events that run immediately, outside the queue."""
ENGINE: dict[str, Any] = {"concurrency_id": "engine", "concurrency_limit": 1}
"""Queue for everything that uses the engine: two jobs at once would distort each other's clocks."""
FILES: dict[str, Any] = {"concurrency_id": "files", "concurrency_limit": 2}
"""Queue for parsing and drawing, each in a process of its own, which ends when its visitor leaves."""
WAITING = "Waiting for the machine …"
"""Message of a job that waits for others in the engine's queue."""


def on_engine(button: gr.Button, callback: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Connect a button to a job of the engine, and return the event.

    The first output shows messages: until the job's first, that it waits for others.
    """
    button.click(partial(notice, WAITING), outputs=outputs[0], **PRIVATE)
    return button.click(callback, inputs, outputs, **QUIET, **ENGINE)


def check_session(session_open: bool) -> None:
    """Check that the server still holds this visitor's pair and chat, which it keeps only for the latest visitors.

    Raises:
        gr.Error: the session has expired, and its state is that of a new visitor.
    """
    if not session_open:
        raise gr.Error("This session has expired. Reload the page.", print_exception=False)


_UPDATE_SECONDS = 1.0  # each update takes time from an engine on this machine


class JobUpdate(NamedTuple):
    """Updates of message and board, and the job's latest state."""

    message: Any
    board: Any
    state: Any


def job_updates(
    sessions: Sessions,
    visitor: str,
    activity: str,
    job: Job,
    show: Callable[[Any], str],
    kept: str = "finished results are kept",
) -> Iterator[JobUpdate]:
    """Yield updates while a job runs, and at its end.

    If it stops or fails, finished results stay on the board, as the message says with `kept`.
    """
    state: Progress[Any] | None = None
    due = 0.0
    try:
        for progress in sessions.measure(visitor, activity, job):
            if progress is None:
                yield JobUpdate(gr.skip(), gr.skip(), state)
                continue
            if isinstance(progress, Phase):
                yield JobUpdate(describe(progress), gr.skip(), state)
                continue
            state = progress
            if monotonic() >= due:
                due = monotonic() + _UPDATE_SECONDS
                yield JobUpdate(_progress(state), show(state), state)
    except SpecdemoError as error:
        yield JobUpdate(alert(error), show(state) if state is not None else gr.skip(), state)
        return
    if state is None:
        yield JobUpdate(notice("Stopped before anything was measured."), gr.skip(), None)
        return
    stopped = state.done < state.total
    message = notice(f"Stopped after {state.done} of {state.total}; {kept}.") if stopped else ""
    yield JobUpdate(message, show(state), state)


def _progress(state: Progress[Any]) -> str:
    text = f"{state.doing.capitalize()}: {state.done} of {state.total}"
    return progress_html(text, state.done, state.total, state.seconds_left)


def job_buttons(label: str, *, busy: bool) -> list[dict[str, Any]]:
    """Return updates of the button that starts work, and of the one that stops it."""
    return [gr.update(interactive=not busy, value="Working …" if busy else label), gr.update(visible=busy)]
