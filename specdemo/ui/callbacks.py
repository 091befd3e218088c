"""What the page's widgets call: widgets' values in, updates out."""

import inspect
import json
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, Literal

import gradio as gr

from specdemo.errors import SettingsError, SpecdemoError
from specdemo.settings import GenerationSettings
from specdemo.ui.controls import FIELDS, NAMES, settings_from, settings_from_link, visibility
from specdemo.ui.session import Sessions, alert, notice


class Callbacks:
    """The callbacks that need the engine."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def run(self, request: gr.Request, prompt: str, *values: Any) -> Iterator[list[Any]]:
        """Compare; updates of race view, message and buttons."""
        try:
            settings = settings_from(dict(zip(NAMES, values, strict=True)))
        except SettingsError as error:
            yield [gr.skip(), alert(error), *buttons("idle")]
            return
        shown: list[Any] = []
        for update in self._sessions.run(str(request.session_hash), prompt, settings):
            feed = gr.skip() if update.feed is None else update.feed
            news = [feed, update.message, *buttons("running")]
            # what has not changed is skipped: each update of a widget takes time from an engine on this machine
            yield [gr.skip() if new == old else new for new, old in zip_longest(news, shown)]
            shown = news

    def stop(self, request: gr.Request) -> None:
        """End this visitor's run, if there is one."""
        self._sessions.stop(str(request.session_hash))

    def api(self) -> Callable[..., dict[str, Any]]:
        """The comparison as a function whose parameters are the prompt and every setting."""

        def compare(prompt: str, *values: Any) -> dict[str, Any]:
            try:
                settings = GenerationSettings.checked(**dict(zip(NAMES, values, strict=True)))
                return self._sessions.compare(prompt, settings)
            except SpecdemoError as error:
                raise gr.Error(str(error), print_exception=False) from error

        text = inspect.Parameter("prompt", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str)
        options = [
            inspect.Parameter(name, text.kind, annotation=field.annotation, default=field.default)
            for name, field in FIELDS.items()
        ]
        vars(compare)["__signature__"] = inspect.Signature([text, *options], return_annotation=dict[str, Any])
        compare.__annotations__ = {parameter.name: parameter.annotation for parameter in (text, *options)}
        return compare


def api_description() -> str:
    """What the endpoint does, and what each of its parameters means."""
    lines = [f"{name}: {field.description}" for name, field in FIELDS.items()]
    return "\n".join(["Decode a prompt plainly and speculatively; returns a JSON object of schema 1.", *lines])


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
    text = "Waiting for the machine. Comparisons run one at a time, so that no run spoils another's clocks."
    return [notice(text), *buttons("waiting")]


def show_valid(drafter: str, policy: str) -> list[dict[str, Any]]:
    """Updates of the controls that depend on drafter and policy, in the order of `visibility`."""
    return [gr.update(visible=shown) for shown in visibility(drafter, policy).values()]


def restore(saved: str) -> list[Any]:
    """Values for prompt and controls that a link or the browser's store asks for, and a message."""
    values: dict[str, str] = json.loads(saved or "{}")
    prompt = values.pop("prompt", None)
    try:
        settings = settings_from_link(values)
    except SettingsError as error:
        return [*[gr.skip()] * (1 + len(NAMES)), alert(error)]
    kept = [getattr(settings, name) if name in values else gr.skip() for name in NAMES]
    return [gr.skip() if prompt is None else prompt, *kept, gr.skip()]
