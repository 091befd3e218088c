"""Short runs on one engine."""

from typing import Any

from specdemo.engines.base import Engine
from specdemo.engines.genai.engine import GenAIEngine
from specdemo.engines.genai.pipelines import as_tensor, generation_config
from specdemo.racing.race import run_alone
from specdemo.records import Request, Run
from specdemo.settings import GenerationSettings
from tests.conftest import PROMPTS
from tests.support.proposals import proposals
from tests.support.step_costs import costs_of

TOKENS = 64
COSTS = costs_of(draft=0.0003, verify=tuple(0.0015 * (1 + 0.04 * n) for n in range(17)))


def request(engine: Engine, prompt: str = PROMPTS[0], **values: Any) -> Request:
    values = {"engine": engine.name, "ignore_eos": True, "max_new_tokens": TOKENS, **values}
    return Request.of(prompt, GenerationSettings.checked(**values))


def speculate(engine: Engine, prompt: str = PROMPTS[0], **values: Any) -> Run:
    return run_alone(engine.decoder(request(engine, prompt, **values), COSTS))


def plain(engine: Engine, prompt: str = PROMPTS[0], **values: Any) -> Run:
    return run_alone(engine.decoder(request(engine, prompt, **values).plain))


def check_counters(engine: GenAIEngine, prompt: str = PROMPTS[0], **values: Any) -> None:
    """Compare the rounds of a run with GenAI's counters of the same request."""
    run, pipeline = speculate(engine, prompt, **values), engine.pipelines.get("model")
    config = generation_config(pipeline, request(engine, prompt, **values))
    ids = as_tensor(engine.pipelines.tokenizer.encode(prompt))
    counters = pipeline.generate([ids], [config])[0].extended_perf_metrics
    sizes = [len(step.committed) for step in (run.prefill, *run.rounds)]
    assert sizes == list(counters.raw_metrics.m_batch_sizes), "a step is a round"
    judged = run.rounds[:-1]  # GenAI does not count the last round
    assert sum(step.accepted for step in judged) == counters.get_num_accepted_tokens()
    assert sum(len(proposals(step)) for step in judged) == counters.get_num_draft_tokens()
