"""The table of a target's n-grams: counted, stored and looked up as plain counting would."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.decoding.indexes import LONGEST, Continuation, Table
from specdemo.errors import ModelError

TEXTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=4)


def _table(texts: list[list[int]]) -> Table:
    arrays = [np.array(text, np.int64) for text in texts]
    return Table.count([(ids, np.ones(len(ids), bool)) for ids in arrays], 4)


def _slowly(texts: list[list[int]], context: list[int]) -> list[Continuation]:
    """Every answer that counting would accept, for the longest context that occurred twice."""
    for size in range(min(LONGEST, len(context)), 0, -1):
        last = context[-size:]
        ends = [(text, end) for text in texts for end in range(size, len(text))]
        counts = Counter(text[end] for text, end in ends if text[end - size : end] == last)
        if counts.total() > 1:
            most = max(counts.values())
            return [
                Continuation(size, token, most, counts.total()) for token, count in counts.items() if count == most
            ]
    return []


@given(TEXTS, st.lists(st.integers(0, 3), max_size=8))
def test_the_longest_context_decides(texts: list[list[int]], context: list[int]) -> None:
    found, wanted = _table(texts).following(context), _slowly(texts, context)
    assert found in wanted if wanted else found is None


def test_only_answers_count_but_prompts_are_context() -> None:
    ids, answered = np.array([1, 2, 3, 1, 2, 3]), np.array([False, False, True] * 2)
    table = Table.count([(ids, answered)], 9)
    assert table.following([1, 2]) == Continuation(2, 3, 2, 2)
    assert table.following([1]) is None


def test_a_stored_table_is_the_same(tmp_path: Path) -> None:
    table = _table([[1, 2, 3, 1, 2, 3, 1, 2], [3, 3, 3]])
    table.save(tmp_path / "table.npz")
    read = Table.load(tmp_path / "table.npz")
    assert (len(read), read.vocabulary) == (len(table), 4)
    for context in ([1], [2], [1, 2], [3], [3, 3]):
        assert read.following(context) == table.following(context)


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\x05\x06" + b"\0" * 18])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "table.npz"
    file.write_bytes(content)
    with pytest.raises(ModelError, match="choose another file"):
        Table.load(file)
    np.savez(file, version=2)
    with pytest.raises(ModelError, match="count it anew"):
        Table.load(file)
    with pytest.raises(ModelError):
        Table.load(tmp_path / "none.npz")
