"""Both engines on a tiny random-weight pair of each model family; `fixtures/make.py` made them."""

from typing import Any

import pytest

from specdemo.engines.base import BRIEF, Engine
from specdemo.engines.traced.engine import TracedEngine
from specdemo.racing.race import run_alone
from specdemo.records import ModelPair, Request, Run
from specdemo.results import metrics
from specdemo.settings import GenerationSettings, RuntimeSettings
from tests.support.folders import FIXTURES, pair_from_folders

pytestmark = pytest.mark.openvino
FAMILIES = ("gpt2", "llama", "qwen3")
PROMPT = "Does speculative decoding help"
TOKENS = 24


def pair_of(family: str, draft: str = "draft") -> ModelPair:
    folder = FIXTURES / family
    return pair_from_folders(folder / "target", folder / draft, RuntimeSettings(precision="f32"))


def decode(engine: Engine, *, plain: bool = False, **values: Any) -> Run:
    name = "traced" if isinstance(engine, TracedEngine) else "genai"
    settings = GenerationSettings(engine=name, ignore_eos=True, max_new_tokens=TOKENS, **values)
    request = Request.of(PROMPT, settings)
    return run_alone(engine.decoder(request.plain if plain else request))


@pytest.mark.parametrize("family", FAMILIES)
def test_traced_greedy_speculation_writes_what_plain_decoding_writes(family: str) -> None:
    engine = TracedEngine(pair_of(family), thoroughness=BRIEF)
    plain = decode(engine, plain=True)
    speculative = decode(engine)
    assert speculative.token_ids == plain.token_ids
    assert decode(engine, kv_cache="off").token_ids == plain.token_ids
    rate = metrics.acceptance_rate(speculative)
    assert rate is not None
    assert 0 < rate < 1, "the draft is right sometimes, so that rejected tails are taken back"
    engine.close()
