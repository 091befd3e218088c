"""Prompt lookup and the suffix tree, compared with slow references."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdemo.decoding.indexes import CopyIndex, Match, NgramIndex, SuffixIndex
from specdemo.decoding.lookahead import DiscountedMean, Estimates
from specdemo.strategies import TOKENS_PER_MATCHED, Suffix


def look_up(text: Sequence[int], longest: int, limit: int) -> list[int]:
    if longest >= len(text):
        longest = len(text) // 2
    for size in range(longest, 0, -1):
        recent = text[-size:]
        for start in range(len(text) - size):
            if text[start : start + size] == recent:
                return list(text[start + size : start + size + limit])
    return []


texts = st.lists(st.integers(0, 2), max_size=40)
longest = st.integers(1, 5)
limits = st.integers(0, 6)
thresholds = st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0])


@example([1, 1, 1], 3, 2)  # no longer than the longest n-gram: half of it is tried
@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 4), st.integers(0, 5))
def test_ngrams_of_a_growing_text_are_those_that_a_search_finds(text: list[int], longest: int, limit: int) -> None:
    index = NgramIndex(longest, 4)
    for end in range(1, len(text) + 1, 2):
        assert index.find(text[:end], limit).tokens == tuple(look_up(text[:end], longest, min(limit, 4)))


def counted(text: Sequence[int], context: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return how often each token followed, and where last."""
    counts: dict[int, tuple[int, int]] = {}
    for end in range(len(context), len(text)):
        if text[end - len(context) : end] == context:
            counts[text[end]] = (counts.get(text[end], (0, 0))[0] + 1, end)
    return counts


def best_by_counting(text: Sequence[int], longest: int, limit: int, threshold: float) -> Match:
    """Find the best candidate by counting in the whole text again for each token."""
    matches = []
    for size in range(min(longest, len(text)), 0, -1):
        tokens, chances, chance = list[int](), list[float](), 1.0
        while len(tokens) < min(limit, TOKENS_PER_MATCHED * size):
            whole = [*text[len(text) - size :], *tokens]
            counts = counted(text, whole[-longest:])
            if not counts:
                break
            token = max(counts, key=counts.__getitem__)
            chance *= counts[token][0] / sum(count for count, _ in counts.values())
            if chance < threshold:
                break
            tokens.append(token)
            chances.append(chance)
        matches.append(Match(tuple(tokens), tuple(chances)))
    return max(matches, key=lambda match: sum(match.chances), default=Match())


@settings(max_examples=300)
@given(texts, longest, limits, thresholds, st.integers(1, 7))
def test_the_tree_proposes_the_same_as_counting(
    text: list[int], longest: int, limit: int, threshold: float, step: int
) -> None:
    index = SuffixIndex(Suffix(threshold, 64), longest)
    for end in range(1, len(text) + 1, step):
        match = index.find(text[:end], limit)
        reference = best_by_counting(text[:end], longest, limit, threshold)
        assert match.tokens == reference.tokens
        assert match.chances == pytest.approx(reference.chances)


def test_a_threshold_can_be_changed_during_a_request() -> None:
    index, text = SuffixIndex(Suffix(0.9, 8)), [1, 2, 1, 3, 1]
    assert index.find(text, 8) == Match()
    index.strategy = Suffix(0.3, 8)
    assert index.find(text, 8).tokens == (3, 1)


@pytest.mark.parametrize(
    ("chain", "limit", "copied"),
    [([], 2, (3, 1)), ([3], 2, (1, 2)), ([3, 1], 3, (2,)), ([9], 2, ()), ([9, 1], 2, (2, 3)), ([3], 0, ())],
)
def test_a_copy_after_a_drafted_chain_is_one_after_a_text_that_ends_in_it(
    chain: list[int], limit: int, copied: tuple[int, ...]
) -> None:
    index = CopyIndex(Estimates().copies)
    ends = index.read([1, 2, 3, 1, 2])
    for token in chain:
        ends = index.after(ends, token)
    assert index.copy(ends, limit).tokens == copied


def test_chances_of_copies_are_learnt_from_every_token_of_the_answer() -> None:
    rates = [DiscountedMean(2.0, 4.0) for _ in range(9)]
    index = CopyIndex(rates)
    index.read([1, 2, 3, 4, 5, 1, 2, 9])
    assert [rate.value for rate in rates] == [0.5] * 9  # the prompt says nothing
    index.read([1, 2, 3, 4, 5, 1, 2, 9, 3])
    assert [rate.value for rate in rates] == [0.5] * 9  # nothing had followed 9
    ends = index.read([1, 2, 3, 4, 5, 1, 2, 9, 3, 4])
    assert rates[1].value == pytest.approx((1 + 0.98 * 2) / (1 + 0.98 * 4))  # after 3, 4 was expected
    tokens, chances = index.copy(ends, 2)
    assert tokens == (5, 1)
    assert chances == pytest.approx([rates[2].value, rates[2].value * rates[3].value])
    index.read([1, 2, 3, 4, 5, 1, 2, 9, 3, 4, 7])
    assert rates[2].value == pytest.approx((0.98 * 2) / (0.98 * 4 + 1))
    short = CopyIndex(rates)
    for text in ([8], [8, 8], [8, 8, 8]):  # a prompt of one token
        short.read(text)
    assert rates[1].value == pytest.approx((1 + 0.98 * (1 + 0.98 * 2)) / (1 + 0.98 * (1 + 0.98 * 4)))
