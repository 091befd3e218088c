"""What goes in as text, before any tokenizer or server sees it, and the text of tokens as they arrive.

A byte-level token can end in the middle of a character. Its bytes are held back, and the whole character is
credited to the token that completes it, so that the texts of all tokens always join to the text of the run.
"""

from collections.abc import Callable, Sequence

from specdemo.errors import PromptError
from specdemo.files import is_text
from specdemo.records import MOST_TURNS, Request

Decode = Callable[[list[int]], str]

UNDECODED = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 8  # tokens before the new ones: enough for detokenizers that treat a leading space specially


class IncrementalText:
    """Detokenises one token at a time, decoding only a short window."""

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        """`context` is what comes before, usually the prompt; its text is not returned."""
        self._decode = decode
        self._window = list(context[-_CONTEXT:])
        self._before = decode(self._window)

    def push(self, token: int) -> str:
        """Text that this token completes; empty while a character is incomplete."""
        self._window.append(token)
        text = self._decode(self._window)
        if text[len(self._before) :].endswith(UNDECODED):
            return ""
        return self._show(text)

    def flush(self) -> str:
        """Whatever is still held back, undecodable bytes shown as U+FFFD."""
        return self._show(self._decode(self._window))

    def held(self) -> str:
        """What is held back, as U+FFFD; empty if nothing is."""
        return self._decode(self._window)[len(self._before) :]

    def _show(self, text: str) -> str:
        """What is new in the window's text; a window that has grown is cut off at its beginning."""
        new, self._before = text[len(self._before) :], text
        if len(self._window) > 2 * _CONTEXT:
            del self._window[:-_CONTEXT]
            self._before = self._decode(self._window)
        return new


def texts(decode: Decode, context: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """Text of each token if it followed `context`; part of a character is U+FFFD, a special token empty."""
    text = IncrementalText(decode, context)
    return [text.push(token) or text.held() for token in tokens]


def messages(request: Request) -> list[dict[str, str]]:
    """The prompt as the last message of a chat, as chat templates and servers take it."""
    turns = [(("user", turn.prompt), ("assistant", turn.answer)) for turn in request.history]
    said = [part for turn in turns for part in turn] + [("user", request.prompt)]
    return [{"role": role, "content": text} for role, text in said]


def check_prompt(request: Request) -> None:
    """Check that there is a prompt, and that it and the turns before it are text.

    Raises:
        PromptError: it is empty, something cannot be encoded, or there are too many turns.
    """
    if not request.prompt.strip():
        raise PromptError("The prompt is empty; enter the beginning of a text.")
    if len(request.history) > MOST_TURNS:
        raise PromptError(f"The chat has more than {MOST_TURNS} turns; start a new chat.")
    if not all(is_text(message["content"]) for message in messages(request)):
        raise PromptError("The prompt is not text: it holds characters that are not valid Unicode; enter it again.")
