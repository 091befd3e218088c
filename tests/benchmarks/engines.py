"""The traced engine's speed against GenAI's: seconds of a plain step and of a speculative round, as ratios.

    python -m tests.benchmarks.engines [--target DIR --draft DIR] [--repeats 15] [--tokens 128]

Both engines hold the same pair; their runs alternate in random order within one run of this script. Each run gives
a median over its steps, each repeat a ratio of two such medians; printed are the median ratio and the quartiles.
"""

import argparse
from pathlib import Path
from random import sample
from statistics import median, quantiles

from specdemo.engines import load_engine
from specdemo.measure.race import run_alone
from specdemo.models.pairs import bundled_pair, bundled_prompts
from specdemo.records import Request
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import LOCAL
from tests.support.folders import pair_from_folders


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--lookahead", type=int, default=4)
    arguments = parser.parse_args()
    pair = bundled_pair()
    if arguments.target:
        pair = pair_from_folders(arguments.target, arguments.draft, RuntimeSettings(precision="f32"))
    engines = {name: load_engine(name, pair) for name in LOCAL}
    ratios: dict[str, list[float]] = {"plain step": [], "speculative round": []}
    prompts = bundled_prompts("base")
    for repeat in range(-1, arguments.repeats):  # one more, to warm up
        seconds: dict[tuple[str, str], float] = {}
        for name in sample(sorted(engines), len(engines)):
            settings = GenerationSettings(
                engine=name,
                ignore_eos=True,
                max_new_tokens=arguments.tokens,
                num_assistant_tokens=arguments.lookahead,
            )
            request = Request.of(prompts[repeat % len(prompts)], settings)
            for what, wanted in (("plain step", request.plain), ("speculative round", request)):
                run = run_alone(engines[name].decoder(wanted))
                seconds[name, what] = median(step.seconds for step in run.rounds)
        for what, values in ratios.items():
            if repeat >= 0:
                values.append(seconds["traced", what] / seconds["genai", what])
    for what, values in ratios.items():
        low, middle, high = quantiles(values, n=4)
        outcome = "met" if middle <= 1.10 else "missed"
        print(f"{what}: traced / genai {middle:.3f}   quartiles {low:.3f} … {high:.3f}   at most 1.10: {outcome}")
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
