"""What a model thinks before it answers: Qwen3 and its kin write it between `<think>` and `</think>`."""

from specdemo.records import Round

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
        return self._text.rfind(_BEGIN) > self._text.rfind(_END)


def answer(text: str) -> str:
    """A text without what was thought before it, or instead of it."""
    return text.rpartition(_END)[2].partition(_BEGIN)[0].strip()
