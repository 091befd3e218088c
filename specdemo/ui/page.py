"""The page. Callbacks read widgets into settings, iterate, and hand on what to show; there is no arithmetic here.

Comparisons run one at a time, since two at once would spoil each other's clocks: they share one queue, the
page's and the API's alike.
"""

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
import plotly
from markupsafe import Markup
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from specdemo.engines import load_engine
from specdemo.explain import SAMPLING_CAVEAT
from specdemo.models.pairs import ASSETS, bundled_prompts
from specdemo.records import Model, ModelPair
from specdemo.ui.callbacks import Callbacks, api_description, buttons, left, restore, show_valid, waiting
from specdemo.ui.charts import acceptance_figure, clock_figure
from specdemo.ui.controls import DEFAULTS, INITIALLY, NAMES, Control, control, visibility
from specdemo.ui.session import Sessions
from specdemo.ui.theme import theme
from specdemo.worker import Worker

PAGE = ASSETS / "page"
_SCRIPTS = ("plotly/plotly.min.js", "player.js", "pane.js", "chart.js", "race.js", "anatomy.js")
_MAIN = (
    "engine",
    "drafter",
    "policy",
    "num_assistant_tokens",
    "assistant_confidence_threshold",
    "max_assistant_tokens",
    "max_ngram_size",
    "max_new_tokens",
)


def serve(
    pair: ModelPair, *, host: str | None = None, port: int | None = None, auth: tuple[str, str] | None = None
) -> None:
    """Start the page and stay until interrupted or terminated."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    worker = Worker(partial(load_engine, pair=pair))
    try:
        build_page(Sessions(worker), pair).launch(**launch_options(), server_name=host, server_port=port, auth=auth)
    finally:
        worker.close()


def launch_options() -> dict[str, Any]:
    """Options of `Blocks.launch`: style, and our files and Plotly's served from this host."""
    plotly_files = Path(plotly.__file__).parent / "package_data"
    routes = [
        Mount("/specdemo/plotly", StaticFiles(directory=plotly_files)),
        Mount("/specdemo", StaticFiles(directory=PAGE)),
    ]
    return {
        "app_kwargs": {"routes": routes},
        "theme": theme(),
        "css_paths": [PAGE / "style.css"],
        "head": f"<script>{_text('settings.js')}</script>",  # inline: needed as soon as the page loads
        "footer_links": ["api", "settings"],
        "favicon_path": PAGE / "favicon.svg",
        "ssr_mode": False,
        "share": False,
    }


def build_page(sessions: Sessions, pair: ModelPair) -> gr.Blocks:
    """The page for a loaded pair."""
    with gr.Blocks(title="specdemo", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(header_html(pair), elem_id="header")
        callbacks = Callbacks(sessions)
        with gr.Tabs():
            with gr.Tab("Compare"):
                prompt, actions = _ask()
                message = gr.HTML(elem_id="message", elem_classes="message")
                controls = _controls(pair)
                figures = f"{{ clock: {clock_figure()}, acceptance: {acceptance_figure()} }}"
                race = _view("race.html", f"new Race(element, {figures})", *_SCRIPTS)
            with gr.Tab("Anatomy"):
                anatomy = _anatomy(callbacks, race)
        _connect(page, callbacks, prompt, controls, [race, message, anatomy], *actions)
    assert isinstance(page, gr.Blocks)  # leaving the context gives it no other type, as mypy cannot see
    return page


def _ask() -> tuple[gr.Textbox, list[gr.Button]]:
    """The prompt with examples, and the buttons Run, Stop and Leave."""
    with gr.Column(elem_id="ask"):
        with gr.Row(equal_height=False):
            prompt = gr.Textbox(
                bundled_prompts()[0], label="Prompt", lines=3, max_lines=12, elem_id="prompt", scale=8
            )
            with gr.Column(scale=1, min_width=200, elem_id="actions"):
                run = gr.Button("Run", variant="primary", elem_id="run")
                stop = gr.Button("Stop", variant="stop", elem_id="stop", visible=False)
                leave = gr.Button("Leave", variant="stop", elem_id="leave", visible=False)
                copy = gr.Button("Copy link", elem_id="copy")
                copy.click(None, js="() => settings.copyLink()")
        gr.Examples([[text] for text in bundled_prompts()], prompt, label="Try one of these", elem_id="examples")
    return prompt, [run, stop, leave]


def _anatomy(callbacks: Callbacks, race: gr.HTML) -> gr.HTML:
    """The view of a run's rounds, which an uploaded file can fill as well as a run."""
    upload = gr.UploadButton("Open a JSON file", file_types=[".json"], type="binary", elem_id="open", size="sm")
    message = gr.HTML(elem_classes="message")
    anatomy = _view("anatomy.html", "new Anatomy(element)")
    upload.upload(
        callbacks.open,
        upload,
        [race, message, anatomy],
        api_visibility="private",
        show_progress="hidden",
        queue=False,
    )
    return anatomy


def _view(template: str, script: str, *files: str) -> gr.HTML:
    """A view that one of our scripts draws, from the value it receives."""
    head = "".join(f'<script src="specdemo/{name}"></script>' for name in files)
    mount = f"""
        const mount = () => {{
          if (typeof Chart === "undefined" || typeof Anatomy === "undefined") return setTimeout(mount, 30);
          const view = {script};
          watch("value", () => view.receive(props.value));
          view.receive(props.value);
        }};
        mount();
    """
    return gr.HTML("", html_template=_text(template), js_on_load=mount, head=head)


def _connect(
    page: gr.Blocks,
    callbacks: Callbacks,
    prompt: gr.Textbox,
    controls: dict[str, Control],
    views: list[gr.HTML],
    *run_stop_leave: gr.Button,
) -> None:
    run, stop, leave = run_stop_leave
    _, message, _ = views
    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
    queue: dict[str, Any] = {"concurrency_id": "engine", "concurrency_limit": 1}

    asked = run.click(waiting, outputs=[message, *run_stop_leave], **private)
    started = asked.then(
        callbacks.run,
        [prompt, *controls.values()],
        [*views, *run_stop_leave],
        show_progress="minimal",
        show_progress_on=message,
        api_visibility="private",
        **queue,
    )
    started.then(partial(buttons, "idle"), outputs=run_stop_leave, **private)
    stop.click(callbacks.stop, **private)
    leave.click(left, outputs=[message, *run_stop_leave], cancels=started, **private)
    page.unload(callbacks.stop)
    gr.api(callbacks.api(), api_name="compare", api_description=api_description(), **queue)

    choosers = [controls["engine"], controls["drafter"], controls["policy"]]
    dependent = [controls[name] for name in INITIALLY]
    gr.on([chooser.change for chooser in choosers], show_valid, choosers, dependent, **private)

    remembered: dict[str, Control] = {"prompt": prompt, **controls}
    names, defaults = json.dumps(list(remembered)), json.dumps([bundled_prompts()[0], *DEFAULTS])
    inputs = list(remembered.values())
    remember = f"(...values) => settings.remember({names}, {defaults}, values)"
    gr.on([component.change for component in inputs], None, inputs, js=remember)
    saved = gr.Textbox(visible=False)
    page.load(restore, saved, [*inputs, message], js=f"() => settings.recall({names})", **private)


def header_html(pair: ModelPair) -> str:
    """Name, question, and what is loaded where."""
    runtime = pair.runtime
    draft = f" + draft {_model(pair.draft)}" if pair.draft else ", no draft"
    devices = (
        runtime.device
        if runtime.draft_device in (None, runtime.device)
        else f"{runtime.device}, draft on {runtime.draft_device}"
    )
    loaded = f"{pair.name} · target {_model(pair.target)}{draft} · {devices}, precision {runtime.precision}"
    return str(
        Markup(
            "<header><h1>specdemo</h1>"
            "<p>Does speculative decoding help this model, on this machine, for this prompt?</p>"
            "<span>{}</span></header>"
        ).format(loaded)
    )


def _model(model: Model) -> str:
    return f"{model.parameters / 1e6:.1f}M {model.weights}"


def _controls(pair: ModelPair) -> dict[str, Control]:
    """A control for each setting, in the order of the settings type; without a draft only lookup is offered."""
    made: dict[str, Control] = {}
    shown, values = INITIALLY, {}
    if pair.draft is None:
        values = {"drafter": {"value": "lookup"}}
        shown = {**visibility("genai", "lookup", "constant"), "drafter": False}

    def add(name: str) -> None:
        options = values.get(name, {})
        made[name] = control(name, visible=shown.get(name, True), min_width=200, elem_classes=["genai"], **options)

    with gr.Row(elem_classes="controls"):
        for name in _MAIN:
            add(name)
    with gr.Accordion("Sampling and more", open=False, elem_id="more"):
        with gr.Row(elem_classes="controls"):
            for name in NAMES:
                if name not in made:
                    add(name)
        gr.HTML(str(Markup("<p>{}</p>").format(SAMPLING_CAVEAT)), elem_id="caveat")
    return {name: made[name] for name in NAMES}


def _text(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")
