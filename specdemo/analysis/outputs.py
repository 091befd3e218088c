"""What an output is like: whether it falls into a loop, and what of it is thinking.

Greedy decoding of small models often ends in a loop, such as "a raven, a raven, a raven". A draft guesses a
repetition easily, so a speedup measured on it says little about other texts. Models like Qwen3 write what they think
between `<think>` and `</think>`, before they answer.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specdemo.records import Round, Run

_TIMES = 4  # the same tokens in a row, at least
_TOKENS = 24  # and so many tokens in all


class Loop(NamedTuple):
    """From token `start` on, counted from 0, the last tokens repeat with this `period` to the end."""

    start: int
    period: int


def loop(ids: Sequence[int | str]) -> Loop | None:
    """The loop that the tokens end in; None if they do not.

    A sequence loops if its end consists of the same `period` tokens, at least four times in a row and at least 24
    tokens in all. The shortest period counts.
    """
    for period in range(1, len(ids) // _TIMES + 1):
        start = len(ids) - period
        while start > 0 and ids[start - 1] == ids[start - 1 + period]:
            start -= 1
        if len(ids) - start >= max(_TIMES * period, _TOKENS):
            return Loop(start, period)
    return None


_BEGIN, _END = "<think>", "</think>"


class Thinking:
    """Follows a text round by round."""

    def __init__(self) -> None:
        self._text = ""

    def hears(self, step: Round) -> bool:
        """Whether any of this round is thinking."""
        before = self._inside()
        self._text += "".join(token.text for token in step.committed)
        return before or self._inside()

    def _inside(self) -> bool:
        return self._text.lstrip().startswith(_BEGIN) and _END not in self._text


def thinking_tokens(run: Run) -> int:
    """Tokens up to the end of what the model thinks; all of them while it does, 0 if it does not."""
    text = ""
    for number, token in enumerate(run.tokens, 1):
        text += token.text
        if _END in text:
            return number
    return len(run.tokens) if text.lstrip().startswith(_BEGIN) else 0


def answer(text: str) -> str:
    """A text without the thinking before it, which the template may have opened; empty if all is thinking."""
    if text.lstrip().startswith(_BEGIN) and _END not in text:
        return ""
    return text.partition(_END)[2].strip() if _END in text else text.strip()
