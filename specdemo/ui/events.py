"""Gradio events of several tabs: their options, the engine's jobs with their progress, and visitors' files."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import gradio as gr

from specdemo.child import Failure, Limits, run_limited
from specdemo.errors import FileError
from specdemo.records import Phase, Progress
from specdemo.text import counted
from specdemo.ui.parts import alert, notice, phase_text, progress_html
from specdemo.ui.session import Sessions, as_failure

JOB_UPDATE_SECONDS = 1.0  # between updates of a measurement, which are larger than those of a race
T = TypeVar("T")

# For events that visitors' programs cannot call and that show their own progress.
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# For quick events, which do not wait for others.
AT_ONCE: dict[str, Any] = {**PRIVATE, "queue": False}
# The engine takes one job at a time: two would distort each other's clocks.
ENGINE: dict[str, Any] = {"concurrency_id": "engine", "concurrency_limit": 1}
# Visitors' files are read and drawn in child processes, which end when their visitors leave.
FILES: dict[str, Any] = {"concurrency_id": "files", "concurrency_limit": 2}
FILE_LIMITS = Limits()  # of such a process
WAITING = "Waiting for the machine …"


def queue_for_engine(
    button: gr.Button, callback: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any], **options: Any
) -> Any:
    """Queue a callback when the button is clicked. Its first output is a message, which says that it is waiting."""
    button.click(partial(notice, WAITING), outputs=outputs[0], **AT_ONCE)
    return button.click(callback, inputs, outputs, **options, **PRIVATE, **ENGINE)


def stop_on(event: Callable[..., Any], sessions: Sessions, activity: str) -> None:
    def stop(request: gr.Request) -> None:
        sessions.stop(str(request.session_hash), activity)

    event(stop, **AT_ONCE)


def check_session(session_open: bool) -> None:
    """Raise gr.Error if the server has dropped this visitor's state; it keeps that of the latest ones."""
    if not session_open:
        raise gr.Error("This session has expired. Reload the page.", print_exception=False)


def event_value(event: gr.EventData, name: str) -> Any:
    """Return a value that the page's script sent with an event, or None. Anyone can send anything: check it."""
    with suppress(AttributeError, TypeError):
        return getattr(event, name)
    return None


def job_updates(
    steps: Iterator[Any],
    update: Callable[[Any, Any], list[Any]],
    show: Callable[[Any], Any] = lambda state: gr.skip(),
    after_stop: str = "finished results are kept",
) -> Generator[list[Any], None, Progress[Any] | None]:
    """Yield `update` of message and board for the steps of `Sessions.measure`, and return the last state. Finished
    results stay on the board even if the job fails.
    """
    state: Progress[Any] | None = None
    due = arrived = 0.0
    try:
        for progress in steps:
            if isinstance(progress, Phase):
                yield update(notice(phase_text(progress)), gr.skip())
                continue
            if progress is not None:
                state, arrived = progress, monotonic()
            if state is not None and monotonic() >= due:
                due = monotonic() + JOB_UPDATE_SECONDS
                board = gr.skip() if progress is None else show(state)
                yield update(_progress(state, monotonic() - arrived), board)
            elif progress is None:
                yield update(gr.skip(), gr.skip())
        message = ""
        if state is None:
            message = notice("Stopped before anything was measured.")
        elif state.done < state.total:
            message = notice(f"Stopped after {_done(state)}; {after_stop}.")
    except Exception as error:  # whatever it is, the buttons change back
        message = alert(as_failure(error, "The measurement failed"))
    yield update(message, gr.skip() if state is None else show(state))
    return state


def _progress(state: Progress[Any], age: float) -> str:
    """`age`: seconds since the state arrived. Within a time limit, the bar shows the time."""
    text, seconds_left = f"{state.doing.capitalize()}: {_done(state)}", state.seconds_left
    if seconds_left is not None:
        seconds_left = max(seconds_left - age, 0.0)
    if state.limit is None or seconds_left is None:
        return progress_html(text, state.done, state.total, seconds_left)
    return progress_html(text, state.limit - seconds_left, state.limit, seconds_left)


def _done(state: Progress[Any]) -> str:
    return f"{state.done} of {state.total}" if state.limit is None else counted(state.done, "run")


def job_buttons(label: str, *, busy: bool) -> list[dict[str, Any]]:
    return [gr.update(interactive=not busy, value="Working …" if busy else label), gr.update(visible=busy)]


def run_in_child(
    work: Callable[..., T], *arguments: Any, waiting: list[Any], what: str, otherwise: str
) -> Generator[list[Any], None, T]:
    """Run `work` on a visitor's file in a child process with limits, and return its result.

    Until then, yield copies of `waiting` (Gradio changes them), so that Gradio notices a visitor who leaves. Raises
    the work's SpecdemoError, or a FileError that begins with `what` and ends with `otherwise`.
    """
    failure = Failure(FileError, what, otherwise)
    steps = run_limited(work, *arguments, name="specdemo file", failure=failure, limits=FILE_LIMITS)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        yield deepcopy(waiting)
