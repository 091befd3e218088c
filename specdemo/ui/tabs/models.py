"""The Models tab: the catalogue, what is on this machine, and which pair to use, where and how."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gradio as gr

from specdemo.ui.callbacks.models import Callbacks, Shown, model_choices
from specdemo.ui.controls import Control
from specdemo.ui.events import ENGINE, PRIVATE, QUIET, Stop
from specdemo.ui.registry import PAIR_NAMES, Registry
from specdemo.ui.session import Sessions
from specdemo.ui.tabs.compare import CompareTab
from specdemo.ui.tabs.pair import pair_controls
from specdemo.ui.views import view


class ModelsTab(NamedTuple):
    """What the page needs of it: the controls that name a pair, in the order of `PAIR_NAMES`; the pair in use."""

    controls: list[Control]
    in_use: gr.Textbox
    list_after: Callable[[Any], Any]
    """Takes an event, after which the lists hold what is on this machine."""


def models_tab(
    sessions: Sessions,
    registry: Registry,
    pair: gr.State,
    header: gr.HTML,
    compare: CompareTab,
    stop: Callable[[str], Stop],
    *,
    local: bool = False,
) -> ModelsTab:
    """The tab's contents; `stop` makes the callback that ends one of its actions.

    `local`: only this machine reaches the page, so its files may be added.
    """
    with gr.Tab("Models") as tab:
        shown = _widgets(registry, pair, header, compare)
        if local:
            place, add = _adding(registry)
    callbacks = Callbacks(sessions, registry, shown)
    target, draft, *_ = shown.controls
    lists, seen = [target, draft, shown.listed], [target, shown.listed]

    def list_after(event: Any) -> Any:
        return event.then(callbacks.relisted, seen, lists, **PRIVATE)

    list_after(_connect_use(callbacks, shown, stop("load")))
    fetched = _connect_downloads(callbacks, shown, seen, lists, stop("download"))
    tab.select(callbacks.refreshed, seen, [shown.catalogue, *lists], **PRIVATE)
    if local:
        changed = [shown.message, target, shown.listed]
        added = gr.on([add.click, place.submit], callbacks.add, [place, shown.listed], changed, **PRIVATE)
        added.then(callbacks.suited, lists, [*shown.controls[1:], shown.listed], **PRIVATE)
    target.input(callbacks.suited, lists, [*shown.controls[1:], shown.listed], **PRIVATE)
    named = [target, draft, shown.controls[PAIR_NAMES.index("cache_size")]]
    reported = [shown.report, shown.offer, shown.use]
    changes = [tab.select, *(part.change for part in named)]
    gr.on(changes, callbacks.report, named, reported, trigger_mode="always_last", **PRIVATE)
    fetched.then(callbacks.report, named, reported, **PRIVATE)
    return ModelsTab(shown.controls, shown.in_use, list_after)


def _widgets(registry: Registry, pair: gr.State, header: gr.HTML, compare: CompareTab) -> Shown:
    in_use = gr.Textbox(visible=False)
    with gr.Column(elem_id="pair"):
        first = model_choices(registry.models(), registry.default.target.name)
        controls, listed = pair_controls(registry, *first), gr.State(first)
        with gr.Row(elem_id="pair-actions"):
            use = gr.Button("Use this pair", variant="primary", elem_id="use", scale=0, min_width=180)
            cancel = gr.Button("Cancel", variant="stop", elem_id="cancel-load", visible=False, scale=0)
        message = gr.HTML(elem_id="pair-message", elem_classes="message")
        report = gr.HTML(elem_id="report")
        offer = view("catalogue", "offer.html", elem_id="offer")
    progress = gr.HTML(elem_id="download", elem_classes="message")
    cancel_download = gr.Button("Stop the download", elem_id="cancel-download", visible=False, size="sm")
    catalogue = view("catalogue", elem_id="catalogue")
    return Shown(
        pair=pair,
        header=header,
        message=message,
        report=report,
        offer=offer,
        use=use,
        cancel=cancel,
        in_use=in_use,
        prompt=compare.prompt,
        settings=compare.controls,
        controls=controls,
        progress=progress,
        cancel_download=cancel_download,
        catalogue=catalogue,
        listed=listed,
    )


def _adding(registry: Registry) -> tuple[gr.Textbox, gr.Button]:
    """Widgets that add a file of this machine."""
    with gr.Accordion("Add a model file…", open=False, elem_id="adding"):
        view("drop", elem_id="drop")
        place = gr.Textbox(
            label="Path",
            info=f"a GGUF file or an OpenVINO folder on this machine; it is linked into {registry.folder}",
            placeholder="/home/me/model.gguf",
            elem_id="model-path",
        )
        add = gr.Button("Add", elem_id="add-model", size="sm")
    return place, add


def _connect_use(callbacks: Callbacks, shown: Shown, stop: Stop) -> Any:
    """Have both kinds of button use a pair; returns the event of the catalogue's."""
    said = [shown.message, shown.use, shown.cancel]
    inputs = [shown.pair, shown.prompt, shown.settings["engine"], *shown.controls]
    settings = [shown.prompt, *shown.settings.values()]
    outputs = [shown.pair, shown.header, *said, shown.in_use, *settings, *shown.controls]
    gr.on([shown.use.click, shown.catalogue.select], callbacks.waiting, outputs=said, **PRIVATE)
    shown.use.click(callbacks.use, inputs, outputs, **QUIET, **ENGINE)
    shown.cancel.click(stop, **PRIVATE)
    return shown.catalogue.select(callbacks.use_entry, inputs, outputs, **QUIET, **ENGINE)


def _connect_downloads(callbacks: Callbacks, shown: Shown, seen: list[Any], lists: list[Any], stop: Stop) -> Any:
    """Have buttons look for models and fetch them; returns the event of the latter."""
    shown.offer.select(callbacks.look, outputs=shown.offer, **QUIET)
    shown.cancel_download.click(stop, **PRIVATE)
    return gr.on(
        [shown.catalogue.download, shown.offer.download],
        callbacks.fetch,
        seen,
        [shown.progress, shown.cancel_download, shown.catalogue, *lists],
        concurrency_limit=1,
        concurrency_id="download",
        **QUIET,
    )
