"""What the target is asked: patterns filled with words, and beginnings of turns that it finishes itself.

A chat model was trained on both sides of a conversation, so given only the beginning of a user's turn it writes the
question too (self-synthesis: Magpie, arXiv 2406.08464). Patterns make sure that every kind of task occurs.
"""

import re
from random import Random

from specdemo.train.words import BEGINNINGS, LISTS, PATTERNS

NUMBERS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 24, 25, 30, 36, 40, 45, 50, 60, 75, 100, 120, 150, 250)
SENTENCES = (2, 5)  # of a text to summarise or rewrite, at least and at most
LONGEST_TEXT = 700  # characters


def filled(random: Random, texts: list[str]) -> str:
    """A question from a pattern; `{text}` is a passage of `texts`. Without any, kinds that need one are left out."""
    kinds = [kind for kind, patterns in PATTERNS.items() if texts or not any("{text}" in one for one in patterns)]
    pattern = random.choice(PATTERNS[random.choice(kinds)])

    def word(match: re.Match[str]) -> str:
        kind = match[1]
        if kind == "number":
            return str(random.choice(NUMBERS))
        if kind == "text":
            return passage(random, random.choice(texts))
        return random.choice(LISTS[kind])

    asked = re.sub(r"\{(\w+)\}", word, pattern)
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", asked)


def passage(random: Random, text: str) -> str:
    """A few whole sentences from somewhere in a text."""
    sentences = re.split(r"(?<=[.!?])\s+", " ".join(text.split()))
    wanted = random.randint(*SENTENCES)
    first = random.randint(0, max(0, len(sentences) - wanted))
    return " ".join(sentences[first : first + wanted])[:LONGEST_TEXT]


def beginning(random: Random) -> str:
    """How a user's turn begins that the target is to finish; often empty."""
    return random.choice(BEGINNINGS)
