"""The Compare tab: a prompt, the controls, the race; and the Anatomy tab of its last run."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gradio as gr
from markupsafe import Markup

from specdemo.experiments.sweep import Candidate
from specdemo.models.pairs import bundled_prompts
from specdemo.presentation.code import FLAVOURS
from specdemo.presentation.explain import SAMPLING_CAVEAT
from specdemo.records import ModelPair
from specdemo.ui.callbacks.compare import (
    Callbacks,
    begun_anew,
    buttons,
    kept_chat,
    left,
    show_valid,
    to_keep,
    waiting,
)
from specdemo.ui.controls import AT_HAND, NAMES, Control, classes, control, explanation, initially, start_values
from specdemo.ui.events import ENGINE, FILES, PRIVATE, QUIET, Stop
from specdemo.ui.html.examples import examples_html
from specdemo.ui.html.figures import race_figures
from specdemo.ui.views import script, view

DECODING = (
    "engine",
    "drafter",
    "policy",
    "num_assistant_tokens",
    "assistant_confidence_threshold",
    "max_assistant_tokens",
    "tree_depth",
    "branching_factor",
    "max_ngram_size",
)
"""Settings of how to decode, as opposed to what and how much."""
APPLIED = (*DECODING, "kv_cache")
"""What is set where a measured setting is applied."""
ANATOMY = "anatomy"
COMPARE = "compare"
"""Id of its tab."""
FIND = "Find my best setting"
QUICK, THOROUGH = "30 seconds", "Thorough"
_FROM_BROWSER = script("settings.js", "withChat")
_WHEN = (
    '<p class="round">Move it: the run follows from its next round.</p>'
    '<p class="run">Takes effect on the next run.</p>'
)
_MAIN = ("drafter", "max_ngram_size", "max_new_tokens")


class CompareTab(NamedTuple):
    """What other tabs and the page need from it."""

    prompt: gr.Textbox
    message: gr.HTML
    controls: dict[str, Control]
    race: gr.HTML
    find: "FindButtons"
    run: gr.Button
    """Disabled until the page is restored, so that nobody runs a different pair than the link's."""
    go_on: Callable[[Any], Any]
    """Takes an event, after which the chat that the browser kept goes on."""


class FindButtons(NamedTuple):
    """What starts and stops the search for the best setting, and how long it may take."""

    start: gr.Button
    stop: gr.Button
    effort: gr.Radio


class _Buttons(NamedTuple):
    run: gr.Button
    stop: gr.Button
    leave: gr.Button


class _Chat(NamedTuple):
    history: gr.State
    turn: gr.State
    """The last run's, which the history does not hold yet: the same message again runs again."""
    anew: gr.Button


def compare_tab(callbacks: Callbacks, known: gr.State, pair: gr.State, first: ModelPair, stop: Stop) -> CompareTab:
    """Both tabs' contents, for the visitor's pair, initially `first`; `stop` ends a visitor's run."""
    with gr.Tab("Compare", id=COMPARE, elem_id="compare"), gr.Row(elem_id="first", equal_height=False):
        with gr.Column(elem_id="rail", scale=0, min_width=300):
            prompt, run, chat = _ask(pair, first)
            message = gr.HTML(elem_id="message", elem_classes="message")
            controls = _controls(first)
            find = _find()
            _as_code(callbacks, pair, prompt, controls, message)
            # in here: what is in Tabs beside its tabs confuses their order
            finished = gr.State(None)
            kept = gr.Textbox(visible=False)  # the chat that goes on after a reload of this browser tab
        with gr.Column(elem_id="stage", min_width=0):
            race = view("race", options=race_figures())
            _connect_share(callbacks, race, message)
    with gr.Tab("Anatomy", id=ANATOMY):
        anatomy = _anatomy(callbacks, race)
    tab = CompareTab(
        prompt,
        message,
        controls,
        race,
        find,
        run.run,
        lambda after: after.then(kept_chat, [pair, kept], [*chat], js=_FROM_BROWSER, **PRIVATE),
    )
    _connect_run(callbacks, known, pair, tab, anatomy, finished, run, chat, kept)
    run.stop.click(stop, **PRIVATE)
    moved = [controls[name].change for name in AT_HAND]
    gr.on(moved, callbacks.move, [pair, *controls.values()], trigger_mode="always_last", **PRIVATE)
    fresh = chat.anew.click(begun_anew, outputs=[*chat, kept], **PRIVATE)
    fresh.then(None, kept, js=script("settings.js", "keepChat"))
    pair.change(kept_chat, [pair, kept], [*chat], js=_FROM_BROWSER, **PRIVATE)
    chat.anew.click(None, js=script("main.js", "anew"))
    _connect_controls(pair, controls, first)
    return tab


def _ask(pair: gr.State, first: ModelPair) -> tuple[gr.Textbox, _Buttons, _Chat]:
    """The prompt with a menu of examples, and the buttons."""
    shown = bundled_prompts(first.target.prompts)[0]
    prompt = gr.Textbox(shown, label="Prompt", lines=3, max_lines=3, elem_id="prompt")
    with gr.Row(elem_id="beneath"):
        gr.HTML("<p>Enter runs · Shift+Enter: new line</p>", elem_id="keys")
        menu = view("examples", value=examples_html(first), elem_id="examples")
    with gr.Row(elem_id="actions"):
        run = gr.Button("Run", variant="primary", elem_id="run", interactive=False)
        stop = gr.Button("Stop", variant="stop", elem_id="stop", visible=False)
        leave = gr.Button("Leave the queue", variant="stop", elem_id="leave", visible=False)
        anew = gr.Button("New chat", elem_id="anew", visible=False)
        copy = gr.Button("Copy link", elem_id="copy")
    gr.HTML("<p>A new message continues this chat; the same one again is answered anew.</p>", elem_id="goes-on")
    copy.click(None, js=script("settings.js", "copyLink"))
    pair.change(examples_html, pair, menu, **PRIVATE)
    return prompt, _Buttons(run, stop, leave), _Chat(gr.State(()), gr.State(None), anew)


def _find() -> FindButtons:
    with gr.Row(elem_id="finding"):
        start = gr.Button(FIND, elem_id="find", size="sm", min_width=160)
        effort = gr.Radio([QUICK, THOROUGH], value=QUICK, container=False, show_label=False, elem_id="effort")
        stop = gr.Button("Stop", variant="stop", elem_id="stop-find", size="sm", visible=False, min_width=60)
    return FindButtons(start, stop, effort)


def _as_code(
    callbacks: Callbacks, pair: gr.State, prompt: gr.Textbox, controls: dict[str, Control], message: gr.HTML
) -> None:
    """What the settings are in other software, to copy."""
    with gr.Row(elem_id="as-code"):
        names = [(software.title, name) for name, software in FLAVOURS.items()]
        flavour = gr.Dropdown(
            names, label="Software", container=False, filterable=False, elem_id="flavour", min_width=200
        )
        copy = gr.Button("Copy as code", elem_id="copy-code", size="sm", min_width=120)
    lines = gr.Textbox(visible=False)
    asked = copy.click(callbacks.code, [flavour, pair, prompt, *controls.values()], [message, lines], **PRIVATE)
    asked.then(None, lines, js=script("settings.js", "copyCode"))


def applied(best: Candidate | None) -> list[Any]:
    """Values of the controls `APPLIED` for a setting; None changes none of them."""
    return [gr.skip() if best is None else getattr(best.settings, name) for name in APPLIED]


def _anatomy(callbacks: Callbacks, race: gr.HTML) -> gr.HTML:
    """The view of a run's rounds, filled by a run or by an uploaded file."""
    upload = gr.UploadButton("Open a JSON file", file_types=[".json"], type="binary", elem_id="open", size="sm")
    message = gr.HTML(elem_classes="message")
    anatomy = view("anatomy")
    upload.upload(callbacks.open, upload, [race, message, anatomy], **QUIET, **FILES)
    return anatomy


def _controls(pair: ModelPair) -> dict[str, Control]:
    """A control for each setting, in the order of the settings type."""
    made: dict[str, Control] = {}
    shown, start = initially(pair), start_values(pair)
    chosen = classes(pair, start["engine"], start["drafter"], start["policy"])

    def add(*names: str) -> None:
        for name in names:
            visible = shown.get(name, True)
            made[name] = control(
                name, value=start[name], visible=visible, min_width=120, elem_classes=chosen.get(name)
            )
        if "policy" in names:
            made["policy"].info = explanation(pair, start["engine"], start["drafter"], start["policy"])

    with gr.Column(elem_id="at-hand", elem_classes="controls"):
        add(*AT_HAND)
    gr.HTML(_WHEN, elem_id="when")
    with gr.Column(elem_id="main", elem_classes="controls"):
        add(*_MAIN)
    # no accordion: Gradio makes what is in a closed one only when it opens, and its values change unheard until then
    with gr.Column(elem_id="more"):
        more = gr.Button("Advanced: engine, policy, sampling", size="sm")
        more.click(None, js=script("main.js", "toggleMore"))
    with gr.Column(elem_id="advanced", elem_classes="controls"):
        add(*(name for name in NAMES if name not in made))
        gr.HTML(str(Markup("<p>{}</p>").format(SAMPLING_CAVEAT)), elem_id="caveat")
    return {name: made[name] for name in NAMES}


def _connect_run(
    callbacks: Callbacks,
    known: gr.State,
    pair: gr.State,
    tab: CompareTab,
    anatomy: gr.HTML,
    finished: gr.State,
    run: _Buttons,
    chat: _Chat,
    kept: gr.Textbox,
) -> None:
    asked = run.run.click(waiting, outputs=[tab.message, *run], **PRIVATE)
    started = asked.then(
        callbacks.run,
        [known, pair, chat.history, chat.turn, tab.prompt, *tab.controls.values()],
        [tab.race, tab.message, anatomy, *chat, finished, *run],
        show_progress="minimal",
        show_progress_on=tab.message,
        api_visibility="private",
        **ENGINE,
    )
    started.then(partial(buttons, "idle"), outputs=run, **PRIVATE)
    keeping = started.success(to_keep, [pair, chat.history, chat.turn], kept, **PRIVATE)
    keeping.then(None, kept, js=script("settings.js", "keepChat"))
    started.success(
        callbacks.repeat,
        [known, pair, finished],
        [tab.race, finished],
        **QUIET,
        concurrency_limit=None,  # not in line for the engine: it takes its turn only if nobody else wants it
        trigger_mode="multiple",
    )
    run.leave.click(left, outputs=[tab.message, *run], cancels=started, **PRIVATE)


def _connect_share(callbacks: Callbacks, race: gr.HTML, message: gr.HTML) -> None:
    made = gr.Textbox(visible=False)
    asked = race.download(callbacks.share, outputs=[message, made], **QUIET, **FILES)
    asked.then(None, made, js=script("main.js", "saveMade"))


def _connect_controls(pair: gr.State, controls: dict[str, Control], first: ModelPair) -> None:
    choosers = [controls["engine"], controls["drafter"], controls["policy"]]
    dependent = [controls[name] for name in initially(first)]
    changes = [pair.change, *(chooser.change for chooser in choosers)]
    gr.on(changes, show_valid, [pair, *choosers], dependent, **PRIVATE)
