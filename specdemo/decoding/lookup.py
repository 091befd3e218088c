"""Prompt lookup: the rule of openvino-genai 2026.4, which both engines follow; a test compares them with it."""

from collections.abc import Sequence
from typing import NamedTuple


def look_up(text: Sequence[int], longest: int, limit: int) -> list[int]:
    """At most `limit` tokens that followed the earliest occurrence of the longest recent n-gram."""
    if longest >= len(text):
        longest = len(text) // 2
    for size in range(longest, 0, -1):
        recent = text[-size:]
        for start in range(len(text) - size):
            if text[start : start + size] == recent:
                return list(text[start + size : start + size + limit])
    return []


class Found(NamedTuple):
    """Tokens that followed an earlier occurrence of a text's last `size` tokens; none where there is none."""

    size: int
    tokens: list[int]


class Occurrences:
    """Where every n-gram of a growing text occurs first: the rule of `look_up`, without searching all of the text."""

    def __init__(self, longest: int) -> None:
        """N-grams of at most `longest` tokens."""
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in range(longest)]
        self._read = 0  # tokens whose n-grams are known

    def find(self, text: Sequence[int], limit: int) -> Found:
        """The same as `look_up`; a text continues the one before."""
        for end in range(self._read + 1, len(text)):  # not the last token: nothing has followed it yet
            for size, ends in enumerate(self._ends[:end], 1):
                ends.setdefault(tuple(text[end - size : end]), end)
        self._read = max(len(text) - 1, 0)
        longest = len(self._ends) if len(self._ends) < len(text) else len(text) // 2
        for size in range(longest, 0, -1):
            start = self._ends[size - 1].get(tuple(text[-size:]))
            if start is not None:
                return Found(size, list(text[start : start + limit]))
        return Found(0, [])
