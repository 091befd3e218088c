from typing import Any

from specdemo.racing.race import race
from specdemo.records import Comparison, DraftToken, Round
from specdemo.settings import GenerationSettings
from tests.support.scripted import ScriptedEngine


def proposals(step: Round) -> tuple[DraftToken, ...]:
    assert step.proposed is not None
    return step.proposed


def compared(engine: ScriptedEngine | None = None, prompt: str = "Say", **settings: Any) -> Comparison:
    """A race of scripted engines, by default with wrong proposals at the fourth and seventh token."""
    *_, comparison = race(engine or ScriptedEngine(wrong=(4, 7)), prompt, GenerationSettings(**settings))
    assert isinstance(comparison, Comparison)
    return comparison
