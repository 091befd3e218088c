"""GenAI's own counters beside the replay, and a second load where nothing was accepted."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from specdemo import metrics
from specdemo.engines.base import BRIEF
from specdemo.engines.genai import GenAIEngine
from specdemo.engines.scripted import ScriptedEngine
from specdemo.errors import EngineError
from specdemo.exports import schema
from specdemo.models.pairs import bundled_pair
from specdemo.race import race, with_counters
from specdemo.records import Comparison, Counters, Request
from specdemo.settings import GenerationSettings
from specdemo.summary import warnings
from tests.conftest import PROMPTS


@pytest.fixture(scope="module")
def engine() -> Iterator[GenAIEngine]:
    engine = GenAIEngine(bundled_pair(), thoroughness=BRIEF)
    yield engine
    engine.close()


def compare(engine: Any, prompt: str = PROMPTS[0], **settings: Any) -> Comparison:
    chosen = GenerationSettings.checked(**{"ignore_eos": True, "max_new_tokens": 48, **settings})
    *_, comparison = race(engine, prompt, chosen)
    assert isinstance(comparison, Comparison)
    return comparison


def kinds(comparison: Comparison) -> list[str]:
    return [each.kind for each in warnings(comparison)]


@pytest.mark.parametrize("settings", [{"num_assistant_tokens": 3}, {"policy": "confidence"}])
def test_a_replay_agrees_with_genai(engine: GenAIEngine, settings: dict[str, Any]) -> None:
    comparison = with_counters(engine, compare(engine, **settings))
    counters = comparison.counters
    assert counters is not None
    assert counters.same
    assert not counters.reloaded
    assert metrics.proposed_and_accepted(comparison.speculative) == (counters.proposed, counters.accepted)
    assert counters.processed >= counters.proposed
    assert counters.draft_share > 0
    assert "counts differ" not in kinds(comparison)
    assert schema.from_json(schema.to_json(comparison)).counters == counters


class Counting(ScriptedEngine):
    """Counts `found`, and remembers whether it was loaded again."""

    found: Counters | EngineError = EngineError("broken")
    reloads: tuple[bool, ...] = ()

    def counters(self, request: Request, wrote: Sequence[int], *, reload: bool) -> Counters | None:
        self.reloads += (reload,)
        if isinstance(self.found, EngineError):
            raise self.found
        return self.found.model_copy(update={"reloaded": reload})


def never_right(accepted: int) -> Comparison:
    words = tuple(f" word{number}" for number in range(40))
    engine = Counting(words=words, wrong=tuple(range(64)))
    engine.found = Counters(proposed=60, rejected=60 - accepted, processed=60, draft_share=0.2, same=True)
    comparison = with_counters(engine, compare(engine, "Say", num_assistant_tokens=2))
    assert engine.reloads == (True,)
    return comparison


@pytest.mark.parametrize(
    ("accepted", "words"),
    [(30, "Loaded again, the same pair accepted 30 of 60"), (0, "Reloading the pair made no difference")],
)
def test_after_an_acceptance_of_0_the_pair_is_loaded_again(accepted: int, words: str) -> None:
    (warning,) = [each for each in warnings(never_right(accepted)) if each.kind == "nothing accepted"]
    assert words in warning.reason
    assert ("first load was at fault" in warning.reason) == (accepted > 0)


def test_genai_loads_its_pipeline_again(engine: GenAIEngine) -> None:
    comparison = compare(engine)
    before = engine.pipelines.get("model")
    request = Request.of(comparison.prompt, comparison.settings)
    again = engine.counters(request, comparison.speculative.token_ids, reload=True)
    assert engine.pipelines.get("model") is not before
    assert again is not None
    assert again.reloaded
    assert again.same


def test_a_failure_costs_nothing_and_stopped_or_long_runs_are_not_counted() -> None:
    engine = Counting()
    comparison = compare(engine, "Say")
    assert with_counters(engine, comparison) == comparison
    assert engine.reloads == (False,)
    assert with_counters(engine, comparison, stop=lambda: True) == comparison
    slow = Counting(step=10.0)
    long = compare(slow, "Say")
    assert with_counters(slow, long) == long
    assert slow.reloads == ()
    assert len(engine.reloads) == 1
