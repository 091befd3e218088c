"""The earlier turns of a chat, as HTML."""

from collections.abc import Sequence

from markupsafe import Markup

from specdemo.records import Turn
from specdemo.ui.html.markdown import rendered

_TURN = Markup(
    '<li><p class="said">{prompt}</p><div class="answer">{answer}</div><p class="written">{written}</p></li>'
)


def conversation_html(history: Sequence[Turn]) -> str:
    """What was said so far; both sides read the target's own answers, shown rendered or as written."""
    turns = (
        _TURN.format(prompt=turn.prompt, answer=Markup(rendered(turn.answer)), written=turn.answer)
        for turn in history
    )
    return f'<ol class="turns">{Markup("").join(turns)}</ol>' if history else ""
