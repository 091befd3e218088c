"""What the bundled target reaches with its draft, or with others: median speedup of each prompt and lookahead.

    python -m tests.benchmarks.speedup [--drafts FOLDER …] [--repeats 5] [--tokens 128] [--precision f32]

Every figure is a ratio within one race; repeats of all combinations are interleaved, so that drift cancels.
"""

import argparse
from pathlib import Path
from statistics import median

from specdemo import metrics
from specdemo.engines.genai import GenAIEngine
from specdemo.models.pairs import BUNDLED, bundled_prompts
from specdemo.race import race
from specdemo.records import Comparison
from specdemo.settings import GenerationSettings, RuntimeSettings
from tests.support.folders import pair_from_folders

LOOKAHEADS = (2, 3, 4, 5, 6, 8, 10, 12)


def main() -> None:
    """Measure and print a Markdown table for each draft."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafts", type=Path, nargs="+", default=[BUNDLED / "draft"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--precision", default="f32")
    arguments = parser.parse_args()
    runtime = RuntimeSettings(precision=arguments.precision, model_cache=False)
    engines = {
        draft: GenAIEngine(pair_from_folders(BUNDLED / "target", draft, runtime)) for draft in arguments.drafts
    }
    speedups: dict[tuple[Path, str, int], list[float]] = {}
    lengths: dict[tuple[Path, str, int], float | None] = {}
    identical = dict.fromkeys(engines, True)
    for _ in range(arguments.repeats):
        for prompt in bundled_prompts("base"):
            for lookahead in LOOKAHEADS:
                settings = GenerationSettings(
                    num_assistant_tokens=lookahead, max_new_tokens=arguments.tokens, ignore_eos=True
                )
                for draft, engine in engines.items():
                    *_, comparison = race(engine, prompt, settings)
                    assert isinstance(comparison, Comparison)
                    speedup = metrics.speedup(comparison)
                    assert speedup is not None
                    speedups.setdefault((draft, prompt, lookahead), []).append(speedup)
                    lengths[draft, prompt, lookahead] = metrics.mean_acceptance_length(comparison.speculative)
                    identical[draft] &= metrics.identical(comparison)
    for draft, engine in engines.items():
        print(f"| {draft} | " + " | ".join(f"γ = {lookahead}" for lookahead in LOOKAHEADS) + " |")
        print("|---|" + "---|" * len(LOOKAHEADS))
        for prompt in bundled_prompts("base"):
            found = ((draft, prompt, n) for n in LOOKAHEADS)
            cells = (f"{median(speedups[key]):.2f} (τ {lengths[key]:.2f})" for key in found)
            print(f"| {prompt} | " + " | ".join(cells) + " |")
        overall = (
            median(median(speedups[draft, prompt, n]) for prompt in bundled_prompts("base")) for n in LOOKAHEADS
        )
        print("| **median** | " + " | ".join(f"**{speedup:.2f}**" for speedup in overall) + " |")
        print(f"\noutputs {'identical in every race' if identical[draft] else 'not always identical'}\n")
        engine.close()


if __name__ == "__main__":
    main()
