"""The traced engine on tiny pairs of each model family with random weights, from `fixtures/make.py`."""

from contextlib import closing

import pytest

from specdemo.engines.traced.engine import TracedEngine
from specdemo.racing.race import run_alone
from specdemo.records import Request
from specdemo.results import metrics
from specdemo.settings import GenerationSettings, RuntimeSettings
from tests.support import BRIEF
from tests.support.folders import FIXTURES, pair_from_folders


@pytest.mark.openvino
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_greedy_speculation_writes_what_plain_decoding_writes(family: str) -> None:
    pair = pair_from_folders(
        FIXTURES / family / "target", FIXTURES / family / "draft", RuntimeSettings(precision="f32")
    )
    settings = GenerationSettings(engine="traced", ignore_eos=True, max_new_tokens=24)
    request = Request.of("Does speculative decoding help", settings)
    recomputing = Request.of(request.prompt, settings.model_copy(update={"kv_cache": "off"}))
    with closing(TracedEngine(pair, thoroughness=BRIEF)) as engine:
        plain, speculative, recomputed = (
            run_alone(engine.decoder(variant)) for variant in (request.plain, request, recomputing)
        )
    assert speculative.token_ids == plain.token_ids == recomputed.token_ids
    rate = metrics.acceptance_rate(speculative)
    assert rate is not None
    assert 0 < rate < 1, "the draft is right sometimes, so that rejected tails are taken back"
