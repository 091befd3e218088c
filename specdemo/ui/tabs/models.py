"""The Models tab: the catalogue, what is on this machine, and which pair to use, where and how."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gradio as gr
from gradio.components import Component

from specdemo.errors import SpecdemoError, UnknownNameError
from specdemo.models.checks import check_pair
from specdemo.models.pairs import bundled_prompts
from specdemo.records import Model, ModelPair
from specdemo.ui.controls import RUNTIME, Control, start_values
from specdemo.ui.events import ENGINE, PRIVATE, Stop
from specdemo.ui.html.catalogue import report_html
from specdemo.ui.html.header import header_html
from specdemo.ui.html.messages import alert, notice
from specdemo.ui.session import Sessions
from specdemo.ui.shelf import PAIR_NAMES, Names, Shelf, runtime_of, values_of
from specdemo.ui.tabs.compare import CompareTab
from specdemo.ui.tabs.pair import Choices, model_choices, pair_controls
from specdemo.ui.views import view

_SUITED = tuple(name for name in RUNTIME if name not in ("device", "draft_device"))


class ModelsTab(NamedTuple):
    """What the page needs of it: the controls that name a pair, in the order of `PAIR_NAMES`; the pair in use."""

    controls: list[Control]
    in_use: gr.Textbox
    list_after: Callable[[Any], Any]
    """Takes an event, after which the lists hold what is on this machine."""


class _Shown(NamedTuple):
    """What the callbacks change; `controls` name a pair, in the order of `PAIR_NAMES`."""

    pair: gr.State
    header: gr.HTML
    message: gr.HTML
    report: gr.HTML
    offer: gr.HTML
    use: gr.Button
    cancel: gr.Button
    in_use: gr.Textbox
    compare: CompareTab
    controls: list[Control]
    progress: gr.HTML
    cancel_download: gr.Button
    catalogue: gr.HTML
    listed: gr.State
    """The lists as they were last sent: one that is sent again closes under the visitor's mouse."""


Updates = dict[Component, Any]
"""Updates by component; components that are not named stay as they are."""


class _Callbacks:
    """Widget values in, updates out."""

    def __init__(self, sessions: Sessions, shelf: Shelf, shown: _Shown) -> None:
        self._sessions = sessions
        self._shelf = shelf
        self._shown = shown

    def use(
        self, request: gr.Request, before: ModelPair, prompt: str, engine: Any, *values: Any
    ) -> Iterator[Updates]:
        """Load the pair that the controls name."""
        chosen, was = dict(zip(PAIR_NAMES, values, strict=True)), values_of(before)
        if chosen["target"] != was["target"] and all(chosen[name] == was[name] for name in _SUITED):
            chosen |= self._suited(chosen["target"])  # the page may not have received this target's defaults yet
        yield from self._load(request, before, prompt, engine, chosen)

    def use_entry(
        self, event: gr.EventData, request: gr.Request, before: ModelPair, prompt: str, engine: Any, *values: Any
    ) -> Iterator[Updates]:
        """The same for a pair of the catalogue, on the devices that the controls name."""
        chosen = dict(zip(PAIR_NAMES, values, strict=True))
        try:
            names = self._shelf.names_of(_name(event))
        except SpecdemoError as error:
            yield self._told(alert(error), busy=False)
            return
        chosen |= names._asdict() | self._suited(names.target)
        yield from self._load(request, before, prompt, engine, chosen)

    def _suited(self, target: str) -> dict[str, Any]:
        return _defaults(self._shelf.models().get(target))

    def _load(
        self, request: gr.Request, before: ModelPair, prompt: str, engine: Any, chosen: dict[str, Any]
    ) -> Iterator[Updates]:
        try:
            runtime = {name: chosen[name] for name in RUNTIME}
            pair = self._shelf.choose(Names(chosen["target"] or "", chosen["draft"] or ""), runtime)
            message = ""
            for message in self._sessions.load(str(request.session_hash), engine, pair):
                yield self._told(message or gr.skip(), busy=True)
            news = self._told(message, busy=False)
            yield news if message else news | self._in_use(pair, before, prompt)
        except SpecdemoError as error:
            told = f"{error} {before.name} is still in use."
            yield self._told(alert(type(error)(told)), busy=False)

    def _told(self, message: Any, *, busy: bool) -> Updates:
        shown = self._shown
        return {
            shown.message: message,
            shown.use: gr.update(interactive=not busy),
            shown.cancel: gr.update(visible=busy),
        }

    def _in_use(self, pair: ModelPair, before: ModelPair, prompt: str) -> Updates:
        shown, values = self._shown, values_of(pair)
        news: Updates = {shown.pair: pair, shown.header: header_html(pair), shown.in_use: json.dumps(values)}
        now, was = start_values(pair), start_values(before)
        news |= {part: now[name] for name, part in shown.compare.controls.items() if now[name] != was[name]}
        if prompt in bundled_prompts(before.target.prompts):  # an example, which may not suit this pair
            news[shown.compare.prompt] = bundled_prompts(pair.target.prompts)[0]
        return news | dict(zip(shown.controls, values.values(), strict=True))

    def waiting(self) -> Updates:
        """From the click until the load's turn comes."""
        return self._told(notice("Waiting for the machine …"), busy=True)

    def fetch(
        self, event: gr.EventData, request: gr.Request, target: str, listed: tuple[Choices, Choices]
    ) -> Iterator[Updates]:
        """Download an entry's models, or the one that was looked for."""
        shown = self._shown
        for message in self._shelf.download(str(request.session_hash), _name(event)):
            yield {shown.progress: message, shown.cancel_download: gr.update(visible=True)}
        yield {shown.cancel_download: gr.update(visible=False)} | self.refreshed(target, listed)

    def refreshed(self, target: str, listed: tuple[Choices, Choices]) -> Updates:
        """Catalogue, and both lists of models, as they are now."""
        return {self._shown.catalogue: self._shelf.cards()} | self.relisted(target, listed)

    def relisted(self, target: str, listed: tuple[Choices, Choices]) -> Updates:
        """The lists that changed since they were last sent."""
        now = model_choices(self._shelf.models(), target)
        news: Updates = {self._shown.listed: now}
        for shown, choices, before in zip(self._shown.controls, now, listed, strict=False):
            news[shown] = gr.skip() if choices == before else gr.update(choices=choices)
        return news

    def suited(self, target: str, draft: str, listed: tuple[Choices, Choices]) -> Updates:
        """The drafts that fit a target, and its default runtime settings, except for the devices."""
        controls, models = dict(zip(PAIR_NAMES, self._shown.controls, strict=True)), self._shelf.models()
        drafts = model_choices(models, target)[1]
        fits = draft in dict(drafts).values()  # if so it is not sent: the visitor may have chosen another by now
        news: Updates = {controls[name]: value for name, value in _defaults(models.get(target)).items()}
        return news | {
            controls["draft"]: gr.update(choices=drafts) if fits else gr.update(choices=drafts, value=""),
            self._shown.listed: (listed[0], drafts),
        }

    def report(self, target: str, draft: str, cache_size: int) -> Updates:
        """What is known of a pair without loading it; one that cannot run cannot be chosen."""
        shown, models, fits = self._shown, self._shelf.models(), False
        told = offer = ""
        try:
            for name in filter(None, (target, draft)):
                if name not in models:
                    offer = self._shelf.offer(name)
                    raise UnknownNameError(self._shelf.elsewhere(name))
            if target:
                found = check_pair(models[target], models.get(draft), int(cache_size or 1))
                told, fits = report_html(found, own_directory=self._shelf.own_directory), found.fits
        except SpecdemoError as error:
            told = alert(error)
        return {shown.report: told, shown.offer: offer, shown.use: gr.update(interactive=fits)}

    def look(self, event: gr.EventData) -> Iterator[str]:
        """Look on the Hub for the model that was typed."""
        yield from self._shelf.look(_name(event))


def _defaults(target: Model | None) -> dict[str, Any]:
    """The default runtime settings for a target, except for the devices."""
    return runtime_of(target).model_dump(include=set(_SUITED))


def _name(event: gr.EventData) -> str:
    """The catalogue entry that a button belongs to; a forged event may name none, or hold no names at all."""
    data = event._data  # the attributes that Gradio makes of it fail unless it is an object
    return str(data.get("name", "")) if isinstance(data, dict) else ""


def models_tab(
    sessions: Sessions,
    shelf: Shelf,
    pair: gr.State,
    header: gr.HTML,
    compare: CompareTab,
    stop: Callable[[str], Stop],
) -> ModelsTab:
    """The tab's contents; `stop` makes the callback that ends one of its actions."""
    with gr.Tab("Models") as tab:
        in_use = gr.Textbox(visible=False)
        with gr.Column(elem_id="pair"):
            first = model_choices(shelf.models(), shelf.default.target.name)
            controls, listed = pair_controls(shelf, *first), gr.State(first)
            with gr.Row(elem_id="pair-actions"):
                use = gr.Button("Use this pair", variant="primary", elem_id="use", scale=0, min_width=180)
                cancel = gr.Button("Cancel", variant="stop", elem_id="cancel-load", visible=False, scale=0)
            message = gr.HTML(elem_id="pair-message", elem_classes="message")
            report = gr.HTML(elem_id="report")
            offer = view("offer.html", "new Catalogue(element, trigger)", elem_id="offer")
        progress = gr.HTML(elem_id="download", elem_classes="message")
        cancel_download = gr.Button("Stop the download", elem_id="cancel-download", visible=False, size="sm")
        catalogue = view("catalogue.html", "new Catalogue(element, trigger)", elem_id="catalogue")
    shown = _Shown(
        pair=pair,
        header=header,
        message=message,
        report=report,
        offer=offer,
        use=use,
        cancel=cancel,
        in_use=in_use,
        compare=compare,
        controls=controls,
        progress=progress,
        cancel_download=cancel_download,
        catalogue=catalogue,
        listed=listed,
    )
    lists, seen = [*controls[:2], listed], [controls[0], listed]
    callbacks, settings = _Callbacks(sessions, shelf, shown), [compare.prompt, *compare.controls.values()]
    outputs = [pair, header, message, use, cancel, in_use, *settings]
    inputs = [pair, compare.prompt, compare.controls["engine"], *controls]
    loading: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", **ENGINE}
    gr.on([use.click, catalogue.select], callbacks.waiting, outputs=[message, use, cancel], **PRIVATE)
    use.click(callbacks.use, inputs, [*outputs, *controls], **loading)
    used = catalogue.select(callbacks.use_entry, inputs, [*outputs, *controls], **loading)
    cancel.click(stop("load"), **PRIVATE)
    fetching: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_id": "download"}
    offer.select(callbacks.look, outputs=offer, show_progress="hidden", api_visibility="private")
    fetched = gr.on(
        [catalogue.download, offer.download],
        callbacks.fetch,
        seen,
        [progress, cancel_download, catalogue, *lists],
        concurrency_limit=1,
        **fetching,
    )
    cancel_download.click(stop("download"), **PRIVATE)
    tab.select(callbacks.refreshed, seen, [catalogue, *lists], **PRIVATE)
    controls[0].input(callbacks.suited, lists, [*controls[1:], listed], **PRIVATE)
    named = [controls[0], controls[1], controls[PAIR_NAMES.index("cache_size")]]
    changes = [tab.select, *(part.change for part in named)]
    gr.on(changes, callbacks.report, named, [report, offer, use], trigger_mode="always_last", **PRIVATE)
    fetched.then(callbacks.report, named, [report, offer, use], **PRIVATE)

    def list_after(event: Any) -> Any:
        return event.then(callbacks.relisted, seen, lists, **PRIVATE)

    list_after(used)
    return ModelsTab(controls, in_use, list_after)
