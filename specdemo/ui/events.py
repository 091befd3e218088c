"""How the page's events are declared to Gradio."""

from collections.abc import Callable
from typing import Any

import gradio as gr

Stop = Callable[[gr.Request], None]
"""Ends what a visitor has started."""
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
"""Events that say themselves how far they are, if they take long."""
PRIVATE: dict[str, Any] = {**QUIET, "queue": False}
"""Such events at once, beside the queue."""
ENGINE: dict[str, Any] = {"concurrency_id": "engine", "concurrency_limit": 1}
"""One queue for everything that uses the engine, since two at once would distort each other's clocks."""
FILES: dict[str, Any] = {"concurrency_id": "files", "concurrency_limit": 2}
"""Another queue for what is parsed or drawn in processes of its own, which end when their visitor leaves."""


def check_known(known: bool) -> None:
    """Check that the server still knows this visitor's pair and chat, which it keeps for the latest visitors only.

    Raises:
        gr.Error: it has forgotten them, and would take those that a new visitor has.
    """
    if not known:
        raise gr.Error("This session has expired. Reload the page.", print_exception=False)
