from typing import Any

from specdemo.engines.base import Engine
from specdemo.racing.race import race
from specdemo.records import Comparison, DraftToken, Round
from specdemo.settings import GenerationSettings
from tests.support.scripted import ScriptedEngine


def proposals(step: Round) -> tuple[DraftToken, ...]:
    assert step.proposed is not None
    return step.proposed


def raced(engine: Engine, prompt: str, settings: GenerationSettings, **options: Any) -> Comparison:
    *_, comparison = race(engine, prompt, settings, **options)
    assert isinstance(comparison, Comparison)
    return comparison


def compared(scripted: ScriptedEngine | None = None, prompt: str = "Say", /, **settings: Any) -> Comparison:
    """Race scripted engines, by default with wrong proposals at the fourth and seventh token, on a quiet machine."""
    done = raced(scripted or ScriptedEngine(wrong=(4, 7)), prompt, GenerationSettings.checked(**settings))
    return done.model_copy(update={"other_load": None})
