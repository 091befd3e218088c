"""Gradio events of several tabs: the values that they take, their options, the engine's jobs with their progress, and
visitors' files. Of Gradio's undocumented names this uses `Blocks.process_api` and `Blocks.get_config_file`.
"""

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, TypeVar

import gradio as gr
from gradio.components.api_component import Api
from gradio.data_classes import FileDataMeta
from pydantic import AfterValidator, FiniteFloat, TypeAdapter, ValidationError

from specdemo.child import Failure, Limits, run_limited
from specdemo.errors import FileError
from specdemo.records import Phase, Progress
from specdemo.text import counted
from specdemo.ui.parts import alert, notice, phase_text, progress_html
from specdemo.ui.server import uploads
from specdemo.ui.session import Sessions, as_failure

JOB_UPDATE_SECONDS = 1.0  # between updates of a measurement, which are larger than those of a race
T = TypeVar("T")

# For events that visitors' programs cannot call and that show their own progress.
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# For quick events, which do not wait for others.
NO_QUEUE: dict[str, Any] = {**PRIVATE, "queue": False}
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
    button.click(partial(notice, WAITING), outputs=outputs[0], **NO_QUEUE)
    return button.click(callback, inputs, outputs, **options, **PRIVATE, **ENGINE)


def stop_on(event: Callable[..., Any], sessions: Sessions, activity: str) -> None:
    def stop(request: gr.Request) -> None:
        sessions.stop(str(request.session_hash), activity)

    event(stop, **NO_QUEUE)


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


class Page(gr.Blocks):
    """Blocks that reject values which no widget can send: over HTTP, anyone can send anything."""

    def get_config_file(self) -> Any:
        # the heartbeat holds a connection per tab; a browser opens six to a host, so a seventh tab would stall all
        return super().get_config_file() | {"connect_heartbeat": False}

    async def process_api(self, block_fn: Any, inputs: list[Any], *arguments: Any, **options: Any) -> dict[str, Any]:
        if block_fn.fn is None or (options.get("iterator") is None and len(inputs) < len(block_fn.inputs)):
            raise invalid_event("The page received something unexpected")
        for block, value in zip(block_fn.inputs, inputs, strict=False):
            if not fits(block, value):
                raise invalid_event(f"{getattr(block, 'label', None) or 'A value'!r} has an unusable value")
        try:
            return await super().process_api(block_fn, inputs, *arguments, **options)
        except gr.Error as error:
            if error.print_exception:  # not one of ours
                raise invalid_event("A value is out of bounds") from error
            raise
        except Exception as error:  # Gradio would send "error: null"
            logging.getLogger(__name__).exception("an event failed")
            failed = f"This action failed ({type(error).__name__}); see the server's log."
            raise gr.Error(failed, print_exception=False) from error


def invalid_event(reason: str) -> gr.Error:
    return gr.Error(f"{reason}; correct it, or reload the page.", print_exception=False)


def _uploaded(path: str) -> str:
    """Gradio checks files of launched pages only; of mounted ones it would read any file, and fetch any URL."""
    if not os.path.isfile(path) or uploads().resolve() not in Path(path).resolve().parents:  # noqa: PTH113  never raises
        raise ValueError
    return path


class _File(gr.FileData):
    path: Annotated[str, AfterValidator(_uploaded)]
    meta: FileDataMeta  # without it, Gradio does not see a file


# Browsers never send states, and the endpoint checks its own values, which are no files.
_VALUES: dict[type[Any], Any] = {
    gr.Textbox: str, gr.Radio: str, gr.Dropdown: str | None, gr.Checkbox: bool, gr.CheckboxGroup: list[str],
    gr.Slider: FiniteFloat, gr.Number: FiniteFloat | None, gr.UploadButton: _File | None,
    Api: str | float | bool | list[str] | None,
}  # fmt: skip


def fits(block: Any, value: Any) -> bool:
    """Check the type of a widget's value; Gradio itself checks bounds and choices."""
    if isinstance(block, gr.Dropdown) and value is None:
        return bool(block.filterable)  # only these can be emptied
    try:
        TypeAdapter(_VALUES.get(type(block), Any)).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True
