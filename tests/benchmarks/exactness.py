"""What exact arithmetic costs on the default pair, and what it gives.

By precision: seconds of target passes, in turns; on how many prompts GenAI writes the same with a draft as without.

python -m tests.benchmarks.exactness [--turns 20]
"""

import argparse
from itertools import islice

import numpy as np

from specdemo.engines.genai import GenAIEngine
from specdemo.engines.traced import TracedEngine
from specdemo.measure.conditions import WARM_UP_PROMPT
from specdemo.measure.race import run_alone
from specdemo.models.converted import convert_pair
from specdemo.models.pairs import bundled_prompts, default_pair, initial_settings
from specdemo.records import ModelPair, Request

RUNTIMES = {
    "default": {"precision": "default", "kv_cache_precision": "default", "dynamic_quantization": "default"},
    "f32": {"precision": "f32", "kv_cache_precision": "f32", "dynamic_quantization": "default"},
    "f32, dynamic quantization off": {
        "precision": "f32",
        "kv_cache_precision": "f32",
        "dynamic_quantization": "off",
    },
}
TOKENS = (1, 4)
PASSES = 10  # of a turn; the first two do not count, since another model has just used the caches


def main() -> None:
    """Print medians and quartiles of the ratio to the default precision within each turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20)
    turns = parser.parse_args().turns
    pair = default_pair()
    for _ in convert_pair(pair):
        pass
    engines = {
        name: TracedEngine(
            pair.model_copy(update={"draft": None, "runtime": pair.runtime.model_copy(update=runtime)})
        )
        for name, runtime in RUNTIMES.items()
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(turns):
        for name, engine in engines.items():
            for tokens in TOKENS:
                passes = list(islice(engine.pass_seconds(WARM_UP_PROMPT, tokens), 2, PASSES))
                seconds.setdefault((name, tokens), []).append(float(np.median(passes)))
    for engine in engines.values():
        engine.close()
    print(f"{pair.target.name}, seconds of a pass divided by those of the default precision in the same turn\n")
    print(
        "| precision | " + " | ".join(f"{tokens} token{'s' * (tokens > 1)}" for tokens in TOKENS) + " | identical |"
    )
    print("|---" * (len(TOKENS) + 2) + "|")
    for name in RUNTIMES:
        cells = []
        for tokens in TOKENS:
            ratios = np.array(seconds[name, tokens]) / np.array(seconds["default", tokens])
            low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
            milliseconds = np.median(seconds[name, tokens]) * 1000
            cells.append(f"{middle:.2f} ({low:.2f}–{high:.2f}), {milliseconds:.1f} ms")
        print(f"| {name} | {' | '.join(cells)} | {identical(pair, RUNTIMES[name])} |", flush=True)


def identical(pair: ModelPair, runtime: dict[str, str]) -> str:
    """On how many of the bundled prompts plain and speculative outputs of GenAI are the same."""
    settings = initial_settings(pair, num_assistant_tokens=3, max_new_tokens=96)
    prompts = bundled_prompts(pair.target.prompts)
    engine = GenAIEngine(pair.model_copy(update={"runtime": pair.runtime.model_copy(update=runtime)}))
    same = 0
    for prompt in prompts:
        request = Request.of(prompt, settings)
        plain, speculative = (run_alone(engine.decoder(each)) for each in (request.plain, request))
        same += plain.token_ids == speculative.token_ids
    engine.close()
    return f"{same} of {len(prompts)}"


if __name__ == "__main__":
    main()
