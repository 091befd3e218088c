"""The Models tab: the catalogue, the models on this machine, and the pair in use with its runtime settings."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import gradio as gr
from gradio.components import Component

from specdemo.capabilities import EngineName
from specdemo.errors import SpecdemoError, UnknownNameError, UsageError
from specdemo.models.catalogue import pair_of
from specdemo.models.checks import check_pair, drafts_for, fitting_draft, is_recommended
from specdemo.models.converted import remove_stored, stored_conversions
from specdemo.models.devices import devices, in_units
from specdemo.records import Model, ModelPair
from specdemo.settings import RuntimeSettings
from specdemo.ui.compare import CompareTab
from specdemo.ui.controls import RUNTIME, STRATEGY, Control, control, engines_for, start_values
from specdemo.ui.events import ENGINE, NO_QUEUE, PRIVATE, WAITING, event_value, stop_on
from specdemo.ui.parts import alert, header_html, html, notice, report_html
from specdemo.ui.registry import Registry, Shared, values_of
from specdemo.ui.views import channel, view

Choices = list[tuple[str, str]]  # labels and values
Lists = tuple[Choices, Choices]  # of targets and of drafts
Updates = dict[Component, Any]  # other components stay as they are

_NO_DRAFT = "None: prompt lookup only"
_DEFAULT_NAMES = tuple(name for name in RUNTIME if name not in ("device", "draft_device"))


class ModelsTab:
    """`controls` choose a pair. `in_use`: the pair in use and since when, as JSON."""

    def __init__(self, shared: Shared, compare: CompareTab) -> None:
        self._sessions, self._registry, self._local = shared.sessions, shared.registry, shared.local
        self._pair, self._header, self._settings = shared.pair, shared.header, compare.controls
        registry = shared.registry
        with gr.Tab("Models", id="models") as tab:
            with gr.Column(elem_id="adding", elem_classes="sheet", visible=shared.local):
                gr.HTML("<h2>Add a model file</h2>")
                with gr.Row(elem_classes="controls", equal_height=False):
                    place = gr.Textbox(
                        label="Path",
                        info=f"a GGUF file or an OpenVINO folder of this machine; linked into {registry.folder}",
                        placeholder="/home/me/model.gguf",
                        elem_id="model-path",
                    )
                    add = gr.Button("Add", elem_id="add-model", scale=0, min_width=90)
            with gr.Column(elem_id="pair"):
                first = model_choices(registry.models(), registry.default.target.name)
                self.controls = _pair_controls(registry, *first)
                # what the page has: updating an open list would close it under the pointer
                self._listed = gr.State(first)
                with gr.Row(elem_id="pair-actions"):
                    self._use = gr.Button("Use this pair", variant="primary", elem_id="use", scale=0, min_width=180)
                    self._cancel = gr.Button("Cancel", variant="stop", elem_id="cancel-load", visible=False, scale=0)
                self._message = gr.HTML(elem_id="pair-message", elem_classes="message")
                self._report = gr.HTML(elem_id="report")
                empty = '<div class="catalogue">${value}</div>'
                self._offer = view("catalogue", empty, elem_id="offer")
            self._progress = gr.HTML(elem_id="download", elem_classes="message")
            self._stop = gr.Button("Stop the download", elem_id="cancel-download", visible=False, size="sm")
            self._catalogue = view("catalogue", elem_id="catalogue")
            with gr.Accordion("Converted files on disk", open=False, elem_id="stored", visible=shared.local):
                self._stored = gr.CheckboxGroup(show_label=False, container=False)
                remove = gr.Button("Remove", size="sm", scale=0, min_width=120)
            self.in_use = channel()
        self._connect(tab, [add.click, place.submit], place)
        if shared.local:
            remove.click(self.remove, self._stored, self._stored, **NO_QUEUE)
            tab.select(stored_choices, outputs=self._stored, **NO_QUEUE)

    def _connect(self, tab: gr.Tab, adding: list[Any], place: gr.Textbox) -> None:
        target, draft = self.controls["target"], self.controls["draft"]
        shown, lists = [target, self._listed], [target, draft, self._listed]
        progress = [self._message, self._use, self._cancel]
        inputs = [self._pair, self._settings["engine"]]
        loaded = [self._pair, self._header, *progress, self.in_use, *self._settings.values(), *self.controls.values()]
        queued: dict[str, Any] = {"inputs_kwargs": self.controls, **PRIVATE, **ENGINE}
        waiting = partial(self._loading, notice(WAITING), busy=True)
        gr.on([self._use.click, self._catalogue.select], waiting, outputs=progress, **NO_QUEUE)
        self._use.click(self.use, inputs, loaded, **queued)
        stop_on(self._cancel.click, self._sessions, "load")
        self.list_after(self._catalogue.select(self.use_entry, inputs, loaded, **queued))
        fetched = gr.on(
            [self._catalogue.download, self._offer.download],
            self.fetch,
            shown,
            [self._progress, self._stop, self._catalogue, *lists],
            concurrency_limit=1,
            concurrency_id="download",
            **PRIVATE,
        )
        stop_on(self._stop.click, self._sessions, "download")
        tab.select(self.refresh, shown, [self._catalogue, *lists], **NO_QUEUE)
        updated = [*self.controls.values(), self._listed, self._message]
        if self._local:
            read = gr.on(adding, partial(notice, "Reading the file …"), outputs=self._message, **NO_QUEUE)
            read.then(self.add, [place, self._listed], updated, **NO_QUEUE)
        target.input(self.fit_to_target, shown, updated, **NO_QUEUE)
        described = [target, draft, self.controls["weights"]]
        report = [self._report, self._offer, self._use]
        changes = [tab.select, *(control.change for control in described)]
        gr.on(changes, self.report, described, report, trigger_mode="always_last", **NO_QUEUE)
        fetched.then(self.report, described, report, **NO_QUEUE)

    def list_after(self, event: Any) -> None:
        target, draft = self.controls["target"], self.controls["draft"]
        event.then(self.update_lists, [target, self._listed], [target, draft, self._listed], **NO_QUEUE)

    def use(self, request: gr.Request, before: ModelPair, engine: Any, **chosen: Any) -> Iterator[Updates]:
        previous = values_of(before)
        if chosen["target"] != previous["target"] and all(chosen[name] == previous[name] for name in _DEFAULT_NAMES):
            # the page may not have received this target's defaults yet
            chosen |= self._defaults(chosen["target"] or "")
        yield from self._load(request, before, engine, chosen)

    def use_entry(
        self, event: gr.EventData, request: gr.Request, before: ModelPair, engine: Any, **chosen: Any
    ) -> Iterator[Updates]:
        try:
            names = self._registry.names_of(name_of(event))
        except SpecdemoError as error:
            yield self._loading(alert(error), busy=False)
            return
        yield from self._load(request, before, engine, chosen | names | self._defaults(names["target"]))

    def _load(self, request: gr.Request, before: ModelPair, engine: Any, chosen: dict[str, Any]) -> Iterator[Updates]:
        try:
            pair = self._registry.choose(chosen)
            message = ""
            for message in self._sessions.load(str(request.session_hash), engine_for(pair, before, engine), pair):
                yield self._loading(message or gr.skip(), busy=True)
            updates = self._loading(message, busy=False)
            yield updates if message else updates | self._in_use(pair, before)
        except SpecdemoError as error:
            text = f"{error} {before.name} is still in use."
            yield self._loading(alert(type(error)(text)), busy=False)

    def _loading(self, message: Any, *, busy: bool) -> Updates:
        use, cancel = gr.update(interactive=not busy), gr.update(visible=busy)
        return {self._message: message, self._use: use, self._cancel: cancel}

    def _in_use(self, pair: ModelPair, before: ModelPair) -> Updates:
        values = values_of(pair)
        in_use = json.dumps(values | {"since": monotonic()})  # it changes even if the same pair is loaded again
        updates: Updates = {self._pair: pair, self._header: header_html(pair), self.in_use: in_use}
        start, previous = start_values(pair), start_values(before)
        changed = {name for name in start if start[name] != previous[name]}
        if changed.intersection(STRATEGY):
            changed.update(STRATEGY)
        updates |= {control: start[name] for name, control in self._settings.items() if name in changed}
        return updates | {self.controls[name]: value for name, value in values.items()}

    def fetch(self, event: gr.EventData, request: gr.Request, target: str, listed: Lists) -> Iterator[Updates]:
        for message in self._registry.download(str(request.session_hash), name_of(event)):
            yield {self._progress: message, self._stop: gr.update(visible=True)}
        yield {self._stop: gr.update(visible=False)} | self.refresh(target, listed)

    def refresh(self, target: str, listed: Lists) -> Updates:
        return {self._catalogue: self._registry.cards()} | self.update_lists(target, listed)

    def update_lists(self, target: str, listed: Lists) -> Updates:
        lists = model_choices(self._registry.models(), target)
        updates: Updates = {self._listed: lists}
        for name, choices, before in zip(("target", "draft"), lists, listed, strict=True):
            updates[self.controls[name]] = gr.skip() if choices == before else gr.update(choices=choices)
        return updates

    def fit_to_target(self, target: str | None, listed: Lists) -> Updates:
        """Offer the drafts that fit this target, and its default settings. A typed path is added as a model first."""
        target = target or ""  # an emptied list sends None
        typed = target.strip(" \"'")
        if self._local and (typed.startswith("~/") or Path(typed).is_absolute()):
            return self.add(typed, listed)
        models, controls = self._registry.models(), self.controls
        targets, drafts = model_choices(models, target)
        draft = fitting_draft(models[target], models.values()) if target in models else None
        updates: Updates = {controls[name]: value for name, value in self._defaults(target).items()}
        updates[controls["draft"]] = gr.update(choices=drafts, value=draft.name if draft is not None else "")
        if targets != listed[0]:
            updates[controls["target"]] = gr.update(choices=targets, value=target)
        return updates | {self._listed: (targets, drafts)}

    def add(self, place: str, listed: Lists) -> Updates:
        """Add a file or folder of this machine and choose it as the target."""
        try:
            if not place.strip():
                raise UsageError("Give the path of a GGUF file or of an OpenVINO folder.")
            name = self._registry.add(place)
        except SpecdemoError as error:
            return {self._message: alert(error)}
        targets, _ = model_choices(self._registry.models(), name)
        updates = self.fit_to_target(name, listed) | {self._message: html("added", name)}
        return updates | {self.controls["target"]: gr.update(choices=targets, value=name)}

    def remove(self, names: list[str]) -> Any:
        for name in names:
            remove_stored(name)
        return stored_choices()

    def report(self, target: str, draft: str, weights: Any) -> Updates:
        models, fits = self._registry.models(), False
        description = offer = ""
        try:
            for name in filter(None, (target, draft)):
                if name not in models:
                    offer = self._registry.offer(name)
                    raise UnknownNameError(self._registry.unknown_model(name))
            if target:
                runtime = RuntimeSettings.checked(weights=weights)
                pair = pair_of(models[target], models.get(draft), runtime=runtime)
                report = check_pair(pair.target, pair.draft)
                description, fits = report_html(report), report.fits
        except SpecdemoError as error:
            description = alert(error)
        return {self._report: description, self._offer: offer, self._use: gr.update(interactive=fits)}

    def _defaults(self, target: str) -> dict[str, Any]:
        return self._registry.default_runtime(target).model_dump(include=set(_DEFAULT_NAMES))


def engine_for(pair: ModelPair, before: ModelPair, engine: Any) -> EngineName:
    """Return the pair's default engine if it differs from the last pair's, else the chosen one."""
    engines, default = engines_for(pair), start_values(pair)["engine"]
    if default != start_values(before)["engine"]:
        engine = default
    return engine if engine in engines else engines[0]


def stored_choices() -> Any:
    choices = [(f"{stored.name}, {in_units(stored.bytes)}", stored.name) for stored in stored_conversions()]
    return gr.update(choices=choices, value=[])


def name_of(event: gr.EventData) -> str:
    """Return the name of the entry or model whose button was pressed; empty if a forged event has none."""
    return str(event_value(event, "name") or "")


def model_choices(models: Mapping[str, Model], target: str) -> Lists:
    """Return targets, and drafts for this target, with recommended ones marked."""
    targets = [(name, name) for name, model in models.items() if model.head is None]
    if target not in models:
        return targets, [(_NO_DRAFT, ""), *((name, name) for name in models)]
    drafts = drafts_for(models[target], models.values())
    recommended = [draft.name for draft in drafts if is_recommended(draft, models[target])]
    others = [draft.name for draft in drafts if draft.name not in recommended]
    labelled = [*((f"{name} · recommended", name) for name in recommended), *((name, name) for name in others)]
    return targets, [(_NO_DRAFT, ""), *labelled]


def _pair_controls(registry: Registry, targets: Choices, drafts: Choices) -> dict[str, Control]:
    values = values_of(registry.default)
    usable = [(f"{name}: {title}", name) for name, title in registry.devices().items()]
    draft_devices = [("Same as the target", ""), *usable]
    choices = {"target": targets, "draft": drafts, "device": usable, "draft_device": draft_devices}
    titles = {
        "target": ("Target", "writes the text; choose one or type a path"),
        "draft": ("Draft", "proposes tokens"),
    }
    controls: dict[str, Control] = {}

    def add(name: str) -> None:
        if name in choices:
            title, info = titles.get(name) or (RUNTIME[name].title, RUNTIME[name].description)
            controls[name] = gr.Dropdown(
                choices[name],
                value=values[name],
                label=title,
                info=info,
                # models may have changed since the page was built; the registry checks every name
                allow_custom_value=name in titles,
                filterable=name in titles,
                elem_id=name,
            )
        else:
            controls[name] = control(name, typed=name == "inference_num_threads", value=values[name], min_width=200)

    with gr.Row(elem_classes="controls"):
        for name in (*choices, "precision"):
            add(name)
    gr.HTML(html("model_sources", registry.downloads), elem_id="whence")
    for device in devices():
        if device.reason is not None:
            gr.Markdown(f"**{device.name}** ({device.full_name}) cannot be used: {device.reason}.")
    with gr.Accordion("Runtime", open=False, elem_id="runtime"), gr.Row(elem_classes="controls"):
        for name in RUNTIME:
            if name not in controls:
                add(name)
    return controls
