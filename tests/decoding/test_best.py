"""The lookahead to start with: hand-computed, bounded, and readable for the bundled drafts."""

from hypothesis import given
from hypothesis import strategies as st

from specdemo.decoding.best import best_lookahead
from specdemo.files import ASSETS
from specdemo.models.folder import agreement_per_step
from specdemo.records import Costs


def test_it_is_what_the_formula_gives() -> None:
    costs = Costs(plain_step=1.0, draft_step=0.1, verify=(1.0, 1.1, 1.1, 1.3))
    # τ 1.5, 1.75, 1.875 in 1.2, 1.3, 1.6 plain steps
    for steps, lookahead, speedup in ((6, 2, 1.75 / 1.3), (1, 1, 1.5 / 1.2)):
        found, predicted = best_lookahead([0.5] * steps, costs)
        assert (found, round(predicted, 9)) == (lookahead, round(speedup, 9))


def test_plain_decoding_where_nothing_pays() -> None:
    assert best_lookahead([0.5] * 4, Costs(plain_step=1.0, draft_step=0.6, verify=(1.0, 1.2, 1.4))) == (0, 1.0)
    assert best_lookahead([0.5] * 4, Costs(plain_step=1.0, draft_step=None, verify=(1.0, 1.0))) == (0, 1.0)
    assert best_lookahead([], Costs(plain_step=1.0, draft_step=0.1, verify=(1.0, 1.0))) == (0, 1.0)


@given(
    st.lists(st.floats(0, 1), max_size=8),
    st.floats(1e-6, 10),
    st.lists(st.floats(1e-6, 10), min_size=1, max_size=9),
)
def test_a_speedup_is_never_above_the_tokens_of_a_round(
    agreement: list[float], draft: float, passes: list[float]
) -> None:
    """However noisy the costs are."""
    lookahead, speedup = best_lookahead(
        agreement, Costs(plain_step=passes[0], draft_step=draft, verify=tuple(passes))
    )
    assert 1 <= speedup <= lookahead + 1 + 1e-9


def test_bundled_drafts_say_how_often_they_agree() -> None:
    assert agreement_per_step(ASSETS / "smollm2-draft")[:2] == (0.533, 0.533)
    assert agreement_per_step(ASSETS / "smollm2-head") == (0.612, 0.587, 0.574, 0.566)
    assert agreement_per_step(ASSETS / "story-pair" / "draft") == ()
