"""Races of a target with several drafts, engines and lookaheads, in turns over the same prompts.

    python -m tests.benchmarks.speedup [--target NAME] [--drafts NAME …] [--engines traced genai] [--lookaheads 1 2 3]
        [--prompts FILE.jsonl] [--source WORD] [--limit 12] [--tokens 128]

Every prompt is raced once with every combination, in a random order, so that drift favours none. Printed are speedups
(plain seconds a token / speculative seconds a token, prefill excluded) and milliseconds a token of both sides, over
the prompts. Prompts: those of the bundled suite, or a file with an object a line (`prompt`, perhaps `source`).
"""

import argparse
import json
from itertools import product
from pathlib import Path
from random import Random
from statistics import geometric_mean, median, quantiles

from specdemo import metrics
from specdemo.costs import measure_costs
from specdemo.engines import load_engine
from specdemo.experiments.suites import bundled_tasks
from specdemo.models.converted import convert_pair
from specdemo.models.library import resolve
from specdemo.models.pairs import default_pair, initial_runtime, pair_of, pair_settings
from specdemo.race import race
from specdemo.records import Comparison

_SHORT = 600  # characters: answers of 128 tokens then take most of a race


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="default: the default pair's")
    parser.add_argument("--drafts", nargs="+", default=["smollm2-draft", "smollm2-head"])
    parser.add_argument("--engines", nargs="+", default=["traced", "genai"])
    parser.add_argument("--lookaheads", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--source", default="", help="only prompts whose source has this word")
    parser.add_argument("--limit", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = Random(options.seed)
    target = resolve(options.target) if options.target else default_pair().target
    pairs = {name: pair_of(target, resolve(name), runtime=initial_runtime(target)) for name in options.drafts}
    for pair in pairs.values():
        for _ in convert_pair(pair):
            pass
    prompts = random.sample(found := prompts_of(options, target.prompts), min(options.limit, len(found)))
    engines = {(engine, name): load_engine(engine, pairs[name]) for engine, name in product(options.engines, pairs)}
    for (engine, name), loaded in engines.items():
        costs = measure_costs(loaded)
        assert costs is not None
        v = [round(seconds / costs.plain_step, 2) for seconds in costs.verify[1:5]]
        c = round((costs.later_draft_step or 0) / costs.plain_step, 3)
        print(f"{engine}, {name}: plain step {costs.plain_step * 1e3:.1f} ms, c {c}, v(2…5) {v}", flush=True)
    plans = list(product(engines, options.lookaheads))
    found_of: dict[tuple[tuple[str, str], int], list[Comparison]] = {plan: [] for plan in plans}
    for prompt in prompts:
        for (engine, name), lookahead in random.sample(plans, len(plans)):
            settings = pair_settings(
                pairs[name], engine=engine, max_new_tokens=options.tokens, num_assistant_tokens=lookahead
            )
            *_, comparison = race(engines[engine, name], prompt, settings)
            assert isinstance(comparison, Comparison)
            found_of[(engine, name), lookahead].append(comparison)
    print("\n| | mean (quartiles) | lowest | highest | τ | ms a token, plain | speculative | identical |")
    print("|---|---|---|---|---|---|---|---|")
    for ((engine, name), lookahead), some in found_of.items():
        print(f"| {engine}, {name}, lookahead {lookahead} | {row(some)} |", flush=True)
    for loaded in engines.values():
        loaded.close()


def prompts_of(options: argparse.Namespace, kind: str) -> list[str]:
    if options.prompts is None:
        return [task.prompt for task in bundled_tasks(kind)]  # type: ignore[arg-type]
    lines = [json.loads(line) for line in options.prompts.read_text(encoding="utf-8").splitlines()]
    return [
        line["prompt"] for line in lines if options.source in line.get("source", "") and len(line["prompt"]) < 600
    ]


def row(some: list[Comparison]) -> str:
    plain, speculative = (
        [metrics.decode_seconds(run) / (len(run.token_ids) - 1) * 1e3 for run in runs]
        for runs in (([one.plain for one in some]), ([one.speculative for one in some]))
    )
    gains = [one / other for one, other in zip(plain, speculative, strict=True)]
    low, _, high = quantiles(gains, n=4)
    lengths = [length for one in some if (length := metrics.mean_acceptance_length(one.speculative)) is not None]
    identical = sum(metrics.identical(one) or False for one in some)
    return (
        f"{geometric_mean(gains):.2f} ({low:.2f}–{high:.2f}) | {min(gains):.2f} | {max(gains):.2f} "
        f"| {geometric_mean(lengths):.2f} | {median(plain):.1f} | {median(speculative):.1f} "
        f"| {identical} of {len(some)}"
    )


if __name__ == "__main__":
    main()
