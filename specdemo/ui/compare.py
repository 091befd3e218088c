"""The Compare tab: a prompt, the controls and the race."""

import inspect
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Any, Literal

import gradio as gr
from pydantic import BaseModel, ValidationError

from specdemo.errors import FileError, PromptError, SettingsError, SpecdemoError
from specdemo.exports.code import SOFTWARE, code
from specdemo.exports.html import FILE_KINDS, make_file
from specdemo.files import is_text
from specdemo.models.catalogue import bundled_prompts, pair_settings
from specdemo.models.checks import with_tokenizers_compared
from specdemo.records import MAX_TURNS, ModelPair, Turn
from specdemo.results.agreement import sampling_caveat
from specdemo.results.words import is_chat
from specdemo.settings import GenerationSettings
from specdemo.strategies import Auto
from specdemo.ui import controls as widgets
from specdemo.ui.controls import FIELDS, LIVE_CONTROLS, NAMES, STRATEGY, Control
from specdemo.ui.events import ENGINE, FILES, NO_QUEUE, PRIVATE, check_session, event_value, run_in_child, stop_on
from specdemo.ui.parts import alert, examples_html, html, notice
from specdemo.ui.registry import Shared
from specdemo.ui.session import FinishedRun, Sessions
from specdemo.ui.views import channel, script, view


class _OpenedRun(BaseModel):
    """What the page sends of a run that was opened from a file or from the visitor's last runs."""

    pair: str
    prompt: str
    settings: dict[str, str]
    continued: bool


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
        **values: Any,
    ) -> Iterator[list[Any]]:
        """Yield updates of race view, message, chat, finished run and buttons."""
        check_session(session_open)
        try:
            settings = widgets.settings_from(pair, values)
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
        return [self._sessions.waiting_notice(str(request.session_hash)), *buttons("waiting")]

    def reopen(self, event: gr.EventData, pair: ModelPair, **values: Any) -> list[Any]:
        """Return updates of message, prompt and controls: an opened run's, as far as this pair has them."""
        try:
            opened = _OpenedRun.model_validate(event_value(event, "run"))
        except ValidationError:
            return [gr.skip()] * (2 + len(values))
        settings, error = widgets.settings_from_link(pair, opened.settings, pair_settings(pair).model_dump())
        rest = [f"This run is of {opened.pair}; Run uses {pair.name}."] * (opened.pair != pair.name)
        rest += [str(error)] * (error is not None) + ["Run would not continue its chat."] * opened.continued
        controls = [gr.skip() if new == values[name] else new for name, new in settings]
        return [notice(" ".join(rest)) if rest else "", opened.prompt, *controls]

    def update_settings(self, request: gr.Request, pair: ModelPair, **values: Any) -> None:
        with suppress(SettingsError):
            self._sessions.update_settings(str(request.session_hash), widgets.settings_from(pair, values))

    def preload(self, session_open: bool, pair: ModelPair, **values: Any) -> None:
        if session_open:
            with suppress(SettingsError):
                settings = widgets.settings_from(pair, values)
                # on a public page, one visitor must not replace the pair that another has loaded
                self._sessions.preload(pair, settings, load=self._local)

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
        kind, record = event_value(event, "kind"), event_value(event, "record")
        try:
            if not isinstance(kind, str) or kind not in FILE_KINDS or not isinstance(record, str):
                raise FileError("The page sent something unexpected; reload it.")
            failure = {"what": "This run cannot be drawn", "otherwise": "share it as JSON"}
            content = yield from run_in_child(make_file, kind, record, waiting=[gr.skip(), ""], **failure)
            shared_file = {
                "content": b64encode(content).decode(),
                "type": FILE_KINDS[kind].media_type,
                "name": f"specdemo-race.{kind}",
            }
            yield ["", json.dumps(shared_file)]
        except FileError as error:
            yield [alert(error), ""]

    def code(self, flavour: str, pair: ModelPair, prompt: str, **values: Any) -> list[str]:
        try:
            settings = widgets.settings_from(pair, values)
            lines = code(flavour, with_tokenizers_compared(pair), settings, prompt, local=self._local)
        except SpecdemoError as error:
            return [alert(error), ""]
        return [html("code", lines), lines]

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
            for name, value in pair_settings(pair)
        ]
        vars(compare)["__signature__"] = inspect.Signature([text, *options], return_annotation=dict[str, Any])
        compare.__annotations__ = {parameter.name: parameter.annotation for parameter in (text, *options)}
        return compare


def api_description() -> str:
    lines = [f"{name}: {field.description}" for name, field in FIELDS.items()]
    return "\n".join(["Compare plain and speculative decoding; returns a JSON object of schema 3.", *lines])


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
    """Drop the last turn if it has the same prompt, which is then answered again."""
    again = bool(turns) and turns[-1].prompt == prompt
    return turns[:-1] if again else turns[-MAX_TURNS:]


def _chat(turns: tuple[Turn, ...], **options: Any) -> list[Any]:
    """Return updates of the turns and of the switch that continues the chat, which is disabled without turns."""
    return [turns, gr.update(interactive=True) if turns else gr.update(interactive=False, value=False, **options)]


APPLIED_SETTINGS = (*STRATEGY, "kv_cache")  # they change when a measured setting is applied
COMPARE = "compare"
FIND = "Start"
FIND_HELP = html("paragraph", "Tries lookaheads, thresholds and policies, and sets one that is clearly faster.")
SEARCH_MINUTES = {"30 seconds": 0.5, "Thorough": 3.0}


class CompareTab:
    """`run` is disabled until the page is restored, because the pair may not be the link's yet."""

    def __init__(self, callbacks: CompareCallbacks, shared: Shared) -> None:
        self._callbacks, self._shared = callbacks, shared
        self._controls: dict[str, Control] = {}
        pair = shared.registry.default
        self._values = values = widgets.start_values(pair)
        self._appearance = widgets.appearance(pair, values["engine"], values["drafter"], values["policy"])
        # every component belongs to the tab: Gradio miscounts tabs that have others between them
        with gr.Tab("Compare", id=COMPARE, elem_id="compare"), gr.Row(elem_id="first", equal_height=False):
            with gr.Column(elem_id="rail", scale=0, min_width=0):
                self._add_prompt()
                self._add_main_controls()
                self._add_search_panel()
                self._add_settings_panel()
            with gr.Column(elem_id="stage", min_width=0):
                self.race, self._shared_file = view("race"), channel()
                self.finished = gr.State(None)
        self.controls: dict[str, Any] = {name: self._controls[name] for name in NAMES}
        self._connect_run()
        self._connect_controls()
        self._connect_exports()

    def preload(self, event: Any) -> None:
        inputs = [self._shared.session_open, self._shared.pair]
        event.then(self._callbacks.preload, inputs, inputs_kwargs=self.controls, **NO_QUEUE)

    def _add_prompt(self) -> None:
        pair = self._shared.registry.default
        example = bundled_prompts(pair.target.prompts)[0]
        self.prompt = gr.Textbox(example, label="Prompt", show_label=False, lines=3, max_lines=3, elem_id="prompt")
        with gr.Row(elem_id="below-prompt"):
            gr.HTML("<p role='status'>Enter runs</p>", elem_id="keys")
            self._examples = view("examples", html("examples_menu"), value=examples_html(pair), elem_id="examples")
        with gr.Row(elem_id="actions"):
            self.run = gr.Button("Run", variant="primary", elem_id="run", interactive=False)
            self._stop = gr.Button("Stop", variant="stop", elem_id="stop", visible=False)
            self._cancel = gr.Button("Cancel", variant="stop", elem_id="cancel", visible=False)
        continue_chat = gr.Checkbox(
            label="Continue as a chat",
            elem_id="continue-chat",
            container=False,
            interactive=False,
            visible=pair.target.chat_template,
        )
        self._chat = [gr.State(()), continue_chat]
        self.message = gr.HTML(elem_id="message", elem_classes="message")

    def _add_main_controls(self) -> None:
        with gr.Column(scale=0, elem_id="at-hand", elem_classes="controls"):
            self._add("policy", *LIVE_CONTROLS)
            gr.HTML(html("paragraph", Auto.explanation()), elem_id="automatic")
        gr.HTML(html("takes_effect"), elem_id="when")
        gr.HTML(html("own_runs"), elem_id="own-runs")
        with gr.Column(scale=0, elem_id="main", elem_classes="controls"):
            self._add("drafter", "max_ngram_size", "max_new_tokens")

    def _add_search_panel(self) -> None:
        _panel("finding", "Find my best setting")
        with gr.Row(elem_id="finding", elem_classes="panel"):
            self.find_message = gr.HTML(FIND_HELP, elem_id="find-message", elem_classes="message")
            self.find_effort = gr.Radio(
                [*SEARCH_MINUTES], value="30 seconds", container=False, show_label=False, elem_id="effort"
            )
            self.find_start = gr.Button(FIND, elem_id="find", size="sm", min_width=90)
            self.find_stop = gr.Button(
                "Stop", variant="stop", elem_id="stop-find", size="sm", visible=False, min_width=60
            )

    def _add_settings_panel(self) -> None:
        _panel("advanced", "More settings")
        with gr.Column(scale=0, elem_id="advanced", elem_classes="controls panel"):
            self._add(*(name for name in NAMES if name not in self._controls))
            gr.HTML(html("paragraph", sampling_caveat()), elem_id="caveat")
            with gr.Row(elem_id="as-code"):
                names = [(software.title, name) for name, software in SOFTWARE.items()]
                self._flavour = gr.Dropdown(
                    names, label="Software", container=False, filterable=False, elem_id="flavour", min_width=200
                )
                self._copy = gr.Button("Copy as code", elem_id="copy-code", size="sm", min_width=120)
                self._code = channel()

    def _add(self, *names: str) -> None:
        for name in names:
            options = self._appearance.get(name, {})
            self._controls[name] = widgets.control(name, value=self._values[name], min_width=120, **options)

    def _connect_run(self) -> None:
        callbacks, buttons_of_run = self._callbacks, [self.run, self._stop, self._cancel]
        started = self.run.click(callbacks.wait, outputs=[self.message, *buttons_of_run], **NO_QUEUE).then(
            callbacks.run,
            [self._shared.session_open, self._shared.pair, *self._chat, self.prompt],
            [self.race, self.message, *self._chat, self.finished, *buttons_of_run],
            inputs_kwargs=self.controls,
            show_progress="minimal",
            show_progress_on=self.message,
            api_visibility="private",
            **ENGINE,
        )
        started.then(partial(buttons, "idle"), outputs=buttons_of_run, **NO_QUEUE)
        stop_on(self._stop.click, self._shared.sessions, "run")
        stop_on(self.race.stop, self._shared.sessions, "repeat")
        self._stop.click(None, js=script("main.js", "skipPlayback"))
        self._cancel.click(cancel_run, outputs=[self.message, *buttons_of_run], cancels=started, **NO_QUEUE)
        self.run.click(None, js=script("main.js", "setRequested", "true"))
        for end in (started.then, self._cancel.click):
            end(None, js=script("main.js", "setRequested", "false"))
        repeated = started.success(
            self._callbacks.repeat,
            [self._shared.session_open, self._shared.pair, self.finished],
            [self.race, self.finished],
            **PRIVATE,
            concurrency_limit=None,  # outside the engine's queue: it runs only while nobody else needs the engine
            trigger_mode="multiple",
        )
        repeated.then(None, js=script("main.js", "endRepeats"))

    def _connect_controls(self) -> None:
        controls, pair = self.controls, self._shared.pair
        latest: dict[str, Any] = {"inputs_kwargs": controls, "trigger_mode": "always_last", **NO_QUEUE}
        # `input`: a visitor changed it, not a pair that was just loaded
        live = [controls[name].input for name in LIVE_CONTROLS]
        gr.on(live, self._callbacks.update_settings, pair, **latest)
        preloading = [self.prompt.focus, *(controls[name].change for name in STRATEGY)]
        reopened = [self.message, self.prompt, *controls.values()]
        self.race.apply(self._callbacks.reopen, pair, reopened, **latest)
        gr.on(preloading, self._callbacks.preload, [self._shared.session_open, pair], **latest)
        choosers = [controls["engine"], controls["drafter"], controls["policy"]]
        valid = [*(controls[name] for name in self._appearance), self.message]
        changed = [pair.change, *(chooser.change for chooser in choosers)]
        gr.on(changed, widgets.show_valid, [pair, *choosers], valid, **NO_QUEUE)
        initial = dict.fromkeys(STRATEGY[1:]) | {"max_assistant_tokens": FIELDS["max_assistant_tokens"].default}
        of_drafter = [controls[name] for name in initial]
        recalled = script("settings.js", "recallDrafter", json.dumps(initial))
        controls["drafter"].input(None, of_drafter, of_drafter, js=recalled)
        pair.change(lambda new: _chat((), visible=new.target.chat_template), pair, self._chat, **NO_QUEUE)
        pair.change(examples_html, pair, self._examples, **NO_QUEUE)

    def _connect_exports(self) -> None:
        inputs, outputs = [self._flavour, self._shared.pair, self.prompt], [self.message, self._code]
        copied = self._copy.click(self._callbacks.code, inputs, outputs, inputs_kwargs=self.controls, **NO_QUEUE)
        copied.then(None, self._code, js=script("settings.js", "copyCode"))
        outputs = [self.message, self._shared_file]
        drawn = self.race.download(self._callbacks.share, None, outputs, **PRIVATE, **FILES)
        drawn.then(None, self._shared_file, js=script("files.js", "saveSharedFile"))


def _panel(name: str, title: str) -> None:
    """Add the button of a panel of our own. Gradio builds a closed accordion only when it opens, and then loses
    earlier changes of its values.
    """
    with gr.Column(scale=0, min_width=0, elem_id=f"open-{name}", elem_classes="opener"):
        gr.Button(title, size="sm").click(None, js=script("main.js", "toggle", json.dumps(name)))


def apply_setting(settings: GenerationSettings | None) -> list[Any]:
    """Return updates of the `APPLIED_SETTINGS`; None changes none of them."""
    return [gr.skip() if settings is None else getattr(settings, name) for name in APPLIED_SETTINGS]
