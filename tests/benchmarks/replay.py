"""Strategies compared on recorded text at given step costs, without timing, for machines that are busy or far away.

    python -m tests.benchmarks.replay ANSWERS.jsonl [--draft FOLDER] [--costs avx2 avx512 FILE …] [--only auto]

Each line of the file has `prompt` and `answer`, lists of token ids that the target wrote greedily. Use text on which
neither a draft nor a rule was tuned. The draft really runs, but rounds take the time that step costs give, so figures
are the same on any machine. The named costs are those of SmolLM2-135M-Instruct in int8 on two cores with the bundled
draft. A file is a `Costs` record in JSON, such as a comparison's `costs`.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from specdemo.capabilities import ENGINES
from specdemo.decoding.indexes import index_of
from specdemo.decoding.lookahead import Estimates, policy_for
from specdemo.decoding.round import Drafter
from specdemo.engines.language_model import LanguageModel
from specdemo.engines.traced.drafters import ModelDrafter, TextDrafter
from specdemo.files import ASSETS
from specdemo.models.devices import properties
from specdemo.records import Costs
from specdemo.settings import GenerationSettings, RuntimeSettings, Sampling
from specdemo.strategies import STRATEGIES, Strategy
from tests.support.step_costs import costs_of

DRAFT, VOCABULARY = ASSETS / "smollm2-draft", 49152
V_AVX2 = (12.2, 14.3, 16.2, 19.5, 27.2, 31, 35, 40, 43, 46, 49, 52, 55, 58, 61, 64, 67)  # milliseconds
V_AVX512 = (10, 11, 11, 11, 11.5, 12, 12.5, 13, 13.5, 14, *range(15, 22))
COSTS = {
    "avx2": costs_of([ms / 1e3 for ms in V_AVX2], 0.0010),
    "avx512": costs_of([ms / 1e3 for ms in V_AVX512], 0.0008),
}


def strategies() -> dict[str, Strategy]:
    found = {}
    for name in ENGINES["traced"].strategies:
        strategy = STRATEGIES[name]
        chosen = {"engine": "traced", "drafter": strategy.drafter.name, "policy": strategy.policy.name}
        constant = "num_assistant_tokens" in strategy.parameters()
        for lookahead in (1, 2, 3, 4) if constant else (4,):
            settings = GenerationSettings.checked(**chosen, num_assistant_tokens=lookahead)
            found[f"{name} {lookahead}" if constant else name] = settings.strategy
    return found


def replay(drafter: Drafter, prompt: list[int], answer: list[int], costs: Costs) -> list[tuple[int, int, float]]:
    """Return the proposed and accepted tokens and the seconds of each round that commits the answer."""
    text = [*prompt]
    drafter.read(text)
    drafter.learn(0, 0)
    text.append(answer[0])
    done, rounds = 1, []
    while done < len(answer):
        proposals = drafter.propose(text, len(answer) - done - 1) if done + 1 < len(answer) else []
        ids = [proposal.id for proposal in proposals]
        accepted = next((n for n, id_ in enumerate(ids) if id_ != answer[done + n]), len(ids))
        drafter.learn(len(ids), accepted)
        cost = costs.round_cost(min(len(ids), len(costs.verify) - 1), free=not isinstance(drafter, ModelDrafter))
        rounds.append((len(ids), accepted, (cost or 0.0) * costs.plain_step))
        text += answer[done : done + accepted + 1]
        done += accepted + 1
    return rounds


def report(costs: Costs, answers: list[dict[str, list[int]]], options: argparse.Namespace) -> None:
    model = LanguageModel(options.draft, "CPU", properties(RuntimeSettings(model_cache=False), "CPU"))
    print("| strategy | speedup | worst answer | τ | proposed a round | accepted |\n|---|---|---|---|---|---|")
    for label, strategy in strategies().items():
        if options.only and label.split()[0] not in options.only:
            continue
        rounds, gains, estimates = list[tuple[int, int, float]](), list[float](), Estimates()
        for one in answers:
            if not strategy.drafter.model:
                drafter: Drafter = TextDrafter(index_of(strategy), VOCABULARY)
            else:
                sequence = model.sequence(len(one["prompt"]) + len(one["answer"]) + 64)
                policy = policy_for(strategy, costs, estimates)
                drafter = ModelDrafter(sequence, VOCABULARY, None, policy, Sampling(), np.random.default_rng(0))
            done = replay(drafter, one["prompt"], one["answer"], costs)
            gains.append((len(one["answer"]) - 1) * costs.plain_step / sum(seconds for *_, seconds in done))
            rounds += done
        proposed, accepted, seconds = (sum(each) for each in zip(*rounds, strict=True))
        tokens = accepted + len(rounds)
        print(
            f"| {label} | {tokens * costs.plain_step / seconds:.3f} | {min(gains):.2f} | {tokens / len(rounds):.2f} "
            f"| {proposed / len(rounds):.2f} | {accepted / max(proposed, 1):.0%} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--draft", type=Path, default=DRAFT)
    parser.add_argument("--costs", nargs="+", default=list(COSTS))
    parser.add_argument("--only", nargs="+", default=[], help="first words of strategies' names")
    options = parser.parse_args()
    answers = [json.loads(line) for line in options.answers.read_text().splitlines()]
    for name in options.costs:
        print(f"\n{name}: {len(answers)} answers\n")
        report(COSTS[name] if name in COSTS else Costs.model_validate_json(Path(name).read_bytes()), answers, options)


if __name__ == "__main__":
    main()
