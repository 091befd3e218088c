"""Where values enter the page: anyone can send any JSON to any event over HTTP, without using the widgets.

Values are checked here, once, so that callbacks can rely on the types of their widgets. What does not fit is refused
with a sentence, before the engine is involved.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import gradio as gr

from specdemo.files import is_text
from specdemo.ui.gradio_inside import Api, CheckedBlocks, refusal


class Page(CheckedBlocks):
    """Blocks whose events accept only what their widgets can send."""

    def check(self, blocks: Sequence[Any], values: Sequence[Any]) -> None:
        """Check that an event's values are what its widgets can send.

        Raises:
            gr.Error: there are too few, or one is something else.
        """
        if len(values) < len(blocks):
            raise refusal("The page received something unexpected")
        for block, value in zip(blocks, values, strict=False):
            if not _fits(block, value):
                raise refusal(f"{getattr(block, 'label', None) or 'A value'!r} has an unusable value")


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
