"""The page: its tabs, how it starts from a link or the browser's storage, and its server."""

import gc
import json
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any, cast, get_args

import gradio as gr
from pydantic import TypeAdapter, ValidationError
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from specdemo.engines import load_engine
from specdemo.errors import SpecdemoError
from specdemo.exports.html import PAGE
from specdemo.models.catalogue import bundled_prompts, pair_settings
from specdemo.racing.worker import EngineFactory, Preload, Worker
from specdemo.records import ModelPair, Prompts
from specdemo.results.figures import script_name
from specdemo.ui import controls as widgets
from specdemo.ui.anatomy import ANATOMY, anatomy_tab
from specdemo.ui.compare import COMPARE, CompareCallbacks, CompareTab, api_description
from specdemo.ui.events import ENGINE, NO_QUEUE, PRIVATE, Page
from specdemo.ui.gate import is_local_only
from specdemo.ui.measure import measure_tab
from specdemo.ui.models import ModelsTab
from specdemo.ui.parts import alert, header_html
from specdemo.ui.registry import PAIR_NAMES, Registry, Shared, values_of
from specdemo.ui.server import SESSIONS, application, listening, visitors_files
from specdemo.ui.session import Sessions, Visitors, with_chat_cache
from specdemo.ui.views import channel, charts, head, plotly, script, theme


def serve(
    pair: ModelPair,
    *,
    host: str | None = None,
    port: int | None = None,
    auth: tuple[str, str] | None = None,
    models_dir: Path | None = None,
    downloads: bool | None = None,
    allowed_hosts: Sequence[str] = (),
    load: EngineFactory = load_engine,
    sessions: int = SESSIONS,
) -> None:
    """Serve the page until interrupted or terminated; tests replace `load` and `sessions`.

    Visitors may download models, except on a Hugging Face Space; `downloads` overrides that. `allowed_hosts`: further
    host names of the page, besides those of `gate`.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    allowed = "SPACE_ID" not in os.environ if downloads is None else downloads
    host = host or os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")
    local = is_local_only(host, allowed_hosts)
    worker = Worker(load, Preload(pair_settings(pair).engine, with_chat_cache(pair)))
    try:
        with visitors_files():
            page = build_page(worker, pair, models_dir=models_dir, downloads=allowed, local=local)
            app = application(
                page, routes(), local=local, allowed_hosts=allowed_hosts, auth=auth, sessions=sessions, **look()
            )
            gc.freeze()  # a full collection that scans long-lived objects would stall every visitor
            with listening(app, host, port) as url:
                print(f"The page is at {url}; press Ctrl+C to end it.", flush=True)
                with suppress(KeyboardInterrupt):
                    while True:
                        sleep(1)  # not for long: a signal that another thread receives ends no sleep
                logging.getLogger("specdemo").setLevel(logging.CRITICAL)  # what ends with the page has not failed
    finally:
        worker.close()


def routes() -> list[BaseRoute]:
    return [
        Route("/specdemo/charts.json", charts),
        Route(f"/{script_name()}", plotly),
        Mount("/specdemo", StaticFiles(directory=PAGE)),
    ]


def look() -> dict[str, Any]:
    return {
        "theme": theme(),
        "css": widgets.choices_css(),
        "head": head(),
        "footer_links": ["api"],
        "favicon_path": str(PAGE / "favicon.svg"),
    }


def build_page(
    worker: Worker, pair: ModelPair, *, models_dir: Path | None = None, downloads: bool = True, local: bool = False
) -> gr.Blocks:
    """`local`: only this machine reaches the page, so copied code may name paths."""
    visitors = Visitors()
    sessions = Sessions(worker, visitors)
    registry = Registry(pair, visitors, directory=models_dir, downloads=downloads)

    with Page(title="specdemo", analytics_enabled=False, fill_width=True, delete_cache=(60, 3600)) as page:  # seconds
        header = gr.HTML(header_html(pair), elem_id="header")
        shared = Shared(sessions, registry, header, session_open=gr.State(False), pair=gr.State(pair), local=local)
        callbacks = CompareCallbacks(sessions, local=local)
        with gr.Tabs(overflow_behavior="wrap") as tabs:  # a menu may hide one that fits, if it is measured too early
            compare = CompareTab(callbacks, shared)
            anatomy_tab(compare.race, compare.finished)
            measure_tab(shared, compare)
            models = ModelsTab(shared, compare)
        compare.race.select(lambda: gr.update(selected=ANATOMY), outputs=tabs, **NO_QUEUE)
        # it changes when a pair has been loaded, which the visitor then wants to run
        models.in_use.change(lambda: gr.update(selected=COMPARE), outputs=tabs, **NO_QUEUE)
        models.in_use.change(prompt_for, [shared.pair, compare.prompt], compare.prompt, **NO_QUEUE)
        _remember(page, shared, compare, models)
        gr.api(callbacks.api(pair), api_name="compare", api_description=api_description(), **ENGINE)
    return cast(gr.Blocks, page)


def prompt_for(pair: ModelPair, prompt: str) -> Any:
    """Replace an example for another kind of model with this pair's first example."""
    examples = bundled_prompts(pair.target.prompts)
    others = {example for kind in get_args(Prompts) for example in bundled_prompts(kind)}.difference(examples)
    return examples[0] if prompt in others else gr.skip()


def _remember(page: gr.Blocks, shared: Shared, compare: CompareTab, models: ModelsTab) -> None:
    registry = shared.registry
    remembered = {"prompt": compare.prompt, **compare.controls}
    start = widgets.start_values(registry.default)
    first = [bundled_prompts(registry.default.target.prompts)[0], *start.values()]
    inputs = list(remembered.values())
    js = script("settings.js", "remember", json.dumps(list(remembered)), json.dumps(first))
    gr.on([component.change for component in inputs], None, inputs, js=js)
    pair_js = script("settings.js", "rememberPair", json.dumps(values_of(registry.default)))
    models.in_use.change(None, models.in_use, js=pair_js)

    saved = channel()
    parts = {"message": compare.message, "pair": shared.pair, "header": shared.header}
    outputs: dict[str, Any] = {**remembered, **models.controls, **parts}
    ready = {compare.run: gr.update(interactive=True), shared.session_open: True}

    def restored(saved: str) -> dict[Any, Any]:
        return {outputs[name]: value for name, value in restore(registry, saved, start).items()} | ready

    recall = script("settings.js", "recall", json.dumps([*remembered, *models.controls]))
    # queued: otherwise Gradio does not fire the state's change event, which updates everything about the pair
    loaded = page.load(restored, saved, [*outputs.values(), *ready], js=recall, **PRIVATE)
    loaded.then(None, inputs, js=js)
    compare.preload(loaded)
    models.list_after(loaded)


def restore(registry: Registry, saved: str, built: dict[str, Any]) -> dict[str, Any]:
    """Return what a link or the browser's storage changes: prompt, controls, message, pair and header, by name.

    `saved`: a JSON object of strings. `built`: the controls' values when the page was built.
    """
    try:
        values = TypeAdapter(dict[str, str]).validate_json(saved or "{}")
    except ValidationError:  # not sent by our script
        values = {}
    pair, pair_error = _pair(registry, {name: values[name] for name in PAIR_NAMES if name in values})
    settings, setting_error = widgets.settings_from_link(pair, values, built)
    changed = {name: value for name, value in settings if value != built[name]}
    if pair != registry.default:
        example = bundled_prompts(pair.target.prompts)[0]
        changed |= {"prompt": example, "pair": pair, "header": header_html(pair), **values_of(pair)}
    if "prompt" in values:
        changed["prompt"] = values["prompt"]
    if error := pair_error or setting_error:
        changed["message"] = alert(error)
    return changed


def _pair(registry: Registry, named: dict[str, str]) -> tuple[ModelPair, SpecdemoError | None]:
    if not named:
        return registry.default, None
    start = values_of(registry.default)
    if "target" in named:  # such a link lists only differences from its target's defaults
        start |= registry.default_runtime(named["target"]).model_dump() | {"draft": "", "draft_device": ""}
    try:
        return registry.choose(start | named), None
    except SpecdemoError as error:
        return registry.default, type(error)(f"The link's pair cannot be used. {error}")
