"""What the bundled pair reaches: median speedup of each bundled prompt and lookahead.

    python -m tests.benchmarks.speedup [--repeats 5] [--tokens 128] [--precision f32]

Every figure is a ratio within one race; repeats of all combinations are interleaved, so that drift cancels.
"""

import argparse
from statistics import median

from specdemo import metrics
from specdemo.compare import race
from specdemo.engines.genai import GenAIEngine
from specdemo.models.pairs import bundled_pair, bundled_prompts
from specdemo.records import Comparison
from specdemo.settings import GenerationSettings

LOOKAHEADS = (2, 3, 4, 5, 6, 8)


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--precision", default="f32")
    arguments = parser.parse_args()
    engine = GenAIEngine(bundled_pair(precision=arguments.precision))
    speedups: dict[tuple[str, int], list[float]] = {}
    lengths: dict[tuple[str, int], float | None] = {}
    identical = True
    for _ in range(arguments.repeats):
        for prompt in bundled_prompts():
            for lookahead in LOOKAHEADS:
                settings = GenerationSettings(
                    num_assistant_tokens=lookahead, max_new_tokens=arguments.tokens, ignore_eos=True
                )
                *_, comparison = race(engine, prompt, settings)
                assert isinstance(comparison, Comparison)
                speedup = metrics.speedup(comparison)
                assert speedup is not None
                speedups.setdefault((prompt, lookahead), []).append(speedup)
                lengths[prompt, lookahead] = metrics.mean_accepted_length(comparison.speculative)
                identical &= metrics.identical(comparison)
    print("| prompt | " + " | ".join(f"γ = {lookahead}" for lookahead in LOOKAHEADS) + " |")
    print("|---|" + "---|" * len(LOOKAHEADS))
    for prompt in bundled_prompts():
        cells = (f"{median(speedups[prompt, n]):.2f} (τ {lengths[prompt, n]:.2f})" for n in LOOKAHEADS)
        print(f"| {prompt} | " + " | ".join(cells) + " |")
    overall = (median(median(speedups[prompt, n]) for prompt in bundled_prompts()) for n in LOOKAHEADS)
    print("| **median** | " + " | ".join(f"**{speedup:.2f}**" for speedup in overall) + " |")
    print(f"\noutputs {'identical in every race' if identical else 'not always identical'}")
    engine.close()


if __name__ == "__main__":
    main()
