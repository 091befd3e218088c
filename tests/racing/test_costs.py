"""Step costs: measured in races, refined by quiet races, kept for this machine."""

from pathlib import Path
from typing import Any

import pytest

import specdemo.racing.costs as step_costs
from specdemo.engines.base import THOROUGH
from specdemo.racing.costs import Sample, known_costs, learn, measure_costs, merged, recall, remember
from specdemo.racing.race import race
from specdemo.racing.warm_up import OtherLoad
from specdemo.records import Comparison
from specdemo.settings import GenerationSettings
from tests.support.scripted import ScriptedEngine
from tests.support.step_costs import costs_of

COSTS = costs_of((0.01, 0.011), 0.002, samples=(20, 20), other_load=0.02)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """Set other programs' share of the processor for each measurement; the last one repeats."""
    shares = [0.0]
    monkeypatch.setattr(step_costs, "own_cache", lambda: tmp_path)
    monkeypatch.setattr(OtherLoad, "share", lambda _: shares.pop(0) if len(shares) > 1 else shares[0])
    return shares


def engine(extra: float = 0.001, **others: Any) -> ScriptedEngine:
    return ScriptedEngine(step=0.01, draft=0.002, extra=extra, thoroughness=THOROUGH, **others)


def raced(engine: ScriptedEngine, **chosen: Any) -> Comparison:
    *_, comparison = race(engine, "Say", GenerationSettings.checked(engine="traced", ignore_eos=True, **chosen))
    assert isinstance(comparison, Comparison)
    return comparison


def test_quiet_step_costs_are_kept_and_not_measured_again(load: list[float]) -> None:
    assert recall("traced", engine().pair) is None
    load[:] = [0.6]
    busy = known_costs(engine())
    assert busy is not None
    assert busy.other_load == 0.6
    assert recall("traced", engine().pair) is None
    load[:] = [0.0]
    quiet = known_costs(engine())
    assert recall("traced", engine().pair) == quiet
    assert known_costs(engine(extra=0.005)) == quiet


def test_rounds_of_lookaheads_between_are_interpolated() -> None:
    costs = measure_costs(engine())
    assert costs is not None
    assert [lookahead for lookahead, rounds in enumerate(costs.samples) if rounds] == [
        0,
        *step_costs.USUAL,
        *step_costs.LONGER,
    ]
    assert costs.drafting == pytest.approx([0.002 * lookahead for lookahead in range(16)])
    assert costs.verify == pytest.approx([0.01 + 0.001 * lookahead for lookahead in range(16)])


def test_a_target_alone_is_timed_by_its_passes() -> None:
    alone = engine()
    alone.pair = alone.pair.model_copy(update={"draft": None})
    costs = measure_costs(alone)
    assert costs is not None
    assert costs.draft_step is None
    assert costs.verify == pytest.approx([0.01 + 0.001 * lookahead for lookahead in range(16)])


def test_a_quiet_race_adds_its_rounds(load: list[float]) -> None:
    remember(engine(), COSTS)
    dearer = engine(extra=0.005)
    comparison = raced(dearer, num_assistant_tokens=3, max_new_tokens=100)
    learn(dearer, comparison)
    table = recall("traced", dearer.pair)
    assert table is not None
    assert [rounds > 0 for rounds in table.samples] == [True, True, False, True]
    assert table.verify[3] == pytest.approx(0.025, rel=0.01)
    assert table.drafting[2] == pytest.approx(0.004, rel=0.01)
    load[:] = [0.5]
    learn(dearer, comparison.model_copy(update={"other_load": 0.5}))
    assert recall("traced", dearer.pair) == table


def test_ratios_are_averaged_by_rounds_whatever_the_pace() -> None:
    once = merged(None, [Sample(1, 10, 0.01, 0.2, 1.1), Sample(2, 10, 0.02, 0.4, 1.3)])
    assert once.plain_step == pytest.approx(0.015)
    assert [once.round_cost(lookahead) for lookahead in range(3)] == pytest.approx([1.0, 1.3, 1.7])
    more = merged(once, [Sample(2, 30, 0.015, 0.4, 1.5)])
    assert more.round_cost(2) == pytest.approx(0.4 + 1.45)
    assert more.samples == (50, 10, 40)
    many = merged(once.model_copy(update={"samples": (1000, 1000, 1000)}), [Sample(1, 200, 0.015, 0.2, 1.2)])
    assert many.round_cost(1) == pytest.approx(0.2 + 1.15)  # earlier races weigh at most 200 rounds


def test_a_table_without_samples_stays_unchanged() -> None:
    empty = costs_of((0.01,), None, samples=())
    assert merged(empty, []) == empty


def test_no_longer_round_costs_less_than_a_shorter_one() -> None:
    costs = merged(None, [Sample(1, 10, 1.0, 0.1, 0.8), Sample(2, 10, 1.0, 0.3, 1.4), Sample(3, 30, 1.0, 0.2, 1.2)])
    assert costs.verify == pytest.approx((1.0, 1.0, 1.4, 1.4))
    assert costs.drafting == pytest.approx((0.0, 0.1, 0.3, 0.3))


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
