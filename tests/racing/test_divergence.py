"""Divergence of outputs: both candidates' probabilities, and whether rounding explains it."""

import math
from dataclasses import replace

import pytest

from specdemo.engines.genai.engine import GenAIEngine
from specdemo.engines.traced.engine import TracedEngine
from specdemo.errors import EngineError
from specdemo.exports import schema
from specdemo.racing.race import find_divergence, run_alone
from specdemo.records import Alternative, Divergence, Request
from specdemo.results.agreement import divergence_reason
from specdemo.results.summary import summarise
from specdemo.settings import GenerationSettings, Sampling
from tests.conftest import PROMPTS
from tests.support.proposals import compared
from tests.support.scripted import ScriptedEngine


def test_a_near_tie_is_reported_as_harmless() -> None:
    comparison = compared(ScriptedEngine(diverges_at=5, rounding=0.02))
    found = comparison.divergence
    assert found is not None
    assert (found.index, found.plain.text, found.speculative.text) == (5, " over", " otherwise")
    assert found.rounding == pytest.approx(0.02)
    assert found.near_tie
    reason = divergence_reason(comparison)
    assert reason.startswith("At token 6 the target gave “ over” 50 % (plain) and “ otherwise” 50 % (speculative).")
    assert "by up to 2 % (relative)" in reason
    assert "a harmless near-tie, which rounding decides" in reason
    assert "--precision f32" in reason
    assert reason in summarise(comparison).why[-1]
    assert schema.from_json(schema.to_json(comparison)).divergence == found


def test_a_gap_beyond_rounding_is_a_fault() -> None:
    comparison = compared(ScriptedEngine(diverges_at=5), num_assistant_tokens=3, apply_chat_template=False)
    apart = Divergence(
        index=5,
        plain=Alternative(id=1, text=" over", probability=0.62),
        speculative=Alternative(id=2, text=" otherwise", probability=0.11),
        rounding=0.02,
    )
    assert not apart.near_tie
    found = summarise(comparison.model_copy(update={"divergence": apart}))
    (warning,) = found.warnings
    assert warning.chip == "outputs differ, see Why?"
    assert "“ over” 62 % (plain) and “ otherwise” 11 %" in warning.reason
    assert "larger than the rounding measured on the tokens just before" in warning.reason
    assert len([paragraph for paragraph in found.why if "at fault" in paragraph]) == 1
    assert found.why[-1] == "Outputs differ from token 6 on."


@pytest.mark.parametrize(
    ("gap", "rounding", "near"), [(0.038, 0.02, True), (0.042, 0.02, False), (4e-4, 0, True), (6e-4, 0, False)]
)
def test_a_near_tie_is_a_gap_of_at_most_twice_the_rounding(gap: float, rounding: float, near: bool) -> None:
    """Either probability may be off by it; kernels in f32 differ by 5e-4."""
    plain, speculative = (Alternative(id=1, text="a", probability=0.5 * math.exp(-part)) for part in (0, gap))
    assert Divergence(index=1, plain=plain, speculative=speculative, rounding=rounding).near_tie is near


def test_identical_sampled_or_remote_outputs_have_no_divergence() -> None:
    assert compared(ScriptedEngine()).divergence is None
    parted = compared(ScriptedEngine(diverges_at=5))
    sampled = parted.model_copy(update={"settings": GenerationSettings(do_sample=True)})
    assert find_divergence(ScriptedEngine(), sampled) is None
    assert find_divergence(ScriptedEngine(name="server"), parted) is None

    class Failing(ScriptedEngine):
        def log_probabilities(self, *arguments: object, **options: object) -> list[float] | None:
            raise EngineError()

    assert find_divergence(Failing(), parted) is None
    unable = ScriptedEngine()
    unable.log_probabilities = lambda *_, one_by_one: None if one_by_one else [0.0]  # type: ignore[method-assign]
    assert find_divergence(unable, parted) is None


@pytest.mark.openvino
@pytest.mark.parametrize("one_by_one", [False, True])
def test_engines_give_the_same_probabilities(engine: GenAIEngine, traced: TracedEngine, one_by_one: bool) -> None:
    request = Request.of(PROMPTS[0], GenerationSettings(max_new_tokens=20, ignore_eos=True)).plain
    run = run_alone(traced.decoder(request))
    before, tokens = run.token_ids[:8], run.token_ids[8:16]
    expected = [token.probability for token in run.tokens[8:16]]
    for each in (engine, traced):
        found = each.log_probabilities(request, before, tokens, one_by_one=one_by_one)
        assert found is not None
        assert [math.exp(logarithm) for logarithm in found] == pytest.approx(expected, rel=1e-2)
    penalised = replace(request, sampling=Sampling(repetition_penalty=1.3))
    assert engine.log_probabilities(penalised, before, tokens, one_by_one=one_by_one) is None
    found = traced.log_probabilities(penalised, before, tokens, one_by_one=one_by_one)
    assert found is not None
    assert [math.exp(logarithm) for logarithm in found] != pytest.approx(expected, rel=1e-2)
