"""A request's prompt, before any engine's tokenizer or server sees it."""

from specdemo.errors import PromptError
from specdemo.input import is_text
from specdemo.records import MOST_TURNS, Request


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
