from specdemo.engines.replay import LookupReplay
from specdemo.settings import GenerationSettings


def propose(history: list[int], limit: int = 99, **settings) -> list[int]:
    replay = LookupReplay(history, GenerationSettings(drafter="lookup", **settings))
    return [token for token, _ in replay.propose(limit)]


def test_lookup_copies_what_followed_the_longest_recent_ngram() -> None:
    assert propose([1, 2, 3, 9, 2, 3, 8, 1, 2, 3]) == [9, 2, 3, 8]  # "1 2 3" beats the later "2 3"


def test_lookup_takes_the_earliest_occurrence() -> None:
    assert propose([5, 1, 5, 2, 5], max_ngram_size=1, num_assistant_tokens=1) == [1]


def test_lookup_is_limited_by_lookahead_by_the_tokens_wanted_and_by_the_text() -> None:
    history = [1, 2, 3, 4, 5, 1]
    assert propose(history, num_assistant_tokens=2) == [2, 3]
    assert propose(history, limit=1, num_assistant_tokens=4) == [2]
    assert propose(history, limit=0) == []
    assert propose([1, 7, 1], num_assistant_tokens=4) == [7, 1]


def test_lookup_proposes_nothing_where_nothing_repeats() -> None:
    assert propose([1, 2, 3, 4]) == []


def test_lookup_learns_what_was_committed() -> None:
    replay = LookupReplay([1, 2, 3], GenerationSettings(drafter="lookup"))
    assert replay.propose(9) == []
    replay.commit([1, 2])
    assert [token for token, _ in replay.propose(9)] == [3, 1, 2]
