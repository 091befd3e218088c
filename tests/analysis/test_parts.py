"""Parts of runs on the scripted engine, whose draft is wrong where it is told to be."""

import pytest

from specdemo.engines.scripted import ScriptedEngine
from specdemo.estimate import accepted_per_round, by_position, by_thinking, race_of
from specdemo.measure.race import race
from specdemo.measure.trials import trials
from specdemo.records import Comparison, Trial
from specdemo.settings import GenerationSettings

SETTINGS = GenerationSettings(engine="traced", ignore_eos=True, max_new_tokens=129)


def measured(engine: ScriptedEngine, number: int = 1) -> list[Trial]:
    return [trial for trial in trials(engine, "Say", [SETTINGS] * number, None) if trial is not None]


def test_a_draft_that_is_wrong_in_the_second_half_slows_only_that_down() -> None:
    first, *_, last = parts = by_position(measured(ScriptedEngine(wrong=range(65, 400))))
    assert [part.name for part in parts[:2]] == ["1–16", "17–32"]
    assert len(parts) <= 8
    assert first.acceptance_rate == 1
    assert last.acceptance_rate == 0
    assert first.speedup.middle > 2 > 1 > last.speedup.middle
    assert (first.mean_accepted_length, last.mean_accepted_length) == (5, 1)
    assert sum(part.rounds for part in parts) == measured(ScriptedEngine(wrong=range(65, 400)))[0].rounds


def test_accepted_tokens_per_round_are_counted() -> None:
    engine = ScriptedEngine(wrong=(3, 8))
    (trial,) = measured(engine)
    counts = accepted_per_round([trial])
    assert sum(counts.values()) == trial.rounds
    assert sum(accepted * rounds for accepted, rounds in counts.items()) == trial.accepted
    assert counts[4] > counts[2] >= 1


def test_thinking_and_answer_are_told_apart() -> None:
    words = ("<think>", *[" hm"] * 40, "</think>", *[" so"] * 80)
    engine = ScriptedEngine(words=words, wrong=range(42))
    trial = measured(engine)[0]
    assert trial.thinking == 42
    thinking, answer = by_thinking([trial])
    assert (thinking.name, answer.name) == ("thinking", "answer")
    assert thinking.speedup.middle < 1 < answer.speedup.middle
    assert by_thinking(measured(ScriptedEngine())) == []


def test_a_race_is_cut_as_its_repeats_are() -> None:
    *_, comparison = race(ScriptedEngine(wrong=(7,)), "Say", SETTINGS)
    assert isinstance(comparison, Comparison)
    (repeat,) = measured(ScriptedEngine(wrong=(7,)))
    found = race_of(comparison)
    assert found is not None
    assert [step[:2] for step in found.round_steps] == [step[:2] for step in repeat.round_steps]
    assert accepted_per_round([found]) == accepted_per_round([repeat])
    assert [part.speedup.middle for part in by_position([found])] == pytest.approx(
        [part.speedup.middle for part in by_position([repeat])], rel=1e-4
    )
