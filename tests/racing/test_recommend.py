"""The page's initial engine and lookahead, from kept step costs."""

import pytest

from specdemo.models.catalogue import bundled_pair, pair_settings
from specdemo.racing import recommend
from specdemo.racing.costs import measure_costs, remember
from specdemo.racing.recommend import recommended, start_settings
from tests.racing.test_costs import COSTS, engine, load
from tests.support.step_costs import costs_of

__all__ = ["load"]


@pytest.mark.parametrize(("agreement", "speedup", "best"), [(0.9, 4.095 / 2.2, 4), (0.5, 1.5 / 1.3, 1), (0.1, 1, 0)])
def test_the_page_starts_at_the_lookahead_that_costs_and_agreement_predict(
    load: list[float], monkeypatch: pytest.MonkeyPatch, agreement: float, speedup: float, best: int
) -> None:
    pair = bundled_pair()
    assert start_settings(pair, "traced") == pair_settings(pair, engine="traced")
    monkeypatch.setattr(recommend, "agreement_per_step", lambda _: (agreement,) * 8)
    known = engine()
    known.pair = pair
    assert measure_costs(known) is not None
    found = recommended(pair, "traced")  # τ / (0.2 γ + 1 + 0.1 γ); lookahead 5 would be less than 1 % faster than 4
    assert found is not None
    assert found.lookahead == best
    assert found.speedup == pytest.approx(speedup, rel=1e-3)
    assert start_settings(pair, "traced").num_assistant_tokens == max(best, 1)
    assert recommended(pair, "genai") is None


def test_the_page_starts_in_the_engine_predicted_to_be_faster(
    load: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recommend, "agreement_per_step", lambda _: (0.5,) * 8)
    known = engine()
    known.pair = pair = bundled_pair()
    remember(known, COSTS)
    assert start_settings(pair) == pair_settings(pair)
    for factor, fastest in ((0.9, "genai"), (2, "traced")):
        known.name = "genai"
        paced = (each * factor for each in COSTS.verify)
        remember(known, costs_of(tuple(paced), 0.002 * factor, samples=COSTS.samples))
        assert start_settings(pair).engine == fastest
