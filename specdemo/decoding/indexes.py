"""N-gram indexes and suffix trees: earlier continuations, found without a model.

Prompt lookup follows openvino-genai 2026.4: the earliest occurrence of the longest n-gram, without counts. Suffix
decoding (Oliaro et al. 2024, arXiv 2411.04975) counts which token followed the last m, for every m up to a limit. A
continuation's probability is the product of its tokens' shares. The continuation with the greatest sum of these
products, the expected number of accepted tokens, is proposed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import singledispatch
from itertools import takewhile
from typing import Any, NamedTuple

from specdemo.decoding.lookahead import LONGEST_MATCH, DiscountedMean
from specdemo.strategies import TOKENS_PER_MATCHED, Lookup, Strategy, Suffix

_MIN_CHANCE = 0.05  # of a copied token: no pass is so cheap that a less likely one pays
_ID_RANGE = 2**32  # exceeds every token id

Rates = Sequence[DiscountedMean]  # how often the likeliest next token is right, by matched tokens


class Match(NamedTuple):
    """Tokens that followed an earlier occurrence of the last ones.

    `chances[i]`: the probability that all up to i are right, in an index with counts.
    """

    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()


class TextIndex(ABC):
    strategy: Any  # as a policy's

    @abstractmethod
    def find(self, text: Sequence[int], limit: int) -> Match: ...


class NgramIndex(TextIndex):
    def __init__(self, longest: int, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in range(longest)]
        self._read = 0  # tokens whose n-grams are indexed

    def find(self, text: Sequence[int], limit: int) -> Match:
        limit = min(limit, self._max_tokens)
        for end in range(self._read + 1, len(text)):  # not the last token: nothing has followed it yet
            for size, ends in enumerate(self._ends[:end], 1):
                ends.setdefault(tuple(text[end - size : end]), end)
        self._read = max(len(text) - 1, 0)
        longest = len(self._ends) if len(self._ends) < len(text) else len(text) // 2
        for size in range(longest, 0, -1):
            start = self._ends[size - 1].get(tuple(text[-size:]))
            if start is not None:
                return Match(tuple(text[start : start + limit]))
        return Match()


class SuffixTree:
    """All runs of at most `longest + 1` tokens of a text, with counts.

    A node is a run. It knows its likeliest successor (the latest if tied) and the run without its first token.
    Therefore adding a token takes `longest + 1` dictionary lookups, and proposing one takes a single step.
    """

    def __init__(self, longest: int = LONGEST_MATCH) -> None:
        self.longest = longest
        self._children: dict[int, int] = {}  # by node and token
        self._count, self._followed = [0], [0]  # occurrences, and those followed by a token
        self._likeliest, self._token, self._shorter = [0], [0], [0]
        self.end = [0]  # nodes of the last 0, 1, 2, … tokens read

    def matched(self, ends: Sequence[int]) -> int:
        """Return how many of the last tokens have occurred before, at most `longest`."""
        return next((size for size in range(len(ends) - 1, 0, -1) if self._followed[ends[size]]), 0)

    def likeliest(self, node: int) -> int:
        return self._token[self._likeliest[node]]

    def continuation(self, node: int, size: int, limit: int, threshold: float, rates: Rates | None = None) -> Match:
        """Follow the likeliest tokens after a run of `size` tokens. `rates[m]`: how often they are right after m."""
        chance = 1.0
        tokens, chances = list[int](), list[float]()
        while len(tokens) < limit and self._followed[node]:
            child = self._likeliest[node]
            chance *= self._count[child] / self._followed[node]
            if rates is not None:
                chance *= rates[min(size + len(tokens), self.longest)].value
            if chance < threshold:
                break
            tokens.append(self._token[child])
            chances.append(chance)
            node = child if size + len(tokens) <= self.longest else self._shorter[child]
        return Match(tuple(tokens), tuple(chances))

    def after(self, ends: Sequence[int], token: int) -> list[int]:
        """Return the nodes of the last 0, 1, 2, … tokens after one more, as far as they have occurred."""
        children = (self._children.get(node * _ID_RANGE + token, 0) for node in ends)
        return [0, *takewhile(bool, children)]

    def add(self, token: int) -> None:
        end, shorter = [0], 0
        for node in self.end:
            child = self._children.get(node * _ID_RANGE + token)
            if child is None:
                child = self._children[node * _ID_RANGE + token] = len(self._count)
                self._count.append(0)
                self._followed.append(0)
                self._likeliest.append(0)
                self._token.append(token)
                self._shorter.append(shorter)
            self._count[child] += 1
            self._followed[node] += 1
            likeliest = self._likeliest[node]
            if not likeliest or self._count[child] >= self._count[likeliest]:
                self._likeliest[node] = child
            end.append(child)
            shorter = child
        self.end = end[: self.longest + 1]


class SuffixIndex(TextIndex):
    def __init__(self, strategy: Suffix, longest: int = LONGEST_MATCH) -> None:
        self.strategy: Suffix = strategy
        self._tree = SuffixTree(longest)
        self._read = 0

    def find(self, text: Sequence[int], limit: int) -> Match:
        """Return the continuation with the most expected accepted tokens; if tied, the longest match's."""
        for token in text[self._read :]:
            self._tree.add(token)
        self._read, limit = len(text), min(limit, self.strategy.max_assistant_tokens)
        threshold = self.strategy.assistant_confidence_threshold
        matches = (
            self._tree.continuation(self._tree.end[size], size, min(limit, TOKENS_PER_MATCHED * size), threshold)
            for size in range(len(self._tree.end) - 1, 0, -1)
        )
        return max(matches, key=lambda match: sum(match.chances), default=Match())


class CopyIndex:
    """Copies after the longest match, with chances learnt from every token of the answer, proposed or not."""

    def __init__(self, rates: Rates) -> None:
        self._tree, self._rates, self._read = SuffixTree(), rates, 0

    def read(self, text: Sequence[int]) -> Sequence[int]:
        """Learn the new tokens; return the tree's nodes at the end. The first text read, the prompt, says nothing."""
        answer = self._read > 0
        for token in text[self._read :]:
            if answer and (size := self._tree.matched(self._tree.end)):
                self._rates[size].add(self._tree.likeliest(self._tree.end[size]) == token)
            self._tree.add(token)
        self._read = len(text)
        return self._tree.end

    def after(self, ends: Sequence[int], token: int) -> Sequence[int]:
        return self._tree.after(ends, token)

    def copy(self, ends: Sequence[int], limit: int) -> Match:
        size = self._tree.matched(ends)
        return self._tree.continuation(ends[size], size, limit, _MIN_CHANCE, self._rates) if size else Match()


@singledispatch
def index_of(strategy: Strategy) -> TextIndex:
    raise TypeError(f"no index is registered for {strategy}")


@index_of.register
def _(strategy: Lookup) -> TextIndex:
    return NgramIndex(strategy.max_ngram_size, strategy.num_assistant_tokens)


@index_of.register
def _(strategy: Suffix) -> TextIndex:
    return SuffixIndex(strategy)
