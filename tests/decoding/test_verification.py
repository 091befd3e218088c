from hypothesis import given
from hypothesis import strategies as st

from specdemo.decoding.verification import judge, verdicts_from_counts
from specdemo.records import Verdict

A, R, D = Verdict.ACCEPTED, Verdict.REJECTED, Verdict.DISCARDED
small_ids = st.lists(st.integers(0, 2), max_size=6)


def test_examples() -> None:
    assert judge([1, 2, 3], [1, 2, 9]) == [A, A, R]
    assert judge([1, 2, 3], [9]) == [R, D, D]
    assert judge([1, 2], [1, 2, 9]) == [A, A]
    assert judge([], [9]) == []


def test_a_run_can_end_on_an_accepted_token() -> None:
    assert judge([1, 0, 3], [1, 0], ended=True) == [A, A, D]
    assert judge([1, 0, 3], [1, 0], ended=False) is None


@given(small_ids, small_ids)
def test_greedy_verification_reproduces_its_own_rounds(proposed: list[int], target: list[int]) -> None:
    """Whatever the target would choose, the round it commits explains the proposals."""
    target = (target + [7] * len(proposed) + [7])[: len(proposed) + 1]
    accepted = next((i for i, (p, t) in enumerate(zip(proposed, target, strict=False)) if p != t), len(proposed))
    verdicts = judge(proposed, target[: accepted + 1])
    assert verdicts == verdicts_from_counts(len(proposed), accepted)


@given(small_ids, st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_impossible_rounds_are_told_apart(proposed: list[int], committed: list[int]) -> None:
    verdicts = judge(proposed, committed)
    possible = proposed[: len(committed) - 1] == committed[:-1] and (
        len(proposed) < len(committed) or proposed[len(committed) - 1] != committed[-1]
    )
    assert (verdicts is not None) == possible


@given(st.integers(0, 8), st.integers(0, 8))
def test_at_most_one_proposal_of_a_round_is_rejected(proposed: int, accepted: int) -> None:
    verdicts = verdicts_from_counts(proposed, min(accepted, proposed))
    assert len(verdicts) == proposed
    assert verdicts.count(R) == (accepted < proposed)
