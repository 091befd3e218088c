"""What the Compare tab's widgets call."""

import inspect
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import zip_longest
from typing import Any, Literal

import gradio as gr
from pydantic import Field, ValidationError

from specdemo.errors import FileError, PromptError, SettingsError, SpecdemoError
from specdemo.files import is_text
from specdemo.models.checks import compared
from specdemo.presentation.code import code
from specdemo.presentation.wording import is_chat
from specdemo.records import MOST_TURNS, ModelPair, Record, Turn
from specdemo.settings import GenerationSettings
from specdemo.strategies import EngineName
from specdemo.ui.callbacks import check_known
from specdemo.ui.controls import (
    FIELDS,
    NAMES,
    annotation,
    classes,
    drafters,
    engines_for,
    explanation,
    first_drafter,
    first_policy,
    policies,
    settings_from,
    start_values,
    visibility,
)
from specdemo.ui.gradio_inside import sent_with
from specdemo.ui.html.parts import alert, code_html, notice
from specdemo.ui.session import Finished, Sessions, Update
from specdemo.ui.share.files import KINDS
from specdemo.ui.uploads import meanwhile, opening, sharing


class Callbacks:
    """The callbacks that need the engine."""

    def __init__(self, sessions: Sessions, *, local: bool = False) -> None:
        """`local`: only this machine reaches the page, so that paths may be shown."""
        self._sessions = sessions
        self._local = local

    def run(
        self,
        request: gr.Request,
        known: bool,
        pair: ModelPair,
        history: tuple[Turn, ...],
        turn: Turn | None,
        prompt: str,
        *values: Any,
    ) -> Iterator[list[Any]]:
        """Compare; updates of race view, message, anatomy, the chat, what was run, and buttons."""
        check_known(known)
        try:
            settings = settings_from(pair, dict(zip(NAMES, values, strict=True)))
        except SettingsError as error:
            yield [gr.skip(), alert(error), *[gr.skip()] * 5, *buttons("idle")]
            return
        history = continued(history, turn, prompt) if is_chat(pair, settings) else ()
        shown: list[Any] = []
        for update in self._sessions.run(str(request.session_hash), pair, prompt, settings, history):
            news = [*_outputs(update), *_chat(history, update.turn), update.finished, *buttons("running")]
            # unchanged widgets are skipped: each update takes time from an engine on this machine
            yield [gr.skip() if new == old else new for new, old in zip_longest(news, shown)]
            shown = news

    def move(self, request: gr.Request, pair: ModelPair, *values: Any) -> None:
        """The controls of a run that may be under way have moved."""
        with suppress(SettingsError):
            self._sessions.move(str(request.session_hash), settings_from(pair, dict(zip(NAMES, values, strict=True))))

    def repeat(
        self, request: gr.Request, known: bool, pair: ModelPair, finished: Finished | None
    ) -> Iterator[list[Any]]:
        """Repeat the race that just ended, unwatched; updates of race view and what was run."""
        check_known(known)
        if finished is not None:
            for news in self._sessions.repeat(str(request.session_hash), pair, finished):
                yield [gr.skip(), gr.skip()] if news is None else list(news)

    def share(self, event: gr.EventData) -> Iterator[list[Any]]:
        """Make the file that a button of the race asks for; updates of message and file."""
        sent = sent_with(event)
        data = sent if isinstance(sent, dict) else {}
        kind, record = data.get("kind"), data.get("record")
        try:
            if kind not in KINDS or not isinstance(record, str):
                raise FileError("The page received something unexpected; reload it.")
            content = yield from meanwhile(sharing(kind, record), [gr.skip(), ""])
        except FileError as error:
            yield [alert(error), ""]
            return
        name = f"specdemo-race.{kind}"
        made = {"content": b64encode(content).decode(), "type": KINDS[kind].media_type, "name": name}
        yield ["", json.dumps(made)]

    def code(self, flavour: str, pair: ModelPair, prompt: str, *values: Any) -> list[str]:
        """The settings as lines of code; updates of message and lines."""
        try:
            settings = settings_from(pair, dict(zip(NAMES, values, strict=True)))
            lines = code(flavour, compared(pair), settings, prompt, local=self._local)
        except SpecdemoError as error:
            return [alert(error), ""]
        return [code_html(lines), lines]

    def open(self, data: bytes) -> Iterator[list[Any]]:
        """Show the comparison of an uploaded file; updates of race view, message and anatomy."""
        waiting = [gr.skip(), notice("Reading the file …"), gr.skip()]
        try:
            yield _outputs((yield from meanwhile(opening(data), waiting)))
        except FileError as error:
            yield [gr.skip(), alert(error), gr.skip()]

    def api(self, pair: ModelPair) -> Callable[..., Iterator[dict[str, Any] | None]]:
        """The comparison of this pair as a function whose parameters are the prompt and every setting.

        It yields now and then before its result: that is when Gradio finds out that a client has gone.
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
            inspect.Parameter(name, text.kind, annotation=annotation(name), default=value)
            for name, value in start_values(pair).items()
        ]
        vars(compare)["__signature__"] = inspect.Signature([text, *options], return_annotation=dict[str, Any])
        compare.__annotations__ = {parameter.name: parameter.annotation for parameter in (text, *options)}
        return compare


def _outputs(update: Update) -> list[Any]:
    """Values of race view, message and anatomy."""
    feed, anatomy = (gr.skip() if new is None else new for new in (update.feed, update.anatomy))
    return [feed, update.message, anatomy]


def api_description() -> str:
    """What the endpoint does, and what each of its parameters means."""
    lines = [f"{name}: {field.description}" for name, field in FIELDS.items()]
    return "\n".join(
        ["Compare plain and speculative decoding of a prompt; returns a JSON object of schema 2.", *lines]
    )


def buttons(state: Literal["idle", "waiting", "running"]) -> list[dict[str, Any]]:
    """Updates of Run, Stop and Leave."""
    labels = {"idle": "Run", "waiting": "Waiting …", "running": "Running …"}
    return [
        gr.update(value=labels[state], interactive=state == "idle"),
        gr.update(visible=state == "running"),
        gr.update(visible=state == "waiting"),
    ]


def waiting() -> list[Any]:
    """Updates of message and buttons from the click until the run's turn comes."""
    text = "Waiting for the machine. Comparisons run one at a time, so that they do not distort each other's clocks."
    return [notice(text), *buttons("waiting")]


def left() -> list[Any]:
    """Updates of message and buttons for a visitor who no longer waits."""
    return [notice("You have left the queue."), *buttons("idle")]


def show_valid(pair: ModelPair, engine: EngineName, drafter: str, policy: str) -> list[dict[str, Any]]:
    """Updates of the controls that depend on pair, engine, drafter and policy, in the order of `visibility`."""
    values: dict[str, Any] = {}
    # a hidden choice must not stay in force
    if len(engines_for(pair)) == 1:
        values["engine"] = engine = engines_for(pair)[0]
    if drafter not in drafters(pair, engine):
        values["drafter"] = drafter = first_drafter(pair)
    if policy not in policies(pair, engine, drafter):
        values["policy"] = policy = first_policy(policies(pair, engine, drafter))
    updates: dict[str, dict[str, Any]] = {
        name: {"visible": shown} for name, shown in visibility(pair, engine, drafter, policy).items()
    }
    for name, value in values.items():
        updates[name]["value"] = value
    updates["policy"]["info"] = explanation(pair, engine, drafter, policy)
    for name, chosen in classes(pair, engine, drafter, policy).items():
        updates[name]["elem_classes"] = chosen
    return [gr.update(**update) for update in updates.values()]


def continued(history: tuple[Turn, ...], turn: Turn | None, prompt: str) -> tuple[Turn, ...]:
    """The turns before this message, the last one among them unless it is the same message, to be answered again."""
    return history if turn is None or turn.prompt == prompt else (*history, turn)


def begun_anew() -> list[Any]:
    """The chat's updates when a new one begins, and that nothing is kept of the one before."""
    return [*_chat((), None), ""]


def to_keep(pair: ModelPair, history: tuple[Turn, ...], turn: Turn | None) -> str:
    """What the browser keeps of a chat, as JSON; empty without one."""
    turns = [*history, *filter(None, [turn])]
    return _Kept(target=pair.target.name, turns=tuple(turns)).model_dump_json() if turns else ""


def kept_chat(pair: ModelPair, kept: str) -> list[Any]:
    """The chat's updates from what the browser kept; a chat with another target does not go on with this one."""
    try:
        chat = _Kept.model_validate_json(kept)
    except ValidationError:  # there is none, or somebody else wrote it
        return _chat((), None)
    if chat.target != pair.target.name or not chat.turns:
        return _chat((), None)
    *history, turn = chat.turns
    return _chat(tuple(history), turn)


class _Kept(Record):
    target: str
    turns: tuple[Turn, ...] = Field(max_length=MOST_TURNS + 1)


def _chat(history: tuple[Turn, ...], turn: Turn | None) -> list[Any]:
    """Updates of the turns before the last, the last, and New chat."""
    return [history, turn, gr.update(visible=bool(history) or turn is not None)]
