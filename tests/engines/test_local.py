"""Both local engines on the bundled pair and on folders as other programs write them.

Speculation changes no output. The traced engine records everything; what GenAI does not expose is replayed.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai
import pytest

from specdemo.capabilities import ENGINES, EngineName, strategies
from specdemo.decoding.lookahead import ConstantPolicy
from specdemo.engines import load_engine
from specdemo.engines.base import Engine, rounds_of
from specdemo.engines.genai import pipelines
from specdemo.engines.genai.engine import GenAIEngine
from specdemo.engines.sequences import PagedSequence
from specdemo.engines.text import Tokenizer
from specdemo.engines.traced.engine import TracedEngine
from specdemo.errors import EngineError, LoadError, PairError, PromptError, SettingsError
from specdemo.models.catalogue import BUNDLED, bundled_pair
from specdemo.racing.race import run_alone
from specdemo.records import Outcome, Request, Round, Run
from specdemo.results import metrics
from specdemo.results.words import notes
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import Plain, Strategy
from tests.conftest import PROMPTS
from tests.support import BRIEF
from tests.support.folders import FIXTURES, pair_from_folders
from tests.support.proposals import proposals, raced
from tests.support.runs import COSTS, TOKENS, check_counters, plain, request, speculate

pytestmark = pytest.mark.openvino
F32 = RuntimeSettings(precision="f32")
greedy = cache(plain)
LOCAL = pytest.mark.parametrize("name", ["genai", "traced"])

DRAFTERS = {
    "constant 1": {"num_assistant_tokens": 1},
    "constant 4": {"num_assistant_tokens": 4},
    "constant 16": {"num_assistant_tokens": 16},
    "confidence": {"policy": "confidence", "assistant_confidence_threshold": 0.2},
    "lookup": {"drafter": "lookup", "num_assistant_tokens": 5},
    "auto": {"policy": "auto"},
    "combined": {"drafter": "combined"},
    "suffix": {"drafter": "suffix", "assistant_confidence_threshold": 0.2},
}
OF_GENAI = [*DRAFTERS.values()][:5]


@pytest.fixture(scope="module", params=["genai", "traced"])
def sentence_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The end-of-text token is the full stop, since the real one is rare."""
    full_stop = 14
    target = tmp_path_factory.mktemp("sentence")
    for file in (BUNDLED / "target").iterdir():
        (target / file.name).symlink_to(file)
    for name in ("config.json", "generation_config.json"):
        content = (target / name).read_text().replace('"eos_token_id": 0', f'"eos_token_id": {full_stop}')
        (target / name).unlink()
        (target / name).write_text(content)
    pair = pair_from_folders(target, BUNDLED / "draft", F32)
    assert Tokenizer(pair.target).decode([full_stop]) == "."
    with closing(load_engine(request.param, pair, thoroughness=BRIEF)) as engine:
        yield engine


@pytest.mark.parametrize("drafter", [DRAFTERS["constant 4"], DRAFTERS["lookup"]], ids=str)
def test_end_of_text_stops_both_sides_unless_ignored(sentence_engine: Engine, drafter: dict[str, Any]) -> None:
    stopped = greedy(sentence_engine, ignore_eos=False)
    assert stopped.finish_reason == "stop"
    assert stopped.text.endswith(".")
    assert len(stopped.token_ids) < TOKENS
    speculative = speculate(sentence_engine, ignore_eos=False, **drafter)
    assert speculative.token_ids == stopped.token_ids
    assert speculative.finish_reason == "stop"
    assert len(speculate(sentence_engine, **drafter).token_ids) == TOKENS


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
    [*((prompt, {}) for prompt in (PROMPTS[0], "Ein Märchen 🦊")), (PROMPTS[1], {"policy": "confidence"})],
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
    def broken(sequence: PagedSequence, ids: list[int], last: int = 1) -> np.ndarray:
        raise RuntimeError("out of memory")

    rounds = rounds_of(traced.decoder(request(traced)))
    next(rounds)
    with monkeypatch.context() as patch:
        patch.setattr(PagedSequence, "logits", broken)
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

    monkeypatch.setattr("specdemo.engines.traced.engine.policy_for", lambda strategy, *_: Listening(strategy))
    shown = [draft.draft_probability for step in speculate(traced).rounds for draft in proposals(step)]
    assert confidences[: len(shown)] == pytest.approx(shown[: len(confidences)], rel=1e-4)


@pytest.mark.parametrize("strategy", list(strategies("traced", "model")), ids=lambda strategy: strategy.name)
def test_live_strategies_accept_changed_settings(traced: TracedEngine, strategy: type[Strategy]) -> None:
    chosen = request(traced, drafter=strategy.drafter.name, policy=strategy.policy.name)
    decoder = traced.decoder(chosen, COSTS)
    assert decoder.update_strategy(chosen.strategy) == (strategy.name in ENGINES["traced"].live)
    assert not decoder.update_strategy(Plain())


@pytest.mark.parametrize("drafter", OF_GENAI, ids=str)
@pytest.mark.parametrize(("prompt", "penalty"), [(PROMPTS[1], 1.0), (PROMPTS[0], 1.2)])
def test_greedy_outputs_are_identical_in_f32_and_replay_explains_every_round(
    engine: GenAIEngine, prompt: str, drafter: dict[str, Any], penalty: float
) -> None:
    run = speculate(engine, prompt, repetition_penalty=penalty, **drafter)
    assert run.token_ids == greedy(engine, prompt, repetition_penalty=penalty).token_ids
    assert len(run.token_ids) == TOKENS
    assert run.finish_reason == "length"
    for step in run.rounds:
        assert step.proposed is not None
        assert None not in {draft.id for draft in proposals(step)}
        assert len(step.committed) == step.accepted + 1
        outcomes = [draft.outcome for draft in proposals(step)]
        assert outcomes == sorted(outcomes, key=list(Outcome).index)
    if drafter.get("drafter") != "lookup":
        assert all(draft.draft_probability for step in run.rounds for draft in proposals(step))


@pytest.mark.parametrize(
    "chosen",
    [
        {"num_assistant_tokens": 7},
        {"policy": "confidence", "assistant_confidence_threshold": 0.05},
        {"policy": "confidence", "assistant_confidence_threshold": 0.4},
    ],
    ids=str,
)
def test_counts_agree_with_the_counters_of_genai(engine: GenAIEngine, chosen: dict[str, Any]) -> None:
    check_counters(engine, **chosen)


def test_probabilities_are_reported_where_genai_computes_them(engine: GenAIEngine) -> None:
    run = speculate(engine, policy="confidence", assistant_confidence_threshold=0.2)
    assert all(token.probability and 0 < token.probability <= 1 for token in run.tokens)
    accepted = [draft for step in run.rounds for draft in proposals(step) if draft.outcome is Outcome.ACCEPTED]
    assert accepted
    assert all(draft.target_probability for draft in accepted)
    assert all(token.probability is None for token in speculate(engine).tokens)


def test_sampling_reports_counts_only_and_not_even_those_with_a_threshold(engine: GenAIEngine) -> None:
    decoder = engine.decoder(request(engine, do_sample=True, seed=4))
    run = run_alone(decoder)
    assert decoder.trace_source == "counts only"
    assert {len(proposals(step)) for step in run.rounds[:-3]} == {4}
    refused = [d for step in run.rounds for d in proposals(step) if d.outcome is not Outcome.ACCEPTED]
    assert refused
    assert all(draft.id is None for draft in refused)
    run = speculate(engine, do_sample=True, policy="confidence")
    assert all(step.proposed is None for step in run.rounds)
    assert metrics.acceptance_rate(run) is None


def test_sampling_with_prompt_lookup_equals_plain_and_is_replayed(engine: GenAIEngine) -> None:
    run = speculate(engine, do_sample=True, seed=5, drafter="lookup")
    assert run.token_ids == plain(engine, do_sample=True, seed=5).token_ids
    assert None not in {draft.id for step in run.rounds for draft in proposals(step)}


def test_a_failed_pipeline_is_rebuilt_and_the_next_run_works(engine: GenAIEngine) -> None:
    before = speculate(engine)
    broken = engine.pipelines.get("model")
    neither = openvino_genai.GenerationConfig(max_new_tokens=5)  # lookahead nor threshold
    broken.add_request(10**9, "x", neither)
    with pytest.raises(EngineError, match="has been reset; run again"):
        speculate(engine)
    assert speculate(engine).token_ids == before.token_ids
    assert engine.pipelines.get("model") is not broken


def test_a_closed_request_leaves_the_pipeline_free(engine: GenAIEngine) -> None:
    for _ in range(3):
        run_alone(engine.decoder(request(engine, max_new_tokens=500)), rounds=3)
    pipeline = engine.pipelines.get("model")
    assert not pipeline.has_non_finished_requests()
    assert pipeline.get_metrics().requests == 0


def test_the_cache_grows_to_the_longest_text(engine: GenAIEngine) -> None:
    long = "once upon a time " * 480
    tokens = len(engine.pipelines.tokenizer.encode(long))
    run = plain(engine, long, max_new_tokens=2048 - tokens)
    assert len(run.token_ids) == 2048 - tokens <= 128


@pytest.mark.parametrize(("context", "blocks"), [(2048, 66), (10**7, 2**30 // (32 * 2 * 6 * 6 * 64 * 4)), (None, 0)])
def test_the_pool_of_a_chat_has_room_for_the_longest_text(context: int | None, blocks: int) -> None:
    target = bundled_pair().target.model_copy(update={"context_length": context})
    assert pipelines._pool_blocks(bundled_pair().model_copy(update={"target": target})) == blocks


def test_a_cache_too_small_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdemo.engines.genai.pipelines._pool_blocks", lambda pair: 3)  # 96 tokens
    with closing(GenAIEngine(bundled_pair(enable_prefix_caching=True), thoroughness=BRIEF)) as small:
        for run in (plain, speculate):
            with pytest.raises(EngineError, match="The KV cache has no room for this run; shorten the prompt"):
                run(small, max_new_tokens=200)
            assert len(run(small, max_new_tokens=20).token_ids) == 20


def test_prompts_that_cannot_be_run(engine: GenAIEngine) -> None:
    with pytest.raises(PromptError, match="empty"):
        plain(engine, "  \n")
    with pytest.raises(PromptError, match=rf"\d+ tokens and {TOKENS} new ones exceed the model's context of 2048"):
        plain(engine, "word " * 2048)
    assert plain(engine).token_ids


def test_a_draft_with_another_end_token_runs_in_the_traced_engine_only(tmp_path: Path) -> None:
    draft = Path(shutil.copytree(BUNDLED / "draft", tmp_path / "draft"))
    file = draft / "openvino_tokenizer.xml"
    file.write_text(file.read_text().replace('<eos_token_id value="0"', '<eos_token_id value="5"'))
    pair = pair_from_folders(BUNDLED / "target", draft, F32)
    with pytest.raises(PairError, match="but these are 5 and 0; choose the traced engine"):
        GenAIEngine(pair).decoder(Request.of("Once", GenerationSettings()))
    with closing(TracedEngine(pair, thoroughness=BRIEF)) as engine:
        assert len(speculate(engine, "Once", max_new_tokens=4).tokens) == 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED / "draft", tmp_path / "folder"))


@LOCAL
def test_what_a_folder_adds_changes_no_output(name: EngineName, folder: Path) -> None:
    """GenAI's own configuration would search beams and stop at the first e."""
    settings = {
        "max_length": 20,
        "max_new_tokens": 5,
        "num_beams": 4,
        "num_return_sequences": 2,
        "stop_strings": ["e"],
    }
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"limits": [0, float("inf"), float("nan")]}))
    before = file.read_bytes()
    ids = []
    for path in (BUNDLED / "draft", folder):
        draft = path if name == "traced" else BUNDLED / "draft"  # GenAI loads no draft with infinite numbers
        pair = pair_from_folders(path, draft, F32)
        with closing(load_engine(name, pair, thoroughness=BRIEF)) as loaded:
            runs = plain(loaded), speculate(loaded, drafter="lookup"), speculate(loaded)
        ids.append([run.token_ids for run in runs])
    assert ids[0] == ids[1]
    assert file.read_bytes() == before, "the folder itself stays as it is"


@LOCAL
@pytest.mark.parametrize("content", ["{,", '{"top_p": "0.9"}'])
def test_a_damaged_generation_config_is_named(name: EngineName, content: str, folder: Path) -> None:
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(
        LoadError, match=r"generation_config.json of 'folder' cannot be read; correct it, or delete it"
    ):
        load_engine(name, pair_from_folders(folder, None, F32), thoroughness=BRIEF)
