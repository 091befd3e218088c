"""Races of a target with several drafts, engines and lookaheads, and llama.cpp beside them, in turns.

    python -m tests.benchmarks.speedup [--target NAME] [--drafts NAME … lookup] [--engines traced genai]
        [--lookaheads 1 2 3] [--prompts FILE.jsonl] [--limit 12] [--tokens 128]

Every prompt is raced once with every combination, in random order, so that drift favours none. Prints speedups (plain
seconds / speculative seconds per token, prefill excluded) and milliseconds per token of both sides. If the target is
a GGUF file, llama.cpp's server also decodes these prompts plainly, by its own clock.
"""

import argparse
import os
from contextlib import ExitStack, closing
from itertools import product
from pathlib import Path
from random import Random
from statistics import geometric_mean, median, quantiles
from typing import Any

import httpx

from specdemo.engines import load_engine
from specdemo.experiments.prompts import chosen_tasks, read_prompts
from specdemo.models.catalogue import default_pair, default_runtime, pair_of, pair_settings
from specdemo.models.converted import convert_pair
from specdemo.models.library import resolve
from specdemo.racing.race import race
from specdemo.records import Comparison
from specdemo.results import metrics
from tests.support.llama import started

_SHORT = 600  # characters: answers of 128 tokens then take most of a race


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="default: the default pair's")
    parser.add_argument("--drafts", nargs="+", default=["smollm2-draft", "smollm2-head"])
    parser.add_argument("--engines", nargs="+", default=["traced", "genai"])
    parser.add_argument("--lookaheads", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--limit", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    random = Random(0)
    target = resolve(options.target) if options.target else default_pair().target
    runtime = default_runtime(target)
    drafts = {name: None if name == "lookup" else resolve(name) for name in options.drafts}
    pairs = {name: pair_of(target, draft, runtime=runtime) for name, draft in drafts.items()}
    for pair in pairs.values():
        for _ in convert_pair(pair):
            pass
    file = None if options.prompts is None else read_prompts(options.prompts)
    every = [task.prompt for task in chosen_tasks(file, target.prompts, None) if len(task.prompt) < _SHORT]
    prompts = random.sample(every, min(options.limit, len(every)))
    with ExitStack() as stack:
        engines = {
            (engine, name): stack.enter_context(closing(load_engine(engine, pairs[name])))
            for engine, name in product(options.engines, pairs)
        }
        plans = [*product(options.engines, options.drafts, options.lookaheads)]
        turns: list[tuple[str, str, int] | None] = [*plans]
        if target.path is not None and target.path.suffix == ".gguf":
            threads = runtime.inference_num_threads or os.cpu_count() or 1
            url = stack.enter_context(started(target.path, threads=threads))
            client = stack.enter_context(httpx.Client(base_url=url, timeout=120))
            seconds_of(client, prompts[0], options.tokens)  # warms it up
            turns.append(None)
        raced: dict[tuple[str, str, int], list[Comparison]] = {plan: [] for plan in plans}
        theirs: dict[str, float] = {}  # seconds per token, by prompt
        for prompt in prompts:
            for plan in random.sample(turns, len(turns)):
                if plan is None:
                    theirs[prompt] = seconds_of(client, prompt, options.tokens)
                    continue
                engine, name, lookahead = plan
                chosen: dict[str, Any] = {
                    "engine": engine,
                    "max_new_tokens": options.tokens,
                    "num_assistant_tokens": lookahead,
                }
                chosen |= {"drafter": "lookup" if drafts[name] is None else "model", "policy": "constant"}
                *_, comparison = race(engines[engine, name], prompt, pair_settings(pairs[name], **chosen))
                assert isinstance(comparison, Comparison)
                raced[plan].append(comparison)
    print("\n| | mean (quartiles) | lowest | highest | τ | ms a token, plain | to llama.cpp | speculative | same |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (engine, name, lookahead), some in raced.items():
        print(f"| {engine}, {name}, lookahead {lookahead} | {row(some, theirs)} |")
    if theirs:
        print(f"| llama.cpp | | | | | {median(theirs.values()) * 1e3:.1f} | 1.00 | | |")


def seconds_of(client: httpx.Client, prompt: str, tokens: int) -> float:
    """Return the seconds per token of plain decoding by llama.cpp's own clock, prefill excluded."""
    body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    answer = client.post("/completion", json=body)
    answer.raise_for_status()
    return float(answer.json()["timings"]["predicted_per_token_ms"]) / 1000


def row(some: list[Comparison], theirs: dict[str, float]) -> str:
    plain, speculative = (
        [metrics.decode_seconds(run) / (len(run.token_ids) - 1) for run in runs]
        for runs in (([one.plain for one in some]), ([one.speculative for one in some]))
    )
    gains = [one / other for one, other in zip(plain, speculative, strict=True)]
    low, _, high = quantiles(gains, n=4)
    lengths = [length for one in some if (length := metrics.mean_acceptance_length(one.speculative)) is not None]
    identical = sum(metrics.identical(one) or False for one in some)
    ratios = [seconds / theirs[one.prompt] for one, seconds in zip(some, plain, strict=True) if theirs]
    return (
        f"{geometric_mean(gains):.2f} ({low:.2f}–{high:.2f}) | {min(gains):.2f} | {max(gains):.2f} "
        f"| {geometric_mean(lengths):.2f} | {median(plain) * 1e3:.1f} | {f'{median(ratios):.2f}' if ratios else '–'} "
        f"| {median(speculative) * 1e3:.1f} | {identical} of {len(some)}"
    )


if __name__ == "__main__":
    main()
