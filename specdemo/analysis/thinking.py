"""What a model thinks before it answers: models like Qwen3 write it between `<think>` and `</think>`."""

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
        return self._text.lstrip().startswith(_BEGIN) and _END not in self._text


def answer(text: str) -> str:
    """A text without the thinking before it, which the template may have opened; empty if all is thinking."""
    if text.lstrip().startswith(_BEGIN) and _END not in text:
        return ""
    return text.partition(_END)[2].strip() if _END in text else text.strip()
