"""Outputs that fall into a loop, such as "a raven, a raven, a raven".

Greedy decoding of small models often ends in one. A draft guesses a repetition easily, so a speedup measured on it
says little about other texts.
"""

from collections.abc import Sequence
from typing import NamedTuple

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
