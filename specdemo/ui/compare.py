"""The Compare tab: a prompt, the controls and the race; and the Anatomy tab of the run that it shows."""

import inspect
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import gradio as gr
from markupsafe import Markup

from specdemo.errors import FileError, PromptError, SettingsError, SpecdemoError
from specdemo.exports.code import FLAVOURS, code
from specdemo.exports.html import FILE_KINDS, make_file
from specdemo.exports.schema import from_text
from specdemo.files import is_text
from specdemo.models.catalogue import bundled_prompts
from specdemo.models.checks import with_tokenizers_compared
from specdemo.records import MAX_TURNS, ModelPair, Turn
from specdemo.results.words import SAMPLING_CAVEAT, is_chat
from specdemo.settings import GenerationSettings
from specdemo.strategies import parameters
from specdemo.ui import controls as widgets
from specdemo.ui.controls import AT_HAND, FIELDS, NAMES, Control, default_values
from specdemo.ui.feed import end_event
from specdemo.ui.parts import alert, examples_html, html, notice
from specdemo.ui.registry import Shared
from specdemo.ui.server import sent
from specdemo.ui.session import ENGINE, FILES, PRIVATE, QUIET, FinishedRun, Sessions, check_session, in_child
from specdemo.ui.views import script, view


class CompareCallbacks:
    def __init__(self, sessions: Sessions, *, local: bool = False) -> None:
        """`local`: only this machine reaches the page, which may then show paths."""
        self._sessions = sessions
        self._local = local

    def run(
        self,
        request: gr.Request,
        session_open: bool,
        pair: ModelPair,
        turns: tuple[Turn, ...],
        continue_chat: bool,
        prompt: str,
        *values: Any,
    ) -> Iterator[list[Any]]:
        """Yield updates of race view, message, chat, finished run and buttons."""
        check_session(session_open)
        try:
            settings = _settings(pair, values)
        except SettingsError as error:
            yield [gr.skip(), alert(error), *[gr.skip()] * 3, *buttons("idle")]
            return
        history = chat_so_far(turns, prompt) if continue_chat and is_chat(pair, settings) else ()
        before: list[Any] = []
        for update in self._sessions.run(str(request.session_hash), pair, prompt, settings, history):
            # without an answer (the run failed or was stopped), the chat stays as it was
            chat = _chat((*history, update.turn)) if update.turn is not None else [gr.skip()] * 2
            race = gr.skip() if update.feed is None else update.feed
            news = [race, update.message, *chat, update.finished, *buttons("running")]
            # skip unchanged widgets: every update takes processor time from an engine on this machine
            yield [gr.skip() if new == old else new for new, old in zip_longest(news, before)]
            before = news

    def wait(self, request: gr.Request) -> list[Any]:
        """Message and buttons; `gradio.js` adds the position in the queue."""
        return [self._sessions.waiting(str(request.session_hash)), *buttons("waiting")]

    def move(self, request: gr.Request, pair: ModelPair, *values: Any) -> None:
        with suppress(SettingsError):
            self._sessions.move(str(request.session_hash), _settings(pair, values))

    def prepare(self, session_open: bool, pair: ModelPair, *values: Any) -> None:
        if session_open:
            with suppress(SettingsError):
                settings = _settings(pair, values)
                # on a public page, one visitor must not replace the pair that another has loaded
                self._sessions.prepare(pair, settings, load=self._local)

    def repeat(
        self, request: gr.Request, session_open: bool, pair: ModelPair, finished: FinishedRun | None
    ) -> Iterator[list[Any]]:
        """In the background; yield updates of race view and finished run."""
        check_session(session_open)
        if finished is not None:
            for news in self._sessions.repeat(str(request.session_hash), pair, finished):
                yield [gr.skip(), gr.skip()] if news is None else list(news)

    def share(self, event: gr.EventData) -> Iterator[list[Any]]:
        """Yield updates of message and file."""
        kind, record = sent(event, "kind"), sent(event, "record")
        try:
            if not isinstance(kind, str) or kind not in FILE_KINDS or not isinstance(record, str):
                raise FileError("The page sent something unexpected; reload it.")
            failure = {"what": "This run cannot be drawn", "otherwise": "share it as JSON"}
            content = yield from in_child(make_file, kind, record, waiting=[gr.skip(), ""], **failure)
        except FileError as error:
            yield [alert(error), ""]
            return
        name = f"specdemo-race.{kind}"
        shared_file = {"content": b64encode(content).decode(), "type": FILE_KINDS[kind].media_type, "name": name}
        yield ["", json.dumps(shared_file)]

    def code(self, flavour: str, pair: ModelPair, prompt: str, *values: Any) -> list[str]:
        try:
            settings = _settings(pair, values)
            lines = code(flavour, with_tokenizers_compared(pair), settings, prompt, local=self._local)
        except SpecdemoError as error:
            return [alert(error), ""]
        return [html("code", lines), lines]

    def open(self, data: bytes) -> Iterator[list[Any]]:
        """Yield updates of race view and message."""
        waiting = [gr.skip(), notice("Reading the file …")]
        try:
            failure = {"what": "This file cannot be read", "otherwise": "open one saved with Share"}
            comparison = yield from in_child(from_text, data, failure["otherwise"], waiting=waiting, **failure)
            yield [end_event(comparison), ""]
        except FileError as error:
            yield [gr.skip(), alert(error)]

    def api(self, pair: ModelPair) -> Callable[..., Iterator[dict[str, Any] | None]]:
        """Return a function of the prompt and every setting. It yields None from time to time before its result, so
        that Gradio notices a client that has left.
        """

        def compare(prompt: Any, *values: Any) -> Iterator[dict[str, Any] | None]:
            try:
                if not is_text(prompt):
                    raise PromptError("The prompt is not text; send a string without lone surrogates.")
                settings = GenerationSettings.checked(**dict(zip(NAMES, values, strict=True)))
                yield from self._sessions.compare(pair, prompt, settings)
            except SpecdemoError as error:
                raise gr.Error(str(error), print_exception=False) from error

        text = inspect.Parameter("prompt", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str)
        options = [
            inspect.Parameter(name, text.kind, annotation=widgets.annotation(name), default=value)
            for name, value in default_values(pair).items()
        ]
        vars(compare)["__signature__"] = inspect.Signature([text, *options], return_annotation=dict[str, Any])
        compare.__annotations__ = {parameter.name: parameter.annotation for parameter in (text, *options)}
        return compare


def _settings(pair: ModelPair, values: Sequence[Any]) -> GenerationSettings:
    return widgets.settings_from(pair, dict(zip(NAMES, values, strict=True)))


def api_description() -> str:
    lines = [f"{name}: {field.description}" for name, field in FIELDS.items()]
    return "\n".join(["Compare plain and speculative decoding; returns a JSON object of schema 2.", *lines])


def buttons(state: Literal["idle", "waiting", "running"]) -> list[dict[str, Any]]:
    labels = {"idle": "Run", "waiting": "Starting …", "running": "Running …"}
    return [
        gr.update(value=labels[state], interactive=state == "idle"),
        gr.update(visible=state == "running"),
        gr.update(visible=state == "waiting"),
    ]


def cancel_run() -> list[Any]:
    return [notice("Cancelled."), *buttons("idle")]


def chat_so_far(turns: tuple[Turn, ...], prompt: str) -> tuple[Turn, ...]:
    """Drop the last turn if this is the same message, so that it is answered again."""
    again = bool(turns) and turns[-1].prompt == prompt
    return turns[:-1] if again else turns[-MAX_TURNS:]


def _chat(turns: tuple[Turn, ...], **more: Any) -> list[Any]:
    """Return updates of the turns, and of the switch that continues the chat, disabled without any."""
    return [turns, gr.update(interactive=True) if turns else gr.update(interactive=False, value=False, **more)]


DECODING = ("engine", "drafter", "policy", *sorted(parameters()))  # as opposed to prompt, length and sampling
APPLIED = (*DECODING, "kv_cache")  # they change when a measured setting is applied
ANATOMY = "anatomy"
COMPARE = "compare"
FIND, FIND_TITLE = "Start", "Find my best setting"
FIND_HELP = "<p>Tries lookaheads and policies with this prompt, and sets the fastest.</p>"
QUICK, THOROUGH = "30 seconds", "Thorough"
_WHEN = '<p class="round">Takes effect in the next round.</p><p class="run">Takes effect on the next run.</p>'
_MAIN = ("drafter", "max_ngram_size", "max_new_tokens")


class CompareTab(NamedTuple):
    """`run` is disabled until the page is restored, so that nobody runs a pair other than the link's. `prepare` gets
    the engine ready after an event.
    """

    prompt: gr.Textbox
    message: gr.HTML
    controls: dict[str, Control]
    race: gr.HTML
    find: "FindButtons"
    run: gr.Button
    prepare: Callable[[Any], Any]


class FindButtons(NamedTuple):
    start: gr.Button
    stop: gr.Button
    effort: gr.Radio
    message: gr.HTML


EXAMPLES = (
    '<div class="examples"><button type="button" class="opens" popovertarget="example-list">Examples</button>'
    '<div class="menu" id="example-list" popover></div></div>'
)
OWN_RUNS = (
    "<table><caption>Your runs of this prompt</caption><thead><tr><th>lookahead</th><th>accepted</th>"
    "<th>tokens a round</th><th>speedup <small>(95 % interval)</small></th></tr></thead><tbody></tbody></table>"
    "<div class='chart runs'></div>"
    "<p>A longer lookahead writes more per round, but proposing and checking wrong tokens takes time.</p>"
)


def compare_tab(callbacks: CompareCallbacks, shared: Shared) -> CompareTab:
    """Build both tabs."""
    session_open, pair, first = shared.session_open, shared.pair, shared.registry.default
    with gr.Tab("Compare", id=COMPARE, elem_id="compare"), gr.Row(elem_id="first", equal_height=False):
        with gr.Column(elem_id="rail", scale=0, min_width=300):
            example = bundled_prompts(first.target.prompts)[0]
            prompt = gr.Textbox(example, label="Prompt", show_label=False, lines=3, max_lines=3, elem_id="prompt")
            with gr.Row(elem_id="below-prompt"):
                gr.HTML("<p role='status'>Enter runs</p>", elem_id="keys")
                menu = view("examples", EXAMPLES, value=examples_html(first), elem_id="examples")
            with gr.Row(elem_id="actions"):
                run = gr.Button("Run", variant="primary", elem_id="run", interactive=False)
                stop_button = gr.Button("Stop", variant="stop", elem_id="stop", visible=False)
                cancel_button = gr.Button("Cancel", variant="stop", elem_id="cancel", visible=False)
            at_first: dict[str, Any] = {"interactive": False, "visible": first.target.chat_template}
            continue_chat = gr.Checkbox(
                label="Continue as a chat", elem_id="continue-chat", container=False, **at_first
            )
            message = gr.HTML(elem_id="message", elem_classes="message")
            controls, find = _controls(callbacks, pair, first, prompt, message)
            # here, because Gradio miscounts tabs that have other components between them
            chat, finished = [gr.State(()), continue_chat], gr.State(None)
        with gr.Column(elem_id="stage", min_width=0):
            race, shared_file = view("race"), gr.Textbox(visible=False)
    with gr.Tab("Anatomy", id=ANATOMY):
        upload = gr.UploadButton("Open a JSON file", file_types=[".json"], type="binary", elem_id="open", size="sm")
        unreadable = gr.HTML(elem_classes="message")
        view("anatomy")
    buttons_of_run, settings = [run, stop_button, cancel_button], [*controls.values()]

    started = run.click(callbacks.wait, outputs=[message, *buttons_of_run], **PRIVATE).then(
        callbacks.run,
        [session_open, pair, *chat, prompt, *settings],
        [race, message, *chat, finished, *buttons_of_run],
        show_progress="minimal",
        show_progress_on=message,
        api_visibility="private",
        **ENGINE,
    )
    started.then(partial(buttons, "idle"), outputs=buttons_of_run, **PRIVATE)
    started.success(None, js=script("main.js", "setRepeating", "true"))
    repeated = started.success(
        callbacks.repeat,
        [session_open, pair, finished],
        [race, finished],
        **QUIET,
        concurrency_limit=None,  # outside the engine's queue: it runs only while nobody else needs the engine
        trigger_mode="multiple",
    )
    repeated.then(None, js=script("main.js", "setRepeating", "false"))
    stop_button.click(shared.sessions.stop("run"), **PRIVATE)
    stop_button.click(None, js=script("main.js", "skipPlayback"))
    cancel_button.click(cancel_run, outputs=[message, *buttons_of_run], cancels=started, **PRIVATE)
    run.click(None, js=script("main.js", "setRequested", "true"))
    for over in (started.then, cancel_button.click):
        over(None, js=script("main.js", "setRequested", "false"))

    moved = [controls[name].input for name in AT_HAND]  # by the visitor, not by a pair that has just been loaded
    gr.on(moved, callbacks.move, [pair, *settings], trigger_mode="always_last", **PRIVATE)
    prepared = [session_open, pair, *settings]
    reading = [prompt.focus, *(controls[name].change for name in DECODING)]
    gr.on(reading, callbacks.prepare, prepared, trigger_mode="always_last", **PRIVATE)
    choosers = [controls["engine"], controls["drafter"], controls["policy"]]
    valid = [*(controls[name] for name in _initially(first)), message]
    changed = [pair.change, *(chooser.change for chooser in choosers)]
    gr.on(changed, widgets.show_valid, [pair, *choosers], valid, **PRIVATE)
    names = ["drafter", "policy", *sorted(parameters())]
    of_drafter = [controls[name] for name in names]
    recalled = script("settings.js", "recallDrafter", json.dumps(names))
    controls["drafter"].input(None, of_drafter, of_drafter, js=recalled)
    pair.change(lambda new: _chat((), visible=new.target.chat_template), pair, chat, **PRIVATE)
    pair.change(examples_html, pair, menu, **PRIVATE)
    drawn = race.download(callbacks.share, outputs=[message, shared_file], **QUIET, **FILES)
    drawn.then(None, shared_file, js=script("files.js", "saveSharedFile"))
    upload.upload(callbacks.open, upload, [race, unreadable], **QUIET, **FILES)

    def prepare(after: Any) -> Any:
        return after.then(callbacks.prepare, prepared, **PRIVATE)

    return CompareTab(prompt, message, controls, race, find, run, prepare)


def _initially(pair: ModelPair) -> dict[str, dict[str, Any]]:
    start = widgets.start_values(pair)
    return widgets.appearance(pair, start["engine"], start["drafter"], start["policy"])


def _controls(
    callbacks: CompareCallbacks, pair: gr.State, first: ModelPair, prompt: gr.Textbox, message: gr.HTML
) -> tuple[dict[str, Control], FindButtons]:
    """The common controls, then the others in a panel that opens."""
    controls: dict[str, Control] = {}
    start, options = widgets.start_values(first), _initially(first)

    def add(*names: str) -> None:
        for name in names:
            controls[name] = widgets.control(name, value=start[name], min_width=120, **options.get(name, {}))

    with gr.Column(elem_id="at-hand", elem_classes="controls"):
        add(*AT_HAND)
    gr.HTML(_WHEN, elem_id="when")
    gr.HTML(OWN_RUNS, elem_id="own-runs")
    with gr.Column(elem_id="main", elem_classes="controls"):
        add(*_MAIN)
    _panel("finding", FIND_TITLE)
    with gr.Row(elem_id="finding", elem_classes="panel"):
        hint = gr.HTML(FIND_HELP, elem_id="find-message", elem_classes="message")
        effort = gr.Radio([QUICK, THOROUGH], value=QUICK, container=False, show_label=False, elem_id="effort")
        start_button = gr.Button(FIND, elem_id="find", size="sm", min_width=90)
        stop_button = gr.Button("Stop", variant="stop", elem_id="stop-find", size="sm", visible=False, min_width=60)
    _panel("advanced", "More settings")
    with gr.Column(elem_id="advanced", elem_classes="controls panel"):
        add(*(name for name in NAMES if name not in controls))
        gr.HTML(str(Markup("<p>{}</p>").format(SAMPLING_CAVEAT)), elem_id="caveat")
        ordered = {name: controls[name] for name in NAMES}
        with gr.Row(elem_id="as-code"):
            names = [(software.title, name) for name, software in FLAVOURS.items()]
            flavour = gr.Dropdown(
                names, label="Software", container=False, filterable=False, elem_id="flavour", min_width=200
            )
            copy = gr.Button("Copy as code", elem_id="copy-code", size="sm", min_width=120)
            lines = gr.Textbox(visible=False)
    copied = copy.click(callbacks.code, [flavour, pair, prompt, *ordered.values()], [message, lines], **PRIVATE)
    copied.then(None, lines, js=script("settings.js", "copyCode"))
    return ordered, FindButtons(start_button, stop_button, effort, hint)


def _panel(name: str, title: str) -> None:
    """A panel of our own: Gradio builds a closed accordion when it opens, and loses earlier changes of its values."""
    with gr.Column(elem_id=f"open-{name}", elem_classes="opener"):
        gr.Button(title, size="sm").click(None, js=script("main.js", "toggle", json.dumps(name)))


def apply_setting(settings: GenerationSettings | None) -> list[Any]:
    """Return updates of the `APPLIED` controls; None changes none of them."""
    return [gr.skip() if settings is None else getattr(settings, name) for name in APPLIED]
