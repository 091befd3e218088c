"""The traced engine on the bundled pair: it records everything and changes no output."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from typing import Any

import numpy as np
import pytest

from specdemo.capabilities import ENGINES, strategies
from specdemo.decoding.lookahead import ConstantPolicy
from specdemo.engines.base import rounds_of
from specdemo.engines.genai.engine import GenAIEngine
from specdemo.engines.sequences import Paged
from specdemo.engines.text import Tokenizer
from specdemo.engines.traced.engine import TracedEngine
from specdemo.errors import EngineError, PairError, SettingsError
from specdemo.models.catalogue import BUNDLED
from specdemo.records import Outcome, Round, Run
from specdemo.results import metrics
from specdemo.results.words import notes
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import Strategy
from tests.conftest import PROMPTS
from tests.support import BRIEF
from tests.support.folders import FIXTURES, pair_from_folders
from tests.support.proposals import proposals, raced
from tests.support.runs import COSTS, plain, request, speculate

pytestmark = pytest.mark.openvino
F32 = RuntimeSettings(precision="f32")
greedy = cache(plain)


DRAFTERS = {
    "constant 1": {"num_assistant_tokens": 1},
    "constant 4": {"num_assistant_tokens": 4},
    "constant 16": {"num_assistant_tokens": 16},
    "confidence": {"policy": "confidence"},
    "auto": {"policy": "auto"},
    "combined": {"drafter": "combined"},
    "suffix": {"drafter": "suffix", "assistant_confidence_threshold": 0.2},
    "lookup": {"drafter": "lookup"},
}


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_models_of_every_family_write_the_same_with_a_draft_and_without_a_cache(family: str) -> None:
    pair = pair_from_folders(FIXTURES / family / "target", FIXTURES / family / "draft", F32)
    with closing(TracedEngine(pair, thoroughness=BRIEF)) as engine:
        alone = plain(engine, max_new_tokens=24)
        run, uncached = (speculate(engine, max_new_tokens=24, kv_cache=cache) for cache in ("on", "off"))
    assert run.token_ids == uncached.token_ids == alone.token_ids
    assert 0 < (metrics.acceptance_rate(run) or 0) < 1, "the draft is right sometimes: rejected tails are taken back"


def test_a_setting_changed_during_a_run_applies_from_the_next_round(traced: TracedEngine) -> None:
    def moved(round_: int, before: dict[str, Any], after: dict[str, Any]) -> list[Round]:
        decoder, done = traced.decoder(request(traced, **before), COSTS), []
        for step in rounds_of(decoder):
            done.append(step)
            if len(done) == round_:  # the first one is the prefill's
                assert decoder.update_strategy(request(traced, **before | after).strategy)
        assert [token.id for step in done for token in step.committed] == list(greedy(traced).token_ids)
        return done[1:]

    done = moved(4, {"num_assistant_tokens": 2}, {"num_assistant_tokens": 6})
    assert [len(proposals(step)) for step in done[:8]] == [2] * 3 + [6] * 5
    strict = {"policy": "confidence", "assistant_confidence_threshold": 0.95}
    done = moved(3, strict | {"assistant_confidence_threshold": 0.05}, strict)
    going_on = [[draft.draft_probability or 0 for draft in proposals(step)[:-1]] for step in done]
    assert min(min(row, default=1) for row in going_on[:2]) < 0.95
    assert min(min(row, default=1) for row in going_on[2:]) >= 0.95


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_both_engines_write_the_same(traced: TracedEngine, engine: GenAIEngine, penalty: float) -> None:
    for prompt in PROMPTS:
        expected, ours = (plain(either, prompt, repetition_penalty=penalty) for either in (engine, traced))
        assert (ours.token_ids, ours.text) == (expected.token_ids, expected.text)
        assert ours.prompt_tokens == expected.prompt_tokens == len(engine.pipelines.tokenizer.encode(prompt))


def test_both_engines_see_the_same_proposals(traced: TracedEngine, engine: GenAIEngine) -> None:
    replayed, measured = speculate(engine), speculate(traced)
    for steps in zip(replayed.rounds, measured.rounds, strict=True):
        for draft, same in zip(*map(proposals, steps), strict=True):
            assert (draft.id, draft.text, draft.outcome) == (same.id, same.text, same.outcome)
            assert draft.draft_probability == pytest.approx(same.draft_probability, abs=1e-4)


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize(
    ("prompt", "penalty", "sample"), [(PROMPTS[1], 1.0, False), (PROMPTS[0], 1.2, False), (PROMPTS[0], 1.0, True)]
)
def test_greedy_outputs_are_identical_and_every_token_has_all_its_figures(
    traced: TracedEngine, prompt: str, penalty: float, sample: bool, drafter: dict[str, Any]
) -> None:
    run = speculate(traced, prompt, do_sample=sample, repetition_penalty=penalty, **drafter)
    assert sample or run.token_ids == greedy(traced, prompt, repetition_penalty=penalty).token_ids
    assert run.finish_reason == "length"
    for step in run.rounds:
        assert len(step.committed) == step.accepted + 1
        assert step.draft_seconds is not None
        assert step.verify_seconds is not None
        assert 0 < step.draft_seconds + step.verify_seconds <= step.seconds
        for draft in proposals(step):
            assert draft.draft_probability is not None
            assert draft.target_probability is not None
            assert 0 < draft.draft_probability <= 1 + 1e-9
            if draft.outcome is Outcome.ACCEPTED:
                assert draft.target_probability > 0
            rejected = draft.outcome is Outcome.REJECTED
            assert bool(draft.target_likeliest) is rejected
            assert bool(draft.draft_likeliest) is (rejected and not draft.copied)
            for likeliest in (draft.target_likeliest, draft.draft_likeliest):
                chances = [each.probability for each in likeliest]
                assert chances == sorted(chances, reverse=True)
            if rejected and not sample:  # each side chose its likeliest token
                correction = draft.target_likeliest[0]
                assert (correction.id, correction.text) == (step.committed[-1].id, step.committed[-1].text)
                assert correction.probability == step.committed[-1].probability
                assert [each.id for each in draft.draft_likeliest[:1]] == [draft.id] * (not draft.copied)
    for token in run.tokens:
        assert token.probability is not None
        assert 0 < token.probability <= 1 + 1e-9
        assert token.entropy is not None
        assert token.entropy >= 0


def test_sampling_is_reproducible_by_seed(traced: TracedEngine) -> None:
    def sampled(seed: int, run: Callable[..., Run]) -> Run:
        return run(traced, do_sample=True, seed=seed, max_new_tokens=24)

    for run in (plain, speculate):
        assert sampled(1, run).token_ids == sampled(1, run).token_ids
        assert sampled(1, run).token_ids != sampled(2, run).token_ids


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    pair = pair_from_folders(BUNDLED / "draft", BUNDLED / "draft", F32)
    with closing(TracedEngine(pair, thoroughness=BRIEF)) as twin:
        for sample in (False, True):
            run = speculate(twin, do_sample=sample, num_assistant_tokens=3)
            assert {step.accepted for step in run.rounds[:-1]} == {3}


def test_end_of_text_stops_unless_ignored(traced: TracedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    long = plain(traced)
    end = long.token_ids[20]
    monkeypatch.setattr(Tokenizer, "eos_ids", lambda tokenizer: frozenset({end}))
    for run in (speculate(traced, ignore_eos=False), plain(traced, ignore_eos=False)):
        assert run.finish_reason == "stop"
        assert run.token_ids == long.token_ids[: long.token_ids.index(end) + 1]


def test_a_pair_without_a_draft_uses_prompt_lookup() -> None:
    alone = TracedEngine(pair_from_folders(BUNDLED / "target", None, RuntimeSettings()), thoroughness=BRIEF)
    with pytest.raises(PairError, match="no draft model"):
        speculate(alone)
    assert len(speculate(alone, drafter="lookup", max_new_tokens=8).token_ids) == 8


@pytest.fixture(scope="module")
def foreign() -> Iterator[TracedEngine]:
    """The draft has another tokenizer, of 512 tokens."""
    pair = pair_from_folders(BUNDLED / "target", FIXTURES / "llama" / "draft", F32)
    with closing(TracedEngine(pair, thoroughness=BRIEF)) as engine:
        yield engine


@pytest.mark.parametrize(
    ("prompt", "drafter"),
    [
        *((prompt, {}) for prompt in (PROMPTS[0], "Ein Märchen 🦊")),
        (PROMPTS[1], {"policy": "confidence"}),
    ],
    ids=str,
)
def test_a_draft_with_another_tokenizer_is_translated(
    foreign: TracedEngine, traced: TracedEngine, prompt: str, drafter: dict[str, Any]
) -> None:
    assert foreign.pair.translated
    run = speculate(foreign, prompt, **drafter)
    assert run.token_ids == greedy(traced, prompt).token_ids
    assert any(step.proposed for step in run.rounds)


def test_settings_that_another_tokenizer_excludes(foreign: TracedEngine) -> None:
    with pytest.raises(SettingsError, match="works in greedy decoding only; switch sampling off"):
        speculate(foreign, do_sample=True)
    comparison = raced(foreign, PROMPTS[0], GenerationSettings(engine="traced", max_new_tokens=8))
    assert "different tokenizers" in " ".join(notes(comparison))


def test_where_a_foreign_draft_proposes_nothing(foreign: TracedEngine) -> None:
    assert len(speculate(foreign, "<|endoftext|>", max_new_tokens=8).token_ids) == 8
    prompt = "Once upon a time there was a fox who lived in the forest. " * 30  # beyond the draft's 512 tokens
    run = speculate(foreign, prompt, max_new_tokens=8)
    assert {step.proposed for step in run.rounds} == {()}


def test_an_openvino_failure_becomes_a_sentence_and_the_next_run_works(
    traced: TracedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(sequence: Paged, ids: list[int], last: int = 1) -> np.ndarray:
        raise RuntimeError("out of memory")

    rounds = rounds_of(traced.decoder(request(traced)))
    next(rounds)
    with monkeypatch.context() as patch:
        patch.setattr(Paged, "logits", broken)
        with pytest.raises(EngineError, match="has been reset: there is not enough memory"):
            next(rounds)
    assert speculate(traced).token_ids == plain(traced).token_ids


def test_confidence_is_the_probability_that_is_shown(traced: TracedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy gets a value that is computed faster, in single precision, since the clock runs."""
    confidences: list[float] = []

    class Listening(ConstantPolicy):
        def proposes_more(self, proposed: int, confidence: Callable[[], float]) -> bool:
            if proposed:
                confidences.append(confidence())
            return super().proposes_more(proposed, confidence)

    monkeypatch.setattr("specdemo.engines.traced.engine.policy_for", lambda strategy, costs, estimates: Listening(3))
    shown = [draft.draft_probability for step in speculate(traced).rounds for draft in proposals(step)]
    assert confidences[: len(shown)] == pytest.approx(shown[: len(confidences)], rel=1e-4)


@pytest.mark.parametrize("strategy", list(strategies("traced", "model")), ids=lambda strategy: strategy.name)
def test_live_strategies_accept_changed_settings(traced: TracedEngine, strategy: type[Strategy]) -> None:
    chosen = request(traced, drafter=strategy.drafter.name, policy=strategy.policy.name)
    decoder = traced.decoder(chosen, COSTS)
    assert decoder.update_strategy(chosen.strategy) == (strategy.name in ENGINES["traced"].live)
