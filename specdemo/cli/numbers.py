"""Numbers as options give them."""

import argparse
from collections.abc import Callable
from typing import TypeVar

from specdemo.errors import UsageError, quoted

N = TypeVar("N", int, float)


def positive(text: str) -> int:
    """A whole number above 0, as argparse takes it."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def count(text: str) -> int:
    """A whole number from 0 on, as argparse takes it."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def numbers(text: str, kind: Callable[[str], N]) -> list[N]:
    """The numbers in a list such as `1-4,8`; `none` is an empty list.

    Raises:
        UsageError: it is not such a list.
    """
    if text == "none":
        return []
    found: list[N] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            found += [kind(str(n)) for n in range(int(first), int(last) + 1)] if dash else [kind(part)]
    except ValueError as error:
        raise UsageError(f"{quoted(text)} is not a list of numbers; write it like 1-4,8 or 0.2,0.4.") from error
    return list(dict.fromkeys(found))
