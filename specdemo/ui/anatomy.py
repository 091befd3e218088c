"""The Anatomy tab: the run on screen round by round, or one opened from a file."""

from collections.abc import Iterator
from typing import Any

import gradio as gr

from specdemo.errors import FileError
from specdemo.exports.schema import from_text
from specdemo.ui.events import FILES, PRIVATE, run_in_child
from specdemo.ui.feed import end_event
from specdemo.ui.parts import alert, notice
from specdemo.ui.simulator import simulator
from specdemo.ui.views import view

ANATOMY = "anatomy"


def anatomy_tab(race: gr.HTML, finished: gr.State) -> None:
    """`race` also shows an opened run; `anatomy.js` shows the rounds of the run in `race`. `finished`: the last
    run.
    """
    with gr.Tab("Anatomy", id=ANATOMY):
        upload = gr.UploadButton("Open a JSON file", file_types=[".json"], type="binary", elem_id="open", size="sm")
        message = gr.HTML(elem_classes="message")
        view("anatomy")
        simulator(finished)
    upload.upload(open_run, upload, [race, message], **PRIVATE, **FILES)


def open_run(data: bytes) -> Iterator[list[Any]]:
    """Yield updates of race view and message."""
    waiting = [gr.skip(), notice("Reading the file …")]
    what, advice = "This file cannot be read", "open one saved with Share"
    try:
        comparison = yield from run_in_child(from_text, data, advice, waiting=waiting, what=what, otherwise=advice)
        yield [end_event(comparison), ""]
    except FileError as error:
        yield [gr.skip(), alert(error)]
