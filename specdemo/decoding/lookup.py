"""Prompt lookup: the rule of openvino-genai 2026.4, which both engines follow; a test compares them with it."""

from collections.abc import Sequence


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
