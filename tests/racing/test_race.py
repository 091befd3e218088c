"""Races of scripted engines."""

from collections.abc import Callable, Generator
from functools import partial

import pytest

from specdemo.errors import EngineError
from specdemo.exports import schema
from specdemo.racing.race import LiveSettings, RaceEvent, race, run_alone
from specdemo.racing.trials import repeats
from specdemo.records import Comparison, Request, Round, Slice
from specdemo.results.summary import summarise
from specdemo.settings import GenerationSettings
from specdemo.ui.feed import end_event
from tests.support.proposals import raced
from tests.support.scripted import ScriptedEngine

LONG = GenerationSettings(ignore_eos=True, max_new_tokens=120)


def laps(progress: list[RaceEvent]) -> list[Slice]:
    return [item for item in progress if isinstance(item, Slice)]


def test_the_side_whose_clock_is_behind_is_advanced_by_at_least_a_slice() -> None:
    clocks = {"plain": 0.0, "speculative": 0.0}
    running = {"plain", "speculative"}
    for lap in laps(list(race(ScriptedEngine(step=0.03), "Say", LONG, slice_seconds=0.2)))[2:]:
        assert clocks[lap.side] == min(clocks[side] for side in running)
        spent = sum(step.seconds for step in lap.rounds)
        assert lap.finish_reason or 0.2 <= spent < 0.2 + max(step.seconds for step in lap.rounds) + 1e-9
        clocks[lap.side] += spent
        if lap.finish_reason:
            running.remove(lap.side)
    assert not running


def test_a_lookahead_changed_during_a_run_counts_from_the_next_round() -> None:
    done, progress = list[Round](), list[RaceEvent]()

    def live_settings() -> LiveSettings:
        return {"num_assistant_tokens": 2.0 if len(done) > 5 else 7.0} if len(done) > 3 else {}

    for item in race(ScriptedEngine(), "Say", LONG, slice_seconds=0.01, live_settings=live_settings):
        progress.append(item)
        if isinstance(item, Slice) and item.side == "speculative":
            done += item.rounds
    comparison = progress[-1]
    assert isinstance(comparison, Comparison)
    lengths = [len(step.proposed or ()) for step in comparison.speculative.rounds]
    first, second = comparison.settings_updates
    assert [first.values, second.values] == [{"num_assistant_tokens": 7}, {"num_assistant_tokens": 2}]
    assert [first.label, second.label] == ["lookahead 7", "lookahead 2"]
    assert set(lengths[: first.round - 1]) == {4}
    assert set(lengths[first.round - 1 : second.round - 1]) == {7}
    assert set(lengths[second.round - 1 : -1]) == {2}
    assert [update for lap in laps(progress) for update in lap.settings_updates] == [first, second]
    assert schema.from_json(schema.to_json(comparison)).settings_updates == comparison.settings_updates
    assert list(repeats(ScriptedEngine(), comparison)) == []
    same: LiveSettings = {"num_assistant_tokens": 4, "assistant_confidence_threshold": 0.9}
    assert raced(ScriptedEngine(), "Say", LONG, live_settings=lambda: same).settings_updates == ()


def test_sequential_runs_one_side_after_the_other() -> None:
    settings = LONG.model_copy(update={"sequential": True})
    sides = [lap.side for lap in laps(list(race(ScriptedEngine(), "Say", settings)))[2:]]
    assert sides == sorted(sides)  # plain, then speculative
    assert set(sides) == {"plain", "speculative"}


def test_clocks_are_the_same_whatever_the_slices() -> None:
    engine = ScriptedEngine(wrong=(4,))
    sliced = raced(engine, "Say", LONG, slice_seconds=0.05)
    assert sliced.plain == run_alone(engine.decoder(Request.of("Say", LONG).plain))
    assert sliced.speculative == run_alone(engine.decoder(Request.of("Say", LONG)))


def test_a_failing_engine_frees_both_requests_and_the_next_race_works() -> None:
    engine = ScriptedEngine(fails_at=40)
    with pytest.raises(EngineError, match="run again"):
        list(race(engine, "Say", LONG))
    assert engine.requests == 0
    assert raced(engine, "Say", LONG).plain.finish_reason == "length"


def test_leaving_a_race_frees_both_requests() -> None:
    engine = ScriptedEngine()
    progress = race(engine, "Say", LONG)
    assert isinstance(progress, Generator)
    while not isinstance(next(progress), Slice):
        pass
    assert engine.requests > 0
    progress.close()
    assert engine.requests == 0


class Stopped:
    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self) -> bool:
        return self.left <= 0


RACES: dict[str, tuple[Callable[[], ScriptedEngine], GenerationSettings]] = {
    "local, in turns": (ScriptedEngine, LONG),
    "local, one after the other": (ScriptedEngine, LONG.model_copy(update={"sequential": True})),
    "servers": (partial(ScriptedEngine, name="server"), LONG),
}


@pytest.mark.parametrize("name", RACES)
def test_a_started_race_has_a_result_whenever_it_is_stopped(name: str) -> None:
    make, settings = RACES[name]
    prompt = " ".join(["word"] * 600)  # a prefill in three parts
    endless = Stopped(2**31)
    events = len([*race(make(), prompt, settings, stop=endless)])
    empty = set[str]()
    for after in range(events):
        engine, stop = make(), Stopped(after)
        seen = list[RaceEvent]()
        for event in race(engine, prompt, settings, stop=stop):
            seen.append(event)
            stop.left -= 1
        started = {lap.side for lap in laps(seen)}
        assert engine.requests == 0
        assert isinstance(seen[-1], Comparison) if started else not any(isinstance(one, Comparison) for one in seen)
        if not started:
            continue
        comparison = seen[-1]
        assert isinstance(comparison, Comparison)
        for side in ("plain", "speculative"):
            run = comparison.side(side)
            rounds = [step for lap in laps(seen) if lap.side == side for step in lap.rounds]
            assert [run.prefill, *run.rounds][: len(rounds)] == rounds
            assert bool(run.tokens) == (side in started)
            assert run.finish_reason == ("length" if len(run.tokens) == 120 else "cancelled")
        if len(started) == 1:
            (missing,) = {"plain", "speculative"} - started
            empty.add(missing)
            assert f"Stopped before the {missing} side began." in summarise(comparison).sentence
        again = schema.from_json(schema.to_json(comparison))
        assert again.speculative.tokens == comparison.speculative.tokens
        assert '"kind": "end"' in end_event(comparison)
    assert empty == {"speculative"}
