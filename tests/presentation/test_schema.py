import json
from typing import Any

import pytest
from hypothesis import given

from specdemo import metrics
from specdemo.engines.scripted import ScriptedEngine
from specdemo.models.pairs import bundled_pair
from specdemo.presentation import schema
from specdemo.race import race
from specdemo.records import Comparison, Round
from specdemo.settings import GenerationSettings
from tests.support.random_records import comparisons


@given(comparisons)
def test_what_is_written_is_what_is_read(comparison: Comparison) -> None:
    assert schema.from_json(json.loads(json.dumps(schema.to_json(comparison)))) == comparison


def test_object_has_the_documented_keys() -> None:
    *_, comparison = race(ScriptedEngine(wrong=(3,)), "Say", GenerationSettings())
    assert isinstance(comparison, Comparison)
    written = schema.to_json(comparison)
    assert written["schema"] == 2
    assert {"pair", "prompt", "settings", "environment", "plain", "speculative", "trace_source", "summary"} <= set(
        written
    )
    side = written["speculative"]
    assert {"text", "token_ids", "prefill_seconds", "decode_seconds", "tokens_per_second", "finish_reason"} <= set(
        side
    )
    assert set(side["rounds"][0]) == {"proposed", "committed", "draft_seconds", "verify_seconds", "seconds", "source"}
    assert set(side["rounds"][0]["proposed"][0]) == {
        "id", "text", "verdict", "draft_probability", "target_probability",
    }  # fmt: skip
    assert {"speedup", "headline", "acceptance_rate", "mean_acceptance_length", "identical"} <= set(
        written["summary"]
    )
    assert side["token_ids"][1:] == [id_ for step in side["rounds"] for id_ in step["committed"]]
    assert written["summary"]["speedup"] == pytest.approx(metrics.speedup(comparison))


def test_no_path_of_this_machine_is_written() -> None:
    text = bundled_pair().model_dump_json()
    assert "assets" not in text
    assert "path" not in text


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 2, got schema 3"):
        schema.from_json({"schema": 3})


def test_a_long_run_is_read_round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for all would hold Python's global lock, and with it every visitor of a server."""
    *_, comparison = race(ScriptedEngine(), "Say", GenerationSettings())
    assert isinstance(comparison, Comparison)
    seen: list[dict[str, Any]] = []

    def validated(data: dict[str, Any]) -> Comparison:
        seen.append(data)
        return comparison

    monkeypatch.setattr(Comparison, "model_validate", validated)
    schema.from_json(json.loads(json.dumps(schema.to_json(comparison))))
    rounds = [step for side in ("plain", "speculative") for step in seen[0][side]["rounds"]]
    assert rounds
    assert all(isinstance(step, Round) for step in rounds)
