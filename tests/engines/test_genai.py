import shutil
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import openvino_genai
import pytest

from specdemo.engines.genai.engine import GenAIEngine
from specdemo.engines.genai.pipelines import pool_blocks, scheduler_config
from specdemo.engines.traced.engine import TracedEngine
from specdemo.errors import CacheError, EngineError, PairError, PromptError
from specdemo.models.catalogue import BUNDLED, bundled_pair
from specdemo.racing.race import run_alone
from specdemo.records import Outcome, Request
from specdemo.results import metrics
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import Plain
from tests.conftest import PROMPTS
from tests.support import BRIEF
from tests.support.folders import pair_from_folders
from tests.support.proposals import proposals
from tests.support.runs import TOKENS, check_counters, plain, request, speculate

pytestmark = pytest.mark.openvino
F32 = RuntimeSettings(precision="f32")
greedy = cache(plain)


DRAFTERS = {
    "constant 1": {"num_assistant_tokens": 1},
    "constant 4": {"num_assistant_tokens": 4},
    "constant 16": {"num_assistant_tokens": 16},
    "confidence": {"policy": "confidence", "assistant_confidence_threshold": 0.2},
    "lookup": {"drafter": "lookup", "num_assistant_tokens": 5},
}


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
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


@pytest.fixture(scope="module")
def sentence_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GenAIEngine]:
    """The end-of-text token is the full stop, since the real one is rare."""
    full_stop = 14
    target = tmp_path_factory.mktemp("sentence")
    for file in (BUNDLED / "target").iterdir():
        (target / file.name).symlink_to(file)
    for name in ("config.json", "generation_config.json"):
        content = (target / name).read_text().replace('"eos_token_id": 0', f'"eos_token_id": {full_stop}')
        (target / name).unlink()
        (target / name).write_text(content)
    with closing(GenAIEngine(pair_from_folders(target, BUNDLED / "draft", F32), thoroughness=BRIEF)) as engine:
        assert engine.pipelines.tokenizer.decode([full_stop]) == "."
        yield engine


@pytest.mark.parametrize("drafter", [DRAFTERS["constant 4"], DRAFTERS["lookup"]], ids=str)
def test_end_of_text_stops_both_sides_unless_ignored(sentence_engine: GenAIEngine, drafter: dict[str, Any]) -> None:
    stopped = greedy(sentence_engine, ignore_eos=False)
    assert stopped.finish_reason == "stop"
    assert stopped.text.endswith(".")
    assert len(stopped.token_ids) < TOKENS
    speculative = speculate(sentence_engine, ignore_eos=False, **drafter)
    assert speculative.token_ids == stopped.token_ids
    assert speculative.finish_reason == "stop"
    assert len(speculate(sentence_engine, **drafter).token_ids) == TOKENS


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


def test_the_cache_has_room_for_the_longest_text_and_no_more(engine: GenAIEngine) -> None:
    blocks = 66  # the context of 2,048 tokens, and proposals at its end, in blocks of 32
    assert (scheduler_config(engine.pair).num_kv_blocks, scheduler_config(engine.pair).cache_size) == (blocks, 0)
    long = "once upon a time " * 480
    tokens = len(engine.pipelines.tokenizer.encode(long))
    run = plain(engine, long, max_new_tokens=2048 - tokens)
    assert len(run.token_ids) == 2048 - tokens <= 128
    most = engine.pipelines.get("plain").get_metrics().max_cache_usage
    assert most == pytest.approx(100 * 64 / blocks, abs=2), "the pool has as many blocks as were computed"
    longer = engine.pair.target.model_copy(update={"context_length": 10**7})
    assert pool_blocks(engine.pair.model_copy(update={"target": longer})) == 2**30 // (32 * 2 * 6 * 6 * 64 * 4), (
        "1 GB in f32"
    )
    assert scheduler_config(engine.pair, concurrent=True).cache_size == 1


def test_a_cache_too_small_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdemo.engines.genai.pipelines.pool_blocks", lambda pair: 3)  # 96 tokens
    with closing(GenAIEngine(bundled_pair(), thoroughness=BRIEF)) as small:
        for run in (plain, speculate):
            with pytest.raises(CacheError, match="KV cache of 1 GB is too small for this run; shorten the prompt"):
                run(small, max_new_tokens=200)
            assert len(run(small, max_new_tokens=20).token_ids) == 20


def test_a_cache_larger_than_memory() -> None:
    large = GenAIEngine(bundled_pair(cache_size=1024), side="speculative", thoroughness=BRIEF)
    with pytest.raises(CacheError, match=r"1024 GB does not fit in this machine's memory; choose a smaller"):
        large.batch(Plain())


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
