"""The page's events: how Gradio learns of them, which values they accept, and what a long job sends back.

Anyone can send any JSON to any event over HTTP, without using the widgets. Values are checked here, once, so that
callbacks can rely on the types of their widgets. What does not fit is refused with a sentence, before the engine is
involved.
"""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from time import monotonic
from typing import Any, NamedTuple

import gradio as gr

from specdemo.errors import SpecdemoError
from specdemo.files import is_text
from specdemo.records import Phase, Progress
from specdemo.ui.gradio_inside import Api, CheckedBlocks, refusal
from specdemo.ui.parts import alert, describe, notice, progress_html
from specdemo.ui.session import Sessions
from specdemo.worker import Job

Stop = Callable[[gr.Request], None]
"""Ends what a visitor has started."""
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
"""Events that say themselves how far they are, if they take long."""
PRIVATE: dict[str, Any] = {**QUIET, "queue": False}
"""Such events at once, beside the queue."""
ENGINE: dict[str, Any] = {"concurrency_id": "engine", "concurrency_limit": 1}
"""One queue for everything that uses the engine, since two at once would distort each other's clocks."""
FILES: dict[str, Any] = {"concurrency_id": "files", "concurrency_limit": 2}
"""Another queue for what is parsed or drawn in processes of its own, which end when their visitor leaves."""


def check_session(known: bool) -> None:
    """Check that the server still knows this visitor's pair and chat, which it keeps for the latest visitors only.

    Raises:
        gr.Error: it has forgotten them, and would take those that a new visitor has.
    """
    if not known:
        raise gr.Error("This session has expired. Reload the page.", print_exception=False)


class Page(CheckedBlocks):
    """Blocks whose events accept only what their widgets can send."""

    def check(self, blocks: Sequence[Any], values: Sequence[Any]) -> None:
        """Check that an event's values are what its widgets can send.

        Raises:
            gr.Error: there are too few, or one is something else.
        """
        if len(values) < len(blocks):
            raise refusal("The page received something unexpected")
        for block, value in zip(blocks, values, strict=False):
            if not _fits(block, value):
                raise refusal(f"{getattr(block, 'label', None) or 'A value'!r} has an unusable value")


def _fits(block: Any, value: Any) -> bool:
    """Whether a value has the type that a widget sends. Files are looked up by Gradio among what was uploaded."""
    match block:
        case gr.State() | Api() | gr.BrowserState():  # never sent; checked by the function itself
            return True
        case gr.Textbox() | gr.Radio():
            return is_text(value)
        case gr.Dropdown():
            return value is None or is_text(value)
        case gr.Checkbox():
            return isinstance(value, bool)
        case gr.CheckboxGroup():
            return isinstance(value, list) and all(is_text(choice) for choice in value)
        case gr.Slider():
            return _is_number(value)
        case gr.Number():
            return value is None or _is_number(value)
        case gr.UploadButton():
            return value is None or isinstance(value, dict)
    raise AssertionError(f"what {block} sends is not known here")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


_UPDATE_SECONDS = 1.0  # each update takes time from an engine on this machine


class JobUpdate(NamedTuple):
    """Updates of message and board, and the last state so far of what is measured."""

    message: Any
    board: Any
    state: Any


def job_updates(
    sessions: Sessions,
    visitor: str,
    what: str,
    job: Job,
    show: Callable[[Any], str],
    kept: str = "finished results are kept",
) -> Iterator[JobUpdate]:
    """What to show of a job while it runs, and of its end.

    Results that are finished when the job stops or fails stay on the board; `kept` is what is said of them.
    """
    state: Progress[Any] | None = None
    due = 0.0
    try:
        for progress in sessions.measure(visitor, what, job):
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
    """Updates of a button that starts work, and of the one that stops it."""
    return [gr.update(interactive=not busy, value="Working …" if busy else label), gr.update(visible=busy)]
