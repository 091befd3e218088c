"""What the page's widgets call: widgets' values in, updates out."""

import inspect
import json
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, Literal

import gradio as gr

from specdemo.errors import FileError, PromptError, SettingsError, SpecdemoError
from specdemo.settings import GenerationSettings
from specdemo.ui.controls import FIELDS, NAMES, settings_from, settings_from_link, visibility
from specdemo.ui.session import Sessions, Update, alert, notice


class Callbacks:
    """The callbacks that need the engine."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def run(self, request: gr.Request, prompt: str, *values: Any) -> Iterator[list[Any]]:
        """Compare; updates of race view, message, anatomy and buttons."""
        try:
            settings = settings_from(dict(zip(NAMES, values, strict=True)))
        except SettingsError as error:
            yield [gr.skip(), alert(error), gr.skip(), *buttons("idle")]
            return
        shown: list[Any] = []
        for update in self._sessions.run(str(request.session_hash), prompt, settings):
            news = [*_outputs(update), *buttons("running")]
            # what has not changed is skipped: each update of a widget takes time from an engine on this machine
            yield [gr.skip() if new == old else new for new, old in zip_longest(news, shown)]
            shown = news

    def open(self, data: bytes) -> list[Any]:
        """Show the comparison of an uploaded file; updates of race view, message and anatomy."""
        try:
            return _outputs(self._sessions.open(data))
        except FileError as error:
            return [gr.skip(), alert(error), gr.skip()]

    def stop(self, request: gr.Request) -> None:
        """End this visitor's run, if there is one."""
        self._sessions.stop(str(request.session_hash))

    def api(self) -> Callable[..., dict[str, Any]]:
        """The comparison as a function whose parameters are the prompt and every setting."""

        def compare(prompt: Any, *values: Any) -> dict[str, Any]:
            try:
                if not isinstance(prompt, str):
                    raise PromptError("The prompt is not a text; send a string.")
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


def _outputs(update: Update) -> list[Any]:
    """Values of race view, message and anatomy."""
    feed, message, anatomy = update
    return [gr.skip() if feed is None else feed, message, gr.skip() if anatomy is None else anatomy]


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


def left() -> list[Any]:
    """Updates of message and buttons for a visitor who no longer waits."""
    return [notice("You have left the queue."), *buttons("idle")]


def show_valid(engine: str, drafter: str, policy: str) -> list[dict[str, Any]]:
    """Updates of the controls that depend on engine, drafter and policy, in the order of `visibility`."""
    updates: dict[str, dict[str, Any]] = {
        name: {"visible": shown} for name, shown in visibility(engine, drafter, policy).items()
    }
    updates["policy"]["elem_classes"] = [engine]
    if engine == "genai" and policy == "heuristic":
        updates["policy"]["value"] = "constant"
    return [gr.update(**update) for update in updates.values()]


def restore(saved: str) -> list[Any]:
    """Values for prompt and controls that a link or the browser's store asks for, and a message."""
    values: dict[str, str] = json.loads(saved or "{}")
    prompt = values.pop("prompt", None)
    settings, wrong = settings_from_link(values)
    changed = settings.model_dump(exclude_defaults=True)
    kept = [changed.get(name, gr.skip()) for name in NAMES]
    return [gr.skip() if prompt is None else prompt, *kept, alert(wrong) if wrong else gr.skip()]
