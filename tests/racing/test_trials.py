"""Trials and repeats of scripted engines, whose seconds are known by hand."""

from dataclasses import replace
from itertools import count, cycle
from typing import Any

import pytest

from specdemo.errors import EngineError
from specdemo.racing import trials as module
from specdemo.racing.trials import can_run, race_with_repeats, repeats, trials, warm_up_variants, with_repeats
from specdemo.records import Comparison, Costs, DraftCounts, Phase, Request, Run
from specdemo.settings import GenerationSettings
from specdemo.strategies import Plain
from tests.support import BRIEF
from tests.support.failing import failing_engine
from tests.support.proposals import raced
from tests.support.scripted import ScriptedEngine
from tests.support.step_costs import costs_of

SHORT = GenerationSettings(ignore_eos=True, max_new_tokens=41)  # 40 tokens after the prefill's: 8 rounds of 5
AUTO = GenerationSettings(engine="traced", policy="auto", ignore_eos=True, max_new_tokens=41)
COSTS = costs_of((0.01, 0.011), 0.002)


def slowing(asked: list[Request], *pace: float, **options: Any) -> ScriptedEngine:
    """An engine whose plain steps take 0.01 s in its first run, 0.02 s in its second, and so on, or this `pace`."""
    steps = cycle(pace) if pace else count(0.01, 0.01)

    def slows(engine: ScriptedEngine, request: Request) -> None:
        asked.append(request)
        engine.step = next(steps)

    return ScriptedEngine(on_request=slows, **options)


def order(asked: list[Request]) -> str:
    return "".join("p" if isinstance(each.strategy, Plain) else "s" for each in asked)


def test_a_trial_compares_a_run_with_the_plain_runs_on_both_sides() -> None:
    (trial,) = trials(slowing([]), "Say", [SHORT], None)
    assert trial is not None
    expected = {"tokens": 40, "identical": True, "rounds": 8, "run_tokens": 40, "proposed": 32, "accepted": 32}
    steps = {"plain_steps": ((0.01,) * 40, (0.03,) * 40), "round_steps": ((5, 4, 0.032),) * 8}
    assert trial.model_dump(exclude={"seconds", "plain_seconds"}) == expected | steps | {"other_load": None}
    assert (trial.seconds, trial.plain_seconds) == pytest.approx((8 * 0.032, 40 * 0.02))
    assert [*trials(ScriptedEngine(words=(" a",)), "Say", [GenerationSettings()], None)] == [None]
    assert [each and each.identical for each in trials(ScriptedEngine(diverges_at=5), "Say", [SHORT], None)] == [
        False
    ]


@pytest.mark.parametrize("counts", [None, DraftCounts(rounds=9, proposed=30, accepted=31)])
def test_a_trial_has_only_counts_that_were_reported(counts: DraftCounts | None) -> None:
    rounds = raced(ScriptedEngine(), "Say", SHORT).plain.rounds
    unknown = tuple(step.model_copy(update={"proposed": None}) for step in rounds)
    changed = {"passes_known": False, "draft_counts": counts, "hidden_tokens": 3, "rounds": unknown}
    (trial,) = trials(ScriptedEngine(on_run=lambda run: run.model_copy(update=changed)), "Say", [SHORT], None)
    assert trial is not None
    assert (trial.rounds, trial.run_tokens, trial.tokens) == (None, 43, 40)
    assert (trial.proposed, trial.accepted) == ((30, 31) if counts else (None, None))
    assert {proposals for _, proposals, _ in trial.round_steps} == {-1}


def test_plain_runs_are_shared_unless_they_sample_differently() -> None:
    sampled, longer = ({"do_sample": True}, {"num_assistant_tokens": 6})
    variants = [SHORT.model_copy(update=changed) for changed in ({}, longer, sampled)]
    found = [*trials(slowing(asked := list[Request]()), "Say", variants, None)]
    assert order(asked) == "pspsppsp"
    assert [each.sampling.do_sample for each in asked] == [False] * 5 + [True] * 3
    assert [each.plain_steps[0][0] for each in found if each is not None] == pytest.approx([0.01, 0.03, 0.06])


@pytest.mark.parametrize(("run", "finished"), [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)])
def test_a_stopped_trial_is_dropped(run: int, finished: int) -> None:
    engine = slowing(asked := list[Request]())
    assert len([*trials(engine, "Say", [SHORT, SHORT], None, lambda: len(asked) == run)]) == finished


@pytest.mark.parametrize(
    ("seconds", "runs", "rounds"),
    [(None, 3, [6, 6, 6]), (4, 3, [6, 4, 4]), (9, 3, [6, 6, 6]), (0.1, 3, [6, 1, 1]), (None, 1, [6]), (None, 0, [])],
)
def test_variants_warm_up_for_some_rounds_each_or_fewer_within_a_time(
    seconds: float | None, runs: int, rounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "perf_counter", count(1.0, 3.0).__next__)  # a plain run of six rounds takes 3 s
    asked, ran = list[Request](), list[Run]()
    engine = slowing(asked, on_run=lambda run: ran.append(run) or run)  # type: ignore[func-returns-value]
    plain = warm_up_variants(engine, "Say", [SHORT, SHORT], None, lambda: len(ran) >= runs, seconds)
    assert [len(run.rounds) for run in ran] == rounds
    assert (order(asked), plain) == ("pss"[:runs], ran[0] if runs else None)


@pytest.mark.parametrize(
    ("pace", "number", "done", "sides"),
    [
        (0.3, None, 5, "sp" * 5),  # after 1.2 s another race of 0.7 s ends within 2 s, after 1.5 s it does not
        (1.5, None, 1, "sp"),
        (0.01, None, 9, "sp" * 9),  # no more than the engine's number
        (1.5, 3, 3, "pspspsp"),  # as many as asked for, and none shares the race's plain run
    ],
)
def test_repeats_take_as_long_as_the_race_and_two_seconds_at_least(
    pace: float, number: int | None, done: int, sides: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "perf_counter", count(0.0, pace).__next__)
    engine = slowing(asked := list[Request](), 0.02, 0.03, 0.01, thoroughness=replace(BRIEF, repeats=9))
    *_, last = repeats(engine, raced(ScriptedEngine(), "Say", SHORT), number=number)
    assert (len(last.repeats), order(asked)) == (done, sides)


def test_a_race_that_took_long_or_was_stopped_is_not_repeated_by_itself() -> None:
    engine = ScriptedEngine(step=0.32, draft=0, extra=0)  # 48 passes of 0.32 s are more than 15 s
    comparison = raced(engine, "Say", SHORT)
    assert [len([*repeats(engine, comparison, number=number)]) for number in (None, 1)] == [0, 1]
    for changed in ({"finish_reason": "cancelled"}, {"rounds": ()}):
        stopped = {"speculative": comparison.speculative.model_copy(update=changed)}
        assert [*repeats(engine, comparison.model_copy(update=stopped), number=1)] == []


@pytest.mark.parametrize(
    ("settings", "costs", "last", "expected"),
    [
        (SHORT, None, None, ["warming up", (0, False), (1, False), (2, False), "calibrating", (2, True)]),
        (AUTO, None, None, ["calibrating", "warming up", (0, True), (1, True), (2, True)]),
        (SHORT, COSTS, None, ["warming up", (0, True), (1, True), (2, True)]),
        (SHORT, None, (0, False), ["warming up", (0, False)]),
        (SHORT, None, (1, False), ["warming up", (0, False), (1, False)]),
    ],
)
def test_step_costs_are_measured_first_if_the_strategy_depends_on_them_else_last_unless_stopped(
    settings: GenerationSettings, costs: Costs | None, last: Any, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "known_costs", lambda *_, **__: COSTS)
    seen = list[Any]()  # phases; of comparisons, the repeats, and whether there are step costs
    for event in race_with_repeats(
        ScriptedEngine(), "Say", settings, costs=costs, number=2, stop=lambda: last in seen
    ):
        if isinstance(event, Comparison):
            seen.append((len(event.repeats), event.costs is not None))
        elif isinstance(event, Phase):
            seen.append(event.name)
    assert [*dict.fromkeys(seen)] == expected
    assert can_run(ScriptedEngine().pair, settings, costs) == (settings is SHORT)


def test_a_failure_ends_the_repeats_and_keeps_the_race() -> None:
    comparison = raced(ScriptedEngine(), "Say", SHORT)
    assert [len(each.repeats) for each in with_repeats(failing_engine(EngineError, 5), comparison, number=3)] == [1]
