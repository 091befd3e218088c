"""Step costs: measured in races, and kept for this machine if it was quiet."""

from collections.abc import Callable, Generator
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest

import specdemo.racing.costs as step_costs
from specdemo.capabilities import EngineName
from specdemo.engines.base import THOROUGH
from specdemo.racing.costs import _RoundCost, known_costs, load_costs, measure_costs, save_costs
from specdemo.racing.warm_up import OtherLoad
from specdemo.records import Request, Run
from specdemo.strategies import Plain
from tests.support.scripted import ScriptedEngine
from tests.support.step_costs import costs_of

COSTS = costs_of((0.01, 0.011), 0.002, other_load=0.02)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """Set other programs' share of the processor for each measurement; the last one repeats."""
    shares = [0.0]
    monkeypatch.setattr(step_costs, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(step_costs, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(OtherLoad, "share", lambda _: shares.pop(0) if len(shares) > 1 else shares[0])
    return shares


def engine(extra: float = 0.001, **others: Any) -> ScriptedEngine:
    return ScriptedEngine(step=0.01, draft=0.002, extra=extra, thoroughness=THOROUGH, **others)


def test_quiet_step_costs_are_kept_and_not_measured_again(load: list[float]) -> None:
    assert load_costs("traced", engine().pair) is None
    load[:] = [0.6]
    busy = known_costs(engine())
    assert busy is not None
    assert busy.other_load == 0.6
    assert load_costs("traced", engine().pair) is None
    load[:] = [0.0]
    quiet = known_costs(engine())
    assert load_costs("traced", engine().pair) == quiet
    assert known_costs(engine(extra=0.005)) == quiet


def test_costs_cut_short_by_a_shorter_limit_are_not_kept(load: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count()
    monkeypatch.setattr(step_costs, "perf_counter", lambda: next(clock) / 1e6)
    load[:] = [0.6]
    measure_costs(engine())
    load[:] = [0.0]
    share = 0.7 * next(clock)  # of the readings of a whole measurement
    short = measure_costs(engine(), seconds=share / 1e6)
    assert short is not None
    assert short.verify == pytest.approx([0.01 + 0.001 * lookahead for lookahead in range(16)])
    assert measure_costs(engine(), seconds=0) is None
    assert load_costs("traced", engine().pair) is None


def test_the_first_race_has_some_rounds_however_late_it_begins(
    load: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = chain([0.0, 0.0], repeat(100.0))  # the limit, a look at it, and everything after a slow warm-up
    monkeypatch.setattr(step_costs, "perf_counter", lambda: next(clock))
    late = measure_costs(engine())
    assert late is not None
    assert late.verify == pytest.approx([0.01 + 0.001 * lookahead for lookahead in range(5)])


def undivided(run: Run) -> Run:
    rounds = [step.model_copy(update={"draft_seconds": None}) for step in run.rounds]
    return run.model_copy(update={"rounds": tuple(rounds)})


@pytest.mark.parametrize("on_run", [lambda run: run, undivided])
@pytest.mark.parametrize(("name", "raced"), [("traced", [4, 15]), ("genai", [1, 2, 3, 4, 7, 15])])
def test_lookaheads_are_raced_in_turns_where_an_engine_can_change_them(
    name: EngineName,
    raced: list[int],
    on_run: Callable[[Run], Run],
    load: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, passes = list[Request](), list[int]()
    timed = engine(name=name, on_run=on_run, on_request=lambda _, request: asked.append(request))

    def pass_seconds(prompt: str, tokens: int) -> Generator[float]:
        passes.append(tokens)
        return engine().pass_seconds(prompt, tokens)

    monkeypatch.setattr(timed, "pass_seconds", pass_seconds)
    costs = measure_costs(timed)
    assert costs is not None
    assert passes[:1] == ([5] if name == "traced" else [1] * (on_run is undivided)), "5 tokens are compiled before"
    assert costs.drafting == pytest.approx([0.002 * lookahead for lookahead in range(16)])
    assert costs.verify == pytest.approx([0.01 + 0.001 * lookahead for lookahead in range(16)])
    lookaheads = [each.strategy.fixed_lookahead for each in asked if not isinstance(each.strategy, Plain)]
    assert [*dict.fromkeys(lookaheads)] == raced


def test_a_target_alone_is_timed_by_its_passes() -> None:
    alone = engine()
    assert measure_costs(engine(name="server")) is None
    calls = count()
    assert measure_costs(engine(), stop=lambda: next(calls) > 1) is None, "stopped before a race's first token"
    alone.pair = alone.pair.model_copy(update={"draft": None})
    costs = measure_costs(alone)
    assert costs is not None
    assert costs.draft_step is None
    assert costs.verify == pytest.approx([0.01 + 0.001 * lookahead for lookahead in range(16)])


def test_no_longer_round_costs_less_than_a_shorter_one() -> None:
    costs = step_costs._table(
        [_RoundCost(*row) for row in ((1, 1.0, 0.1, 0.8), (2, 1.0, 0.3, 1.4), (3, 1.0, 0.2, 1.2))]
    )
    assert costs.verify == pytest.approx((1.0, 1.0, 1.4, 1.4))
    assert costs.drafting == pytest.approx((0.0, 0.1, 0.3, 0.3))


def test_a_damaged_file_or_folder_is_no_obstacle(load: list[float], tmp_path: Path) -> None:
    save_costs(engine(), COSTS)
    (file,) = (tmp_path / "costs").iterdir()
    file.write_text("{")
    assert load_costs("traced", engine().pair) is None
    file.unlink()
    (tmp_path / "costs").rmdir()
    (tmp_path / "costs").write_text("a file")
    save_costs(engine(), COSTS)
    assert load_costs("traced", engine().pair) is None
