"""What the Tune and Benchmark tabs have in common: a job's progress as updates of message, board and buttons."""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, NamedTuple

import gradio as gr

from specdemo.errors import SpecdemoError
from specdemo.progress import Phase, Progress
from specdemo.ui.html.parts import alert, describe, notice, progress_html
from specdemo.ui.session import Sessions
from specdemo.worker import Job

_UPDATE_SECONDS = 1.0  # each update takes time from an engine on this machine


class Measured(NamedTuple):
    """Updates of message and board, and the last state so far of what is measured."""

    message: Any
    board: Any
    state: Any


def measured(
    sessions: Sessions,
    visitor: str,
    what: str,
    job: Job,
    show: Callable[[Any], str],
    kept: str = "finished results are kept",
) -> Iterator[Measured]:
    """What to show of a job while it runs, and of its end.

    Results that are finished when the job stops or fails stay on the board; `kept` is what is said of them.
    """
    state: Progress[Any] | None = None
    due = 0.0
    try:
        for progress in sessions.measure(visitor, what, job):
            if progress is None:
                yield Measured(gr.skip(), gr.skip(), state)
                continue
            if isinstance(progress, Phase):
                yield Measured(describe(progress), gr.skip(), state)
                continue
            state = progress
            if monotonic() >= due:
                due = monotonic() + _UPDATE_SECONDS
                yield Measured(_progress(state), show(state), state)
    except SpecdemoError as error:
        yield Measured(alert(error), show(state) if state is not None else gr.skip(), state)
        return
    if state is None:
        yield Measured(notice("Stopped before anything was measured."), gr.skip(), None)
        return
    stopped = state.done < state.total
    message = notice(f"Stopped after {state.done} of {state.total}; {kept}.") if stopped else ""
    yield Measured(message, show(state), state)


def _progress(state: Progress[Any]) -> str:
    text = f"{state.doing.capitalize()}: {state.done} of {state.total}"
    return progress_html(text, state.done, state.total, state.seconds_left)


def working(label: str, *, busy: bool) -> list[dict[str, Any]]:
    """Updates of a button that starts work, and of the one that stops it."""
    return [gr.update(interactive=not busy, value="Working …" if busy else label), gr.update(visible=busy)]
