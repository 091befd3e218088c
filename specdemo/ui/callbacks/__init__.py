"""What the widgets of the larger tabs call: widget values in, updates out."""

import gradio as gr


def check_known(known: bool) -> None:
    """Check that the server still knows this visitor's pair and chat, which it keeps for the latest visitors only.

    Raises:
        gr.Error: it has forgotten them, and would take those that a new visitor has.
    """
    if not known:
        raise gr.Error("This session has expired. Reload the page.", print_exception=False)
