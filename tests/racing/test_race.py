"""Races of scripted engines, and trials, which repeat them."""

from collections.abc import Callable, Generator
from functools import partial

import pytest

from specdemo.errors import EngineError
from specdemo.exports import schema
from specdemo.racing.race import LiveSettings, RaceEvent, race, run_alone
from specdemo.racing.trials import repeats, trials, with_repeats
from specdemo.records import Comparison, Request, Round, Slice
from specdemo.results.estimate import of_comparison
from specdemo.results.summary import summarise
from specdemo.settings import GenerationSettings
from specdemo.strategies import Plain
from specdemo.ui.feed import end_event
from tests.support.failing import failing_engine
from tests.support.machines import ratio_of_seconds
from tests.support.proposals import raced
from tests.support.scripted import ScriptedEngine

LONG = GenerationSettings(ignore_eos=True, max_new_tokens=120)
SHORT = GenerationSettings(ignore_eos=True, max_new_tokens=41)


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


def slowing(asked: list[Request]) -> ScriptedEngine:
    """An engine whose plain steps take 0.01 s in its first run, 0.02 s in its second, and so on."""

    def slows(engine: ScriptedEngine, request: Request) -> None:
        asked.append(request)
        engine.step += 0.01

    return ScriptedEngine(step=0, on_request=slows)


def test_a_trial_compares_a_run_with_the_plain_runs_on_both_sides() -> None:
    (trial,) = trials(slowing([]), "Say", [SHORT], None)
    assert trial is not None
    expected = {"tokens": 40, "identical": True, "rounds": 8, "run_tokens": 40, "proposed": 32, "accepted": 32}
    steps = {"plain_steps": ((0.01,) * 40, (0.03,) * 40), "round_steps": ((5, 4, 0.032),) * 8}
    assert trial.model_dump(exclude={"seconds", "plain_seconds"}) == expected | steps | {"other_load": None}
    assert (trial.seconds, trial.plain_seconds) == pytest.approx((8 * 0.032, 40 * 0.02))


def test_plain_runs_are_shared_unless_they_sample_differently() -> None:
    sampled, longer = ({"do_sample": True}, {"num_assistant_tokens": 6})
    variants = [SHORT.model_copy(update=changed) for changed in ({}, longer, sampled)]
    found = [*trials(slowing(asked := list[Request]()), "Say", variants, None)]
    assert "".join("p" if isinstance(each.strategy, Plain) else "s" for each in asked) == "pspsppsp"
    assert [each.sampling.do_sample for each in asked] == [False] * 5 + [True] * 3
    assert [each.plain_steps[0][0] for each in found if each is not None] == pytest.approx([0.01, 0.03, 0.06])


@pytest.mark.parametrize(("run", "finished"), [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)])
def test_a_stopped_trial_is_dropped(run: int, finished: int) -> None:
    engine = slowing(asked := list[Request]())
    assert len([*trials(engine, "Say", [SHORT, SHORT], None, lambda: len(asked) == run)]) == finished


def test_a_servers_burst_counts_as_its_tokens() -> None:
    """Plain rounds of two tokens each cause no speedup."""
    single = raced(ScriptedEngine(), "Say", SHORT)
    rounds = single.plain.rounds
    bursts = tuple(
        one.model_copy(update={"committed": one.committed + two.committed, "seconds": one.seconds + two.seconds})
        for one, two in zip(rounds[::2], rounds[1::2], strict=True)
    )
    burst = single.model_copy(update={"plain": single.plain.model_copy(update={"rounds": bursts})})
    speedups = [found.ratio for each in (single, burst) if (found := of_comparison(each)) is not None]
    assert speedups == [pytest.approx(ratio_of_seconds(single))] * 2


def test_a_failure_ends_the_repeats_and_keeps_the_race() -> None:
    comparison = raced(ScriptedEngine(), "Say", SHORT)
    assert [len(each.repeats) for each in with_repeats(failing_engine(EngineError, 5), comparison, number=3)] == [1]
