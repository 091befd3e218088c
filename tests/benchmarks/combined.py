"""Compares drafting, copying and both at once with plain decoding, in turns within one process.

    python -m tests.benchmarks.combined [--target NAME --draft NAME] [--prompts FILE.jsonl] [--source WORD]
        [--limit 24] [--skip 0] [--tokens 128] [--penalty 1.1] [--repeats 1]

A line of the file has a `prompt`, its `source`, and perhaps the chat before it as `history`; by default the tasks of
`repeating.jsonl`, whose answers repeat much of their prompts. Every prompt runs once with each strategy in random
order, between plain runs. Prints, by source, seconds of plain decoding, drafting and copying / seconds of both at
once for the same tokens (geometric means), and the lowest speedup of a prompt.
"""

import argparse
import json
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from random import Random
from statistics import geometric_mean

from specdemo.engines import load_engine
from specdemo.models.catalogue import default_pair, default_runtime, pair_of, pair_settings
from specdemo.models.converted import convert_pair
from specdemo.models.library import resolve
from specdemo.racing.costs import known_costs
from specdemo.racing.trials import trials, warm_up_variants
from specdemo.records import Turn

REPEATING = Path(__file__).with_name("repeating.jsonl")
_SHORT = 600  # characters: answers of 128 tokens then take most of a run
_STRATEGIES = {"draft": {}, "suffix": {"drafter": "suffix"}, "combined": {"drafter": "combined"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="default: the default pair's")
    parser.add_argument("--draft")
    parser.add_argument("--prompts", type=Path, default=REPEATING)
    parser.add_argument("--source", default="", help="only prompts whose source has this word")
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--skip", type=int, default=0, help="of the shuffled prompts, to measure them in parts")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--penalty", type=float, help="repetition penalty; default: the pair's")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=66)
    options = parser.parse_args()
    random, pair = Random(options.seed), default_pair()
    if options.target:
        target = resolve(options.target)
        pair = pair_of(target, resolve(options.draft), runtime=default_runtime(target))
    for _ in convert_pair(pair):
        pass
    lines = [json.loads(line) for line in options.prompts.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if options.source in line["source"] and len(line["prompt"]) < _SHORT]
    random.shuffle(lines)
    chosen = {"engine": "traced", "max_new_tokens": options.tokens}
    if options.penalty is not None:
        chosen["repetition_penalty"] = options.penalty
    variants = {name: pair_settings(pair, **chosen, **changes) for name, changes in _STRATEGIES.items()}
    speedups: dict[str, list[dict[str, float]]] = defaultdict(list)
    with closing(load_engine("traced", pair)) as engine:
        costs = known_costs(engine)
        warm_up_variants(engine, lines[0]["prompt"], [*variants.values()], costs)
        for line in lines[options.skip : options.skip + options.limit] * options.repeats:
            order = random.sample([*variants], len(variants))
            history = tuple(Turn(prompt=prompt, answer=answer) for prompt, answer in line.get("history", ()))
            done = trials(engine, line["prompt"], [variants[name] for name in order], costs, history=history)
            row = {}
            for name, trial in zip(order, done, strict=True):
                if trial is not None:
                    assert trial.identical, (line["prompt"], name)
                    row[name] = trial.plain_seconds / trial.seconds
            speedups[line["source"]].append(row)
            print(json.dumps({"source": line["source"], "prompt": line["prompt"][:40], **row}), flush=True)
    print("\n| | runs | draft | suffix | combined | lowest | to draft | to suffix |\n|" + 8 * "---|")
    speedups["all"] = [row for rows in speedups.values() for row in rows if len(row) == len(variants)]
    for source, rows in speedups.items():
        means = {name: geometric_mean(row[name] for row in rows if name in row) for name in variants}
        cells = [*means.values(), min(row["combined"] for row in rows if "combined" in row)]
        cells += [means["combined"] / means["draft"], means["combined"] / means["suffix"]]
        print(f"| {source} | {len(rows)} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")


if __name__ == "__main__":
    main()
