"""Step costs from a quiet moment stand in for those that other programs spoiled."""

from pathlib import Path

import pytest

import specdemo.costs as step_costs
from specdemo.costs import measure_costs, plausible, predicted, recall, remember, start_settings
from specdemo.engines.base import THOROUGH
from specdemo.engines.scripted import ScriptedEngine
from specdemo.models.catalogue import bundled_pair, pair_settings
from specdemo.records import Costs
from specdemo.warm_up import OtherLoad

COSTS = Costs(plain_step=0.01, draft_step=0.002, verify=(0.01, 0.011), other_load=0.02)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """Shares of the processor that others take, one per measurement; the last one stays."""
    shares = [0.0]
    monkeypatch.setattr(step_costs, "own_cache", lambda: tmp_path)
    monkeypatch.setattr(OtherLoad, "share", lambda _: shares.pop(0) if len(shares) > 1 else shares[0])
    return shares


def engine(extra: float = 0.001) -> ScriptedEngine:
    return ScriptedEngine(step=0.01, draft=0.002, extra=extra, thoroughness=THOROUGH)


def test_a_quiet_measurement_is_kept_and_a_busy_one_gives_way(load: list[float]) -> None:
    assert recall("traced", engine().pair) is None
    quiet = measure_costs(engine())
    assert quiet is not None
    assert recall("traced", engine().pair) == quiet
    load[:] = [0.6]
    assert measure_costs(engine(extra=0.005)) == quiet
    other = engine()
    other.pair = other.pair.model_copy(update={"name": "another"})
    busy = measure_costs(other)
    assert busy is not None
    assert busy.other_load == 0.6
    assert recall("traced", other.pair) is None  # nothing quiet was measured of it


def test_impossible_costs_are_measured_again(load: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([(0.02, 0.01), (0.02, 0.012), (0.01, 0.011)])

    def measured(*_: object, **__: object) -> Costs:
        verify = next(found)
        return COSTS.model_copy(update={"verify": verify, "plain_step": verify[0]})

    monkeypatch.setattr(step_costs, "measure_once", measured)
    third = measure_costs(engine())
    assert third is not None
    assert third.verify == (0.01, 0.011)
    assert next(found, None) is None
    found = iter([(0.02, 0.01)] * 3)
    remember(engine(), COSTS)
    assert measure_costs(engine()) == COSTS


def test_costs_that_stay_impossible_are_bounded() -> None:
    noisy = COSTS.model_copy(update={"verify": (0.01, 0.006, 0.012, 0.011)})
    assert not plausible(noisy)
    assert noisy.bounded().verify == (0.01, 0.01, 0.012, 0.012)


def test_a_damaged_file_or_folder_is_no_obstacle(load: list[float], tmp_path: Path) -> None:
    remember(engine(), COSTS)
    (file,) = (tmp_path / "costs").iterdir()
    file.write_text("{")
    assert recall("traced", engine().pair) is None
    file.unlink()
    (tmp_path / "costs").rmdir()
    (tmp_path / "costs").write_text("a file")
    remember(engine(), COSTS)
    assert recall("traced", engine().pair) is None


@pytest.mark.parametrize(("agreement", "speedup", "best"), [(0.9, 4.095 / 2.2, 4), (0.5, 1.5 / 1.3, 1), (0.1, 1, 0)])
def test_the_page_starts_at_the_lookahead_that_costs_and_agreement_predict(
    load: list[float], monkeypatch: pytest.MonkeyPatch, agreement: float, speedup: float, best: int
) -> None:
    pair = bundled_pair()
    assert start_settings(pair, "traced") == pair_settings(pair, engine="traced")
    monkeypatch.setattr(step_costs, "agreement_per_step", lambda _: (agreement,) * 8)
    known = engine()
    known.pair = pair
    assert measure_costs(known) is not None
    found = predicted(pair, "traced")  # τ / (0.2 γ + 1 + 0.1 γ); lookahead 5 would be less than 1 % faster than 4
    assert found is not None
    assert found.lookahead == best
    assert found.speedup == pytest.approx(speedup, rel=1e-3)
    assert start_settings(pair, "traced").num_assistant_tokens == max(best, 1)
    assert predicted(pair, "genai") is None


def test_the_page_starts_in_the_engine_that_should_be_faster_once_both_are_known(
    load: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_costs, "agreement_per_step", lambda _: (0.5,) * 8)
    known = engine()
    known.pair = pair = bundled_pair()
    remember(known, COSTS)
    assert start_settings(pair) == pair_settings(pair)
    known.name = "genai"
    remember(known, COSTS.model_copy(update={"plain_step": COSTS.plain_step * 0.9}))
    assert start_settings(pair).engine == "genai"
    remember(known, COSTS.model_copy(update={"plain_step": COSTS.plain_step * 2}))
    assert start_settings(pair).engine == "traced"
