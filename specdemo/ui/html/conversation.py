"""The earlier turns of a chat, as HTML."""

from collections.abc import Sequence

from markupsafe import Markup

from specdemo.records import Turn

_TURN = Markup('<li><p class="said">{prompt}</p><p class="answer">{answer}</p></li>')


def conversation_html(history: Sequence[Turn]) -> str:
    """What was said so far; both sides read the target's own answers."""
    turns = Markup("").join(_TURN.format(prompt=turn.prompt, answer=turn.answer) for turn in history)
    return f'<ol class="turns">{turns}</ol>' if history else ""
