"""Step costs from a quiet moment stand in for those that other programs spoiled."""

from pathlib import Path

import pytest

import specdemo.costs as step_costs
from specdemo.costs import bounded, measure_costs, plausible, recall, remember
from specdemo.engines.base import THOROUGH
from specdemo.engines.scripted import ScriptedEngine
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
    assert recall(engine()) is None
    quiet = measure_costs(engine())
    assert quiet is not None
    assert recall(engine()) == quiet
    load[:] = [0.6]
    assert measure_costs(engine(extra=0.005)) == quiet
    other = engine()
    other.pair = other.pair.model_copy(update={"name": "another"})
    busy = measure_costs(other)
    assert busy is not None
    assert busy.other_load == 0.6
    assert recall(other) is None  # nothing quiet was measured of it


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
    assert bounded(noisy).verify == (0.01, 0.01, 0.012, 0.012)


def test_a_damaged_file_or_folder_is_no_obstacle(load: list[float], tmp_path: Path) -> None:
    remember(engine(), COSTS)
    (file,) = (tmp_path / "costs").iterdir()
    file.write_text("{")
    assert recall(engine()) is None
    file.unlink()
    (tmp_path / "costs").rmdir()
    (tmp_path / "costs").write_text("a file")
    remember(engine(), COSTS)
    assert recall(engine()) is None
