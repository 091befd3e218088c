"""The automatic lookahead against plain decoding, every constant lookahead, the other policies and the oracle.

    python -m tests.benchmarks.auto [--pairs bundled costlier …] [--ways auto plain …] [--repeats 7] [--tokens 128]

For each pair (see `tests.benchmarks.pairs`) and each bundled prompt, all decoding strategies run in random order,
over and over, in one process on the traced engine. Every run's seconds are of its own clock. Figures are ratios of
seconds: the other way's over auto's, so above 1 auto is faster. "overall" is of sums over prompts, of medians over
the repeats; quartiles are of single pairs of runs. The best constant lookahead is chosen by this very data, which
favours it. The oracle is run: it proposes in every round just what it knows that the target will accept.

"by step medians" is the overall ratio again, put together from the medians of the steps in these same runs: of a
pass over n tokens, after one of the same length or of another, of drafting n, with and without probabilities, and of
the rest of a round by decoding strategy. On a machine that is busy with other things it is the steadier figure. "by
given costs" is the same from the step costs that the automatic lookahead reckoned with, measured at the beginning:
predicted, it tells how good its choices were if those are right.
"""

import argparse
import gc
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from specdemo import metrics
from specdemo.costs import measure_costs
from specdemo.decoding.steps import QueryLength, rising
from specdemo.engines.traced import TracedEngine
from specdemo.metrics import passes
from specdemo.models.pairs import bundled_prompts
from specdemo.race import run_alone
from specdemo.records import Costs, ModelPair, Request, Run
from specdemo.settings import GenerationSettings
from specdemo.strategies import Planned
from tests.benchmarks.pairs import make_pairs

WAYS = ("plain", "constant", "heuristic", "confidence", "auto", "oracle")
LOOKAHEADS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
CONFIDENT = ("auto", "confidence")  # ask for the draft's probability while the clock runs
GOALS = {"best constant": 0.98, "heuristic": 1.0, "confidence": 1.0, "oracle": 0.85, "plain": 0.97}
Runs = dict[tuple[str, str], list[Run]]


def decoders(engine: TracedEngine, tokens: int, costs: Costs) -> Callable[[str], dict[str, Request]]:
    """The requests that decode a prompt in every way, for the prompts one after the other."""
    c, cliffs = metrics.draft_cost(costs), [round(metrics.verify_cost(costs, n) or 0, 2) for n in range(1, 18)]
    print(f"plain step {costs.plain_step * 1e3:.2f} ms, c {c:.2f}, v(1 … 17) {cliffs}", flush=True)

    def strategies(prompt: str) -> dict[str, Request]:
        base: dict[str, Any] = {"engine": "traced", "ignore_eos": True, "max_new_tokens": tokens}
        settings: dict[str, dict[str, Any]] = {f"constant {n}": {"num_assistant_tokens": n} for n in LOOKAHEADS}
        settings |= {policy: {"policy": policy} for policy in ("heuristic", "confidence", "auto")}
        chosen = {name: GenerationSettings(**base, **values) for name, values in settings.items()}
        result = {name: Request.of(prompt, values) for name, values in chosen.items()}
        teacher = engine.decoder(result["constant 1"])
        run_alone(teacher)
        agreement = teacher.draft_agreement()
        assert agreement is not None
        plan = passes(agreement, None, tokens - 1).lookaheads
        result["oracle"] = replace(result["constant 1"], strategy=Planned(plan))
        result["plain"] = result["constant 1"].plain
        return result

    return strategies


def measure(pair: ModelPair, repeats: int, tokens: int, wanted: set[str]) -> tuple[Runs, bool, Costs]:
    """Runs of the ways wanted on every prompt, whether all outputs were identical, and the step costs before."""
    engine, random, runs, identical = TracedEngine(pair), Random(0), Runs(), True
    costs = measure_costs(engine)
    assert costs is not None
    strategies = decoders(engine, tokens, costs)
    prompts = {prompt: strategies(prompt) for prompt in bundled_prompts("base")}
    for repeat in range(-1, repeats):  # one more, to warm up
        for prompt, decoded in prompts.items():
            texts, chosen = set(), [name for name in sorted(decoded) if name.split()[0] in wanted]
            for name in random.sample(chosen, len(chosen)):
                run = run_alone(engine.decoder(decoded[name], costs))
                texts.add(run.token_ids)
                if repeat >= 0:
                    runs.setdefault((name, prompt), []).append(run)
            identical &= len(texts) == 1
            gc.freeze()  # the runs that are kept need not be looked through while clocks run
    engine.close()
    return runs, identical, costs


def rounds(runs: Runs, name: str, costs: Costs) -> list[tuple[int, int, bool]]:

    found = []
    for each in (each for (strategy, _), each in runs.items() if strategy == name):
        width = QueryLength(None if name == "plain" else costs)  # as the decoder has it
        before = width.of(1)
        for proposed in (len(step.proposed or ()) for step in each[0].rounds):
            fed = width.of(proposed + 1)
            found.append((proposed, fed, fed != before))
            before = fed
    return found


def by_step_medians(runs: Runs, costs: Costs) -> dict[str, float]:
    """Seconds of every way on all prompts, each step taken at its median."""
    passes_, rests = defaultdict[tuple[int, bool], list[float]](list), defaultdict[str, list[float]](list)
    drafts = defaultdict[tuple[bool, int], list[float]](list)
    taken = {name: rounds(runs, name, costs) for name in {name for name, _ in runs}}
    for name, each in taken.items():
        repeats = zip(*(done for (strategy, _), done in runs.items() if strategy == name), strict=True)
        for repeat in repeats:
            steps = (step for run in repeat for step in run.rounds)
            for (proposed, fed, changed), step in zip(each, steps, strict=True):
                draft, verify = step.draft_seconds or 0, step.verify_seconds or 0
                passes_[fed, changed].append(verify)
                drafts[name in CONFIDENT, proposed].append(draft)
                rests[name].append(step.seconds - draft - verify)
    total = {}
    for name, each in taken.items():
        steps_ = (median(drafts[name in CONFIDENT, n]) + median(passes_[fed, changed]) for n, fed, changed in each)
        total[name] = sum(steps_) + median(rests[name]) * len(each)
    return total


def by_given_costs(runs: Runs, costs: Costs) -> dict[str, float]:
    """Seconds of every way on all prompts, each step taken at what it cost when the automatic lookahead was told."""
    change = costs.length_change or 0
    verify = rising(np.array(costs.verify)).tolist()
    slope = (verify[-1] - verify[0]) / (len(verify) - 1)
    verify += [verify[-1] + slope * n for n in range(1, 64)]  # the heuristic proposes more than were measured
    return {
        name: sum(
            verify[fed - 1] + change * changed + (costs.drafting(n) or 0)
            for n, fed, changed in rounds(runs, name, costs)
        )
        for name in {name for name, _ in runs}
    }


def report(pair: str, runs: Runs, identical: bool, costs: Costs) -> dict[str, object]:
    """Print what was found, and return it."""
    names = list(dict.fromkeys(name for name, _ in runs))
    prompts = list(dict.fromkeys(prompt for _, prompt in runs))
    each = {key: [metrics.time_per_token(run) or 0 for run in done] for key, done in runs.items()}
    total = {name: sum(median(each[name, prompt]) for prompt in prompts) for name in names}
    steady, given = by_step_medians(runs, costs), by_given_costs(runs, costs)
    constants = [name for name in names if name.startswith("constant")]
    best = min(constants, key=total.__getitem__, default=None)
    found: dict[str, object] = {"pair": pair, "identical": identical, "constant": best}
    print(f"{pair}: outputs {'identical' if identical else 'differ'}; speedup over plain: ", end="")
    print(", ".join(f"{name} {total['plain'] / total[name]:.2f}" for name in sorted(names, key=total.__getitem__)))
    for how, seconds in (("by step medians", steady), ("by given costs", given)):
        order = sorted(names, key=seconds.__getitem__)
        print(f"{how}: " + ", ".join(f"{name} {seconds['plain'] / seconds[name]:.2f}" for name in order))
    print("| auto against | overall | quartiles | worst prompt | by step medians | by given costs | goal |")
    print("|---|---|---|---|---|---|---|")
    for name, goal in GOALS.items():
        other = best if name == "best constant" else name
        if other not in names:
            continue
        ratios = [
            [theirs / ours for theirs, ours in zip(each[other, prompt], each["auto", prompt], strict=True)]
            for prompt in prompts
        ]
        low, _, high = quantiles([ratio for some in ratios for ratio in some], n=4)
        overall = total[other] / total["auto"]
        medians, reckoned = (
            min(seconds[strategy] for strategy in (constants if name == "best constant" else [name]))
            / seconds["auto"]
            for seconds in (steady, given)
        )
        worst = min(median(each[other, prompt]) / median(each["auto", prompt]) for prompt in prompts)
        reached = worst if name == "plain" else overall
        met = reached > goal if goal == 1 else reached >= goal
        words = f"{'above' if goal == 1 else 'at least'} {goal:.2f}: {'met' if met else 'missed'}"
        shown = f"{name} ({best})" if name == "best constant" else name
        figures = f"{overall:.3f} | {low:.3f} … {high:.3f} | {worst:.3f} | {medians:.3f} | {reckoned:.3f}"
        print(f"| {shown} | {figures} | {words} |")
        found[name] = {
            "overall": overall,
            "worst": worst,
            "by step medians": medians,
            "by given costs": reckoned,
            "goal": goal,
            "met": met,
        }
    print(flush=True)
    return found


def main() -> None:
    """Measure and print a table for each pair, and at the end one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", default=["bundled", "costlier", "contrary", "costlier contrary"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="auto and plain are always measured")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        pairs, repeats, tokens = make_pairs(Path(folder)), arguments.repeats, arguments.tokens
        strategies = {*arguments.strategies, "auto", "plain"}
        found = [report(name, *measure(pairs[name], repeats, tokens, strategies)) for name in arguments.pairs]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
