"""Where values enter the page: anyone can send any JSON to any event over HTTP, without using the widgets.

Values are checked here, once, so that callbacks can rely on the types of their widgets. What does not fit is refused
with a sentence, before the engine is involved.
"""

import logging
from math import isfinite
from typing import Any

import gradio as gr
from gradio.blocks import BlockFunction
from gradio.components.api_component import Api
from gradio.state_holder import SessionState
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdemo.input import is_text


class Page(gr.Blocks):
    """Blocks whose events accept only what their widgets can send, and whose tabs keep no connection.

    Gradio's heartbeat would: browsers open six to a host, and a sixth tab would stall them all. That a visitor has
    gone, Gradio also sees by the connection that carries a run's updates; it then closes the run's generator.
    """

    def get_config_file(self) -> Any:
        """Configuration sent to the browser."""
        return super().get_config_file() | {"connect_heartbeat": False}

    async def process_api(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Handle an event. What Gradio itself refuses, such as files that an event names, needs no traceback."""
        try:
            done: dict[str, Any] = await super().process_api(*arguments, **options)
        except gr.Error as error:
            error.print_exception = False
            raise
        return done

    async def preprocess_data(
        self, block_fn: BlockFunction, inputs: list[Any], state: SessionState | None, explicit_call: bool = False
    ) -> list[Any]:
        """The values for a callback.

        Raises:
            gr.Error: one is not what its widget could have sent.
        """
        if block_fn.fn is None or len(inputs) < len(block_fn.inputs):
            raise _refusal("The page received something unexpected")
        for block, value in zip(block_fn.inputs, inputs, strict=False):
            if not _fits(block, value):
                raise _refusal(f"{getattr(block, 'label', None) or 'A value'!r} has an unusable value")
        try:
            values: list[Any] = await super().preprocess_data(block_fn, inputs, state, explicit_call)
        except (gr.Error, ValueError, OSError) as error:  # out of a widget's bounds, or a file that was not uploaded
            raise _refusal("A value is out of bounds, or a file no longer exists") from error
        return values


def _refusal(reason: str) -> gr.Error:
    return gr.Error(f"{reason}; correct it, or reload the page.", print_exception=False)


def _fits(block: Any, value: Any) -> bool:
    """Whether a value has the type that a widget sends. Files are looked up by Gradio among what was uploaded."""
    match block:
        case gr.State() | Api() | gr.BrowserState():  # never sent; checked by the function itself
            return True
        case gr.Textbox() | gr.Radio():
            return is_text(value)
        case gr.Dropdown():
            return value is None or is_text(value)
        case gr.Checkbox():
            return isinstance(value, bool)
        case gr.CheckboxGroup():
            return isinstance(value, list) and all(is_text(choice) for choice in value)
        case gr.Slider():
            return _is_number(value)
        case gr.Number():
            return value is None or _is_number(value)
        case gr.UploadButton():
            return value is None or isinstance(value, dict)
    raise AssertionError(f"what {block} sends is not known here")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


class Readable:
    """Middleware that answers a request which Gradio's own routes stumble over.

    They take for granted what no browser sends otherwise: that an event exists, that a body can be repeated in a
    complaint. What a callback raises never gets here: Gradio reports that itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Middleware before this application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if begun or scope["type"] != "http" or scope["method"] != "POST":
                raise
            logging.getLogger(__name__).warning("refused a request to %r: %s", scope["path"], type(error).__name__)
            refusal = PlainTextResponse("This request cannot be read; reload the page and try again.", 400)
            await refusal(scope, receive, send)
