"""What a draft is worth on this machine: step costs beforehand, a race afterwards."""

from contextlib import closing
from random import Random
from statistics import median

from specdemo.analysis import metrics
from specdemo.engines import load_engine
from specdemo.measure.race import race
from specdemo.measure.step_costs import measure_costs
from specdemo.records import Comparison, Costs, ModelPair
from specdemo.settings import GenerationSettings
from specdemo.train.judge import Judgement
from specdemo.train.plan import Request
from specdemo.train.questions import filled

RACES, TOKENS = 5, 128
OPENINGS = ("The sun was", "Once upon a time", "In the beginning", "This is", "It was the first")


def costs_of(pair: ModelPair) -> Costs | None:
    """Step costs in GenAI's engine; None where they cannot be measured."""
    with closing(load_engine("genai", pair)) as engine:
        return measure_costs(engine)


def best_lookahead(judgement: Judgement, costs: Costs | None) -> tuple[int, float | None]:
    """The lookahead with the highest predicted speedup, τ / (γc + v(γ+1)), and that speedup; None without costs."""
    cost = None if costs is None else metrics.draft_cost(costs)
    if costs is None or cost is None:
        return 4, None
    speedups = {
        lookahead: length / (lookahead * cost + verify)
        for lookahead, length in judgement.accepted_length.items()
        if (verify := metrics.verify_cost(costs, lookahead + 1)) is not None
    }
    return max(speedups.items(), key=lambda item: item[1], default=(4, None))


def raced(pair: ModelPair, request: Request, lookahead: int) -> str:
    """A sentence about races at a constant lookahead, under the repetition penalty."""
    random = Random(f"{request.seed} races")
    prompts = [filled(random, []) for _ in range(RACES)] if pair.target.chat_template else OPENINGS
    settings = GenerationSettings(
        num_assistant_tokens=lookahead, max_new_tokens=TOKENS, repetition_penalty=request.penalty
    )
    with closing(load_engine("genai", pair)) as engine:
        found = [one for prompt in prompts for one in race(engine, prompt, settings) if isinstance(one, Comparison)]
    speedups = [value for one in found if (value := metrics.speedup(one)) is not None]
    if not speedups:
        return ""
    identical = sum(map(metrics.identical, found))
    return (
        f"Raced on {len(speedups)} prompts, {TOKENS} tokens at most, at lookahead {lookahead}: "
        f"median speedup {median(speedups):.2f} ({min(speedups):.2f} to {max(speedups):.2f}), "
        f"output identical in {identical} of {len(found)}, on {found[0].environment.device}."
    )
