"""A result names its settings, including the values they were moved to."""

import json

from specdemo.engines.scripted import ScriptedEngine
from specdemo.measure.race import race
from specdemo.presentation.explain import made_by
from specdemo.presentation.feed import Feed
from specdemo.presentation.wording import run_words, shared_words
from specdemo.records import Comparison, Move
from specdemo.settings import GenerationSettings
from specdemo.ui.boards import anatomy


def compared(*moves: Move, **chosen: object) -> Comparison:
    settings = GenerationSettings.checked(**{"engine": "traced", "num_assistant_tokens": 2, **chosen})
    *_, comparison = race(ScriptedEngine(), "Say", settings)
    assert isinstance(comparison, Comparison)
    return comparison.model_copy(update={"moves": moves})


def test_a_run_that_was_moved_is_not_labelled_with_its_first_value() -> None:
    moved = compared(Move(round=2, num_assistant_tokens=6), Move(round=4, num_assistant_tokens=3))
    label = "lookahead 2 → lookahead 6 → lookahead 3, draft model, traced engine"
    assert run_words(moved).startswith(label)
    assert label in made_by(moved)
    assert label in json.loads(anatomy(moved))["about"]
    feed = Feed("Say", moved.settings)
    feed.add(moved)
    assert json.loads(feed.everything.splitlines()[-1])["words"][0] == label.split(",")[0]


def test_a_threshold_that_was_moved_back_and_forth() -> None:
    moves = [Move(round=at, assistant_confidence_threshold=value) for at, value in ((2, 0.9), (3, 0.9), (5, 0.4))]
    words = run_words(compared(*moves, policy="confidence"))
    assert words.startswith("confidence threshold 0.4 → confidence threshold 0.9 → confidence threshold 0.4, draft")


def test_a_run_that_was_not_moved_has_its_settings() -> None:
    run = compared()
    assert run_words(run) == f"{run.settings.strategy.words}, {shared_words(run.settings)}"
