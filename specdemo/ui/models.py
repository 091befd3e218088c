"""The Models tab: the catalogue, the models on this machine, and the pair to use with its runtime settings."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
from gradio.components import Component

from specdemo.errors import SpecdemoError, UnknownNameError, UsageError
from specdemo.models.checks import check_pair, drafts_for, fitting_draft, is_recommended
from specdemo.models.devices import devices
from specdemo.models.pairs import bundled_prompts
from specdemo.records import Model, ModelPair
from specdemo.ui.compare import CompareTab
from specdemo.ui.controls import RUNTIME, STRATEGY, Control, control, engines_for, start_values
from specdemo.ui.parts import alert, header_html, notice, report_html
from specdemo.ui.registry import PAIR_NAMES, Names, Registry, runtime_of, values_of
from specdemo.ui.server import sent
from specdemo.ui.session import ENGINE, PRIVATE, QUIET, WAITING, Sessions, Stop
from specdemo.ui.views import view

Choices = list[tuple[str, str]]
"""Labels and values of a list."""

_NO_DRAFT = "None: prompt lookup only"
RECOMMENDED = " · recommended"
_DEFAULTED = tuple(name for name in RUNTIME if name not in ("device", "draft_device"))


class ModelsWidgets(NamedTuple):
    """Widgets that callbacks change; `controls` name a pair, in the order of `PAIR_NAMES`."""

    pair: gr.State
    header: gr.HTML
    added: gr.HTML
    message: gr.HTML
    report: gr.HTML
    offer: gr.HTML
    use: gr.Button
    cancel: gr.Button
    in_use: gr.Textbox
    prompt: gr.Textbox
    settings: dict[str, Control]
    controls: list[Control]
    progress: gr.HTML
    cancel_download: gr.Button
    catalogue: gr.HTML
    listed: gr.State
    """Lists as last sent; resending an open list would close it under the visitor's mouse."""


Updates = dict[Component, Any]
"""Updates by component; other components stay as they are."""


class ModelsCallbacks:
    def __init__(self, sessions: Sessions, registry: Registry, shown: ModelsWidgets, *, local: bool = False) -> None:
        self._local = local  # only this machine reaches the page, so its files may be added
        self._sessions = sessions
        self._registry = registry
        self._shown = shown

    def use(
        self, request: gr.Request, before: ModelPair, prompt: str, engine: Any, *values: Any
    ) -> Iterator[Updates]:
        chosen, was = dict(zip(PAIR_NAMES, values, strict=True)), values_of(before)
        if chosen["target"] != was["target"] and all(chosen[name] == was[name] for name in _DEFAULTED):
            # the page may not have received this target's defaults yet
            chosen |= self._target_defaults(chosen["target"])
        yield from self._load(request, before, prompt, engine, chosen)

    def use_entry(
        self, event: gr.EventData, request: gr.Request, before: ModelPair, prompt: str, engine: Any, *values: Any
    ) -> Iterator[Updates]:
        chosen = dict(zip(PAIR_NAMES, values, strict=True))
        try:
            names = self._registry.names_of(name_of(event))
        except SpecdemoError as error:
            yield self._message(alert(error), busy=False)
            return
        chosen |= names._asdict() | self._target_defaults(names.target)
        yield from self._load(request, before, prompt, engine, chosen)

    def _target_defaults(self, target: str) -> dict[str, Any]:
        return _defaults(self._registry.models().get(target))

    def _load(
        self, request: gr.Request, before: ModelPair, prompt: str, engine: Any, chosen: dict[str, Any]
    ) -> Iterator[Updates]:
        try:
            runtime = {name: chosen[name] for name in RUNTIME}
            pair = self._registry.choose(Names(chosen["target"] or "", chosen["draft"] or ""), runtime)
            able, now, was = engines_for(pair), start_values(pair), start_values(before)
            engine = now["engine"] if now["engine"] != was["engine"] else engine
            engine = engine if engine in able else able[0]
            message = ""
            for message in self._sessions.load(str(request.session_hash), engine, pair):
                yield self._message(message or gr.skip(), busy=True)
            news = self._message(message, busy=False)
            yield news if message else news | self._in_use(pair, before, prompt)
        except SpecdemoError as error:
            text = f"{error} {before.name} is still in use."
            yield self._message(alert(type(error)(text)), busy=False)

    def _message(self, message: Any, *, busy: bool) -> Updates:
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
        changed = {name for name in now if now[name] != was[name]}
        changed |= STRATEGY if changed & STRATEGY else set()  # a strategy changes as a whole
        news |= {part: now[name] for name, part in shown.settings.items() if name in changed}
        if prompt in bundled_prompts(before.target.prompts):  # an example, which may not suit this pair
            news[shown.prompt] = bundled_prompts(pair.target.prompts)[0]
        return news | dict(zip(shown.controls, values.values(), strict=True))

    def wait_in_queue(self) -> Updates:
        return self._message(notice(WAITING), busy=True)

    def fetch(
        self, event: gr.EventData, request: gr.Request, target: str, listed: tuple[Choices, Choices]
    ) -> Iterator[Updates]:
        shown = self._shown
        for message in self._registry.download(str(request.session_hash), name_of(event)):
            yield {shown.progress: message, shown.cancel_download: gr.update(visible=True)}
        yield {shown.cancel_download: gr.update(visible=False)} | self.refresh(target, listed)

    def refresh(self, target: str, listed: tuple[Choices, Choices]) -> Updates:
        return {self._shown.catalogue: self._registry.cards()} | self.update_lists(target, listed)

    def update_lists(self, target: str, listed: tuple[Choices, Choices]) -> Updates:
        now = model_choices(self._registry.models(), target)
        news: Updates = {self._shown.listed: now}
        for shown, choices, before in zip(self._shown.controls, now, listed, strict=False):
            news[shown] = gr.skip() if choices == before else gr.update(choices=choices)
        return news

    def fit_to_target(self, target: str | None, listed: tuple[Choices, Choices]) -> Updates:
        """Return the drafts that fit a target, and its default runtime settings, except for the devices.

        A path that was typed becomes one of the models first.
        """
        shown = self._shown
        controls = dict(zip(PAIR_NAMES, shown.controls, strict=True))
        news: Updates = {}
        target = target or ""  # an emptied list sends None
        typed = target.strip(" \"'")
        if self._local and (typed.startswith("~/") or Path(typed).is_absolute()):
            try:
                target = self._registry.add(target)
                news[shown.message] = notice(f"{target} is now among your models.")
            except SpecdemoError as error:
                return {shown.message: alert(error)}
        models = self._registry.models()
        now = model_choices(models, target)
        if now[0] != listed[0] or news:
            news[controls["target"]] = gr.update(choices=now[0], value=target)
        news |= {controls[name]: value for name, value in _defaults(models.get(target)).items()}
        draft = fitting_draft(models[target], models.values()) if target in models else None
        news[controls["draft"]] = gr.update(choices=now[1], value=draft.name if draft is not None else "")
        return news | {shown.listed: now}

    def add(self, place: str, listed: tuple[Choices, Choices]) -> Updates:
        """Add a file or folder of this machine to the models, and choose it as the target."""
        if not place.strip():
            return {self._shown.added: alert(UsageError("Give the path of a GGUF file or of an OpenVINO folder."))}
        try:
            name = self._registry.add(place)
        except SpecdemoError as error:
            return {self._shown.added: alert(error)}
        return self.fit_to_target(name, listed) | {
            self._shown.added: notice(f"{name} is now among your models, and chosen as the target below."),
            self._shown.controls[0]: gr.update(choices=model_choices(self._registry.models(), name)[0], value=name),
        }

    def report(self, target: str, draft: str, cache_size: int) -> Updates:
        """Return facts about a pair, without loading it; a pair that cannot run cannot be used."""
        shown, models, fits = self._shown, self._registry.models(), False
        facts = offer = ""
        try:
            for name in filter(None, (target, draft)):
                if name not in models:
                    offer = self._registry.offer(name)
                    raise UnknownNameError(self._registry.elsewhere(name))
            if target:
                found = check_pair(models[target], models.get(draft), int(cache_size or 1))
                facts, fits = report_html(found), found.fits
        except SpecdemoError as error:
            facts = alert(error)
        return {shown.report: facts, shown.offer: offer, shown.use: gr.update(interactive=fits)}

    def look(self, event: gr.EventData) -> Iterator[str]:
        yield from self._registry.look(name_of(event))


def _defaults(target: Model | None) -> dict[str, Any]:
    return runtime_of(target).model_dump(include=set(_DEFAULTED))


def name_of(event: gr.EventData) -> str:
    """Return the catalogue entry that a button belongs to; empty if a forged event names none."""
    return str(sent(event, "name") or "")


def model_choices(models: Mapping[str, Model], target: str) -> tuple[Choices, Choices]:
    """Return the choices of targets, and of drafts for this target, with recommended drafts marked."""
    targets = [(name, name) for name, model in models.items() if model.detokenizer]
    if target not in models:
        return targets, [(_NO_DRAFT, ""), *((name, name) for name in models)]
    nobody = [] if models[target].in_parts else [(_NO_DRAFT, "")]
    drafts = drafts_for(models[target], models.values())
    fitting = {model.name for model in drafts if is_recommended(model, models[target])}
    labelled = [(name + RECOMMENDED * (name in fitting), name) for name in (model.name for model in drafts)]
    return targets, [*nobody, *sorted(labelled, key=lambda choice: choice[1] not in fitting)]


_BY_KEYBOARD = ("cache_size", "inference_num_threads")
_SAME = "Same as the target"
_WHENCE = (
    "Lists every model of your models folder, the Hugging Face cache, LM Studio, llama.cpp and Ollama; "
    "<code>specdemo models list</code> prints where the first two are."
)
_TYPED_ID = (
    "For any other, type its Hugging Face id, such as <code>OpenVINO/Qwen3-8B-int4-ov</code>, or "
    "<code>ORGANISATION/MODEL:FILE.gguf</code>."
)


def pair_controls(registry: Registry, targets: Choices, drafts: Choices) -> list[Control]:
    """Build the controls, in the order of `PAIR_NAMES`, with these choices and the default pair's values."""
    values = values_of(registry.default)
    usable = [(f"{name}: {title}", name) for name, title in registry.devices().items()]
    choices = {"target": targets, "draft": drafts, "device": usable, "draft_device": [(_SAME, ""), *usable]}
    titles = {
        "target": ("Target", "writes the text; choose one, or type a path"),
        "draft": ("Draft", "guesses ahead"),
    }
    made: dict[str, Control] = {}

    def add(name: str) -> None:
        if name in choices:
            title, info = titles.get(name) or (RUNTIME[name].title, RUNTIME[name].description)
            made[name] = gr.Dropdown(
                choices[name],
                value=values[name],
                label=title,
                info=info,
                # models may have changed since the page was built, and the registry looks up every name
                allow_custom_value=name in titles,
                filterable=name in titles,
                elem_id=name,
            )
        else:
            made[name] = control(name, typed=name in _BY_KEYBOARD, value=values[name], min_width=200)

    with gr.Row(elem_classes="controls"):
        for name in (*choices, "precision"):
            add(name)
    gr.HTML(f"<p>{_WHENCE} {_TYPED_ID if registry.downloads else ''}</p>", elem_id="whence")
    for device in devices():
        if device.reason is not None:
            gr.Markdown(f"**{device.name}** ({device.full_name}) cannot be used: {device.reason}.")
    with gr.Accordion("Runtime", open=False, elem_id="runtime"), gr.Row(elem_classes="controls"):
        for name in RUNTIME:
            if name not in made:
                add(name)
    return [made[name] for name in PAIR_NAMES]


class ModelsTab(NamedTuple):
    """Controls that name a pair, in the order of `PAIR_NAMES`, and the pair in use as JSON."""

    controls: list[Control]
    in_use: gr.Textbox
    list_after: Callable[[Any], Any]
    """Function that updates the lists after an event."""


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
    """Build the tab; `stop` makes the callback that ends one of its activities.

    `local`: only this machine reaches the page, so its files may be added.
    """
    with gr.Tab("Models") as tab:
        with gr.Column(elem_id="adding", visible=local):
            place, add, added = _adding(registry)
        shown = _widgets(registry, pair, header, added, compare)
    callbacks = ModelsCallbacks(sessions, registry, shown, local=local)
    target, draft, *_ = shown.controls
    lists, sent = [target, draft, shown.listed], [target, shown.listed]
    fitted = [*shown.controls, shown.listed, shown.message]

    def list_after(event: Any) -> Any:
        return event.then(callbacks.update_lists, sent, lists, **PRIVATE)

    list_after(_connect_use(callbacks, shown, stop("load")))
    fetched = _connect_downloads(callbacks, shown, sent, lists, stop("download"))
    tab.select(callbacks.refresh, sent, [shown.catalogue, *lists], **PRIVATE)
    if local:
        gr.on([add.click, place.submit], callbacks.add, [place, shown.listed], [*fitted, added], **PRIVATE)
    target.input(callbacks.fit_to_target, sent, fitted, **PRIVATE)
    named = [target, draft, shown.controls[PAIR_NAMES.index("cache_size")]]
    reported = [shown.report, shown.offer, shown.use]
    changes = [tab.select, *(part.change for part in named)]
    gr.on(changes, callbacks.report, named, reported, trigger_mode="always_last", **PRIVATE)
    fetched.then(callbacks.report, named, reported, **PRIVATE)
    return ModelsTab(shown.controls, shown.in_use, list_after)


def _widgets(
    registry: Registry, pair: gr.State, header: gr.HTML, added: gr.HTML, compare: CompareTab
) -> ModelsWidgets:
    in_use = gr.Textbox(visible=False)
    with gr.Column(elem_id="pair"):
        first = model_choices(registry.models(), registry.default.target.name)
        controls, listed = pair_controls(registry, *first), gr.State(first)
        with gr.Row(elem_id="pair-actions"):
            use = gr.Button("Use this pair", variant="primary", elem_id="use", scale=0, min_width=180)
            cancel = gr.Button("Cancel", variant="stop", elem_id="cancel-load", visible=False, scale=0)
        message = gr.HTML(elem_id="pair-message", elem_classes="message")
        report = gr.HTML(elem_id="report")
        offer = view("catalogue", '<div class="catalogue"><div class="list"></div></div>', elem_id="offer")
    progress = gr.HTML(elem_id="download", elem_classes="message")
    cancel_download = gr.Button("Stop the download", elem_id="cancel-download", visible=False, size="sm")
    catalogue = view("catalogue", elem_id="catalogue")
    return ModelsWidgets(
        pair=pair,
        header=header,
        added=added,
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


def _adding(registry: Registry) -> tuple[gr.Textbox, gr.Button, gr.HTML]:
    gr.HTML("<h2>Add a model file</h2>")
    with gr.Row(elem_classes="controls"):
        place = gr.Textbox(
            label="Path",
            info=f"a GGUF file or an OpenVINO folder on this machine; it is linked into {registry.folder}",
            placeholder="/home/me/model.gguf",
            elem_id="model-path",
        )
        add = gr.Button("Add", elem_id="add-model", size="sm", scale=0)
    return place, add, gr.HTML(elem_id="add-message", elem_classes="message")


def _connect_use(callbacks: ModelsCallbacks, shown: ModelsWidgets, stop: Stop) -> Any:
    progress = [shown.message, shown.use, shown.cancel]
    inputs = [shown.pair, shown.prompt, shown.settings["engine"], *shown.controls]
    settings = [shown.prompt, *shown.settings.values()]
    outputs = [shown.pair, shown.header, *progress, shown.in_use, *settings, *shown.controls]
    gr.on([shown.use.click, shown.catalogue.select], callbacks.wait_in_queue, outputs=progress, **PRIVATE)
    shown.use.click(callbacks.use, inputs, outputs, **QUIET, **ENGINE)
    shown.cancel.click(stop, **PRIVATE)
    return shown.catalogue.select(callbacks.use_entry, inputs, outputs, **QUIET, **ENGINE)


def _connect_downloads(
    callbacks: ModelsCallbacks, shown: ModelsWidgets, sent: list[Any], lists: list[Any], stop: Stop
) -> Any:
    shown.offer.select(callbacks.look, outputs=shown.offer, **QUIET)
    shown.cancel_download.click(stop, **PRIVATE)
    return gr.on(
        [shown.catalogue.download, shown.offer.download],
        callbacks.fetch,
        sent,
        [shown.progress, shown.cancel_download, shown.catalogue, *lists],
        concurrency_limit=1,
        concurrency_id="download",
        **QUIET,
    )
