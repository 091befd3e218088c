"""Warm-up on simulated clocks: as long as steps get faster, but not for ever."""

from dataclasses import replace

from specdemo.engines.base import THOROUGH, Thoroughness
from specdemo.racing.warm_up import warm_up
from specdemo.records import Phase, Request, Side, WarmUp
from specdemo.settings import GenerationSettings
from tests.support.scripted import ScriptedEngine

WARM = Thoroughness(cold_seconds=0)
REQUEST = Request.of("Say", GenerationSettings(ignore_eos=True, max_new_tokens=400))


def warmed(engine: ScriptedEngine) -> tuple[list[Phase], dict[Side, WarmUp]]:
    phases, steps = [], warm_up(engine, {"plain": REQUEST.plain, "speculative": REQUEST})
    while True:
        try:
            phases.append(next(steps))
        except StopIteration as end:
            return phases, end.value


def cold(step: float, share: float = 0.8, limit: float = 0.01) -> ScriptedEngine:
    """Return an engine whose steps take a share of the previous request's time, down to a limit."""

    def warms(engine: ScriptedEngine, request: Request) -> None:
        engine.step = max(engine.step * share, limit)

    return ScriptedEngine(step=step, thoroughness=WARM, on_request=warms)


def test_an_engine_that_has_not_raced_takes_longer() -> None:
    engine = ScriptedEngine(thoroughness=replace(THOROUGH, cold_seconds=2))
    first, again = warmed(engine)[1], warmed(engine)[1]
    for side in first:
        assert 2 <= first[side].seconds < 2.5
        assert again[side].seconds < 1


def test_a_steady_engine_repeats_until_that_is_certain() -> None:
    phases, found = warmed(ScriptedEngine(thoroughness=WARM))
    assert {(phase.done, phase.total) for phase in phases} <= {(1, 2), (2, 2)}
    assert len(phases) == 6
    assert warmed(ScriptedEngine(step=0.1, thoroughness=WARM))[1]["plain"].rounds == 3 * 4
    assert found["plain"].steady
    assert found["speculative"].steady


def test_a_cold_engine_warms_up_until_it_gets_no_faster() -> None:
    engine = cold(0.05)
    _, found = warmed(engine)
    assert engine.step == 0.01
    assert found["plain"].steady
    assert found["speculative"].steady


def test_warm_up_ends_even_if_steps_keep_getting_faster() -> None:
    engine = cold(1, share=0.96, limit=0)
    _, found = warmed(engine)
    assert not found["plain"].steady
    assert 3 <= found["plain"].seconds < 3 + 0.15 + 5 * 1.05
    assert engine.requests == 0


def test_a_recently_steady_side_is_only_checked() -> None:
    engine = ScriptedEngine(thoroughness=WARM)
    full = warmed(engine)[1]
    phases, found = warmed(engine)
    assert len(phases) == 2
    assert all(warm.steady for warm in found.values())
    assert found["plain"].rounds < full["plain"].rounds / 3
    other = Request.of("Say", GenerationSettings(num_assistant_tokens=7))
    phases = list(warm_up(engine, {"plain": REQUEST.plain, "speculative": other}))
    assert len(phases) > 2  # this lookahead is new
    engine.thoroughness = replace(WARM, warm_seconds=0)
    assert len(warmed(engine)[0]) > 2, "after a pause"
