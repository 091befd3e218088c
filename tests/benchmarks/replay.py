"""Strategies compared on recorded text at given step costs, without timing, for machines that are busy or far away.

    python -m tests.benchmarks.replay ANSWERS.jsonl [--draft FOLDER] [--costs avx2 avx512 FILE …] [--limit 40]

A line of the file is an object with `prompt` and `answer`, lists of the target's token ids; the answer is what the
target wrote greedily. The draft runs for real and proposes as in a run, the recorded answer is what the target would
have committed, and every round costs what the step costs say. So figures are the same on any machine, except for the
last column: what drafting takes in a round beyond the draft's own passes (looking up, choosing, learning).

Use text that neither a draft nor a rule was tuned on. The costs named here are those of SmolLM2-135M-Instruct as int8
on two cores, one machine with AVX2 only and one with AVX-512, with the bundled draft; a file is a `Costs` record in
JSON, as a comparison's `costs`.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from specdemo.decoding.auto import AutoPolicy
from specdemo.decoding.indexes import index_of
from specdemo.decoding.lookahead import LookaheadPolicy, policy_for
from specdemo.engines.language_model import LanguageModel, ModelSequence
from specdemo.engines.traced.drafters import ModelDrafter, Proposer, SourcesDrafter, TextDrafter
from specdemo.files import ASSETS
from specdemo.models.devices import properties
from specdemo.records import Costs
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.strategies import ENGINES, STRATEGIES, Strategy

DRAFT, VOCABULARY = ASSETS / "smollm2-draft", 49152
COSTS = {
    "avx2": Costs(
        plain_step=0.0122,
        draft_step=0.0010,
        verify=tuple(
            ms / 1e3 for ms in (12.2, 14.3, 16.2, 19.5, 27.2, 31, 35, 40, 43, 46, 49, 52, 55, 58, 61, 64, 67)
        ),
    ),
    "avx512": Costs(
        plain_step=0.0100,
        draft_step=0.0008,
        verify=tuple(v / 100 for v in (1, 1.1, 1.1, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, *np.arange(1.5, 2.2, 0.1))),
    ),
}


@dataclass
class Result:
    """What a strategy did over all texts, and over each."""

    tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    plain: float = 0.0
    seconds: float = 0.0
    gains: list[float] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)


class Timed:
    """A sequence that adds up the seconds of its passes."""

    def __init__(self, sequence: ModelSequence) -> None:
        self.sequence, self.seconds = sequence, 0.0

    def logits(self, ids: Sequence[int], last: int = 1) -> np.ndarray:
        began = perf_counter()
        found = self.sequence.logits(ids, last)
        self.seconds += perf_counter() - began
        return found

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        return self.sequence.read(ids)

    def shared(self, ids: Sequence[int]) -> int:
        return self.sequence.shared(ids)


def strategies() -> dict[str, Strategy]:
    """Every strategy of the traced engine, constant lookaheads several times."""
    found = {}
    for name, strategy in STRATEGIES.items():
        if name in ENGINES["traced"].strategies:
            chosen = {"engine": "traced", "drafter": strategy.drafter.name, "policy": strategy.policy.name}
            for lookahead in (1, 2, 3, 4) if "num_assistant_tokens" in strategy.parameters() else (4,):
                label = f"{name} {lookahead}" if "num_assistant_tokens" in strategy.parameters() else name
                found[label] = GenerationSettings.checked(**chosen, num_assistant_tokens=lookahead).strategy
    return found


def replay(
    drafter: Proposer, draft: Timed, prompt: list[int], answer: list[int], costs: Costs, result: Result
) -> None:
    """One answer, as the target's side of a run would have committed it."""
    passes, text = np.minimum.accumulate(np.array(costs.verify)[::-1])[::-1], [*prompt]
    drafter.read(text)
    drafter.learn(0, 0)
    text.append(answer[0])
    done, seconds = 1, 0.0
    while done < len(answer):
        began, drafted = perf_counter(), draft.seconds
        proposals = drafter.propose(text, len(answer) - done - 1) if done + 1 < len(answer) else []
        ids = [proposal.id for proposal in proposals]
        accepted = next((n for n, id_ in enumerate(ids) if id_ != answer[done + n]), len(ids))
        drafter.learn(len(ids), accepted)
        result.overheads.append(perf_counter() - began - (draft.seconds - drafted))
        by_model = bool(proposals) and proposals[0].source in (None, "model") and draft.seconds > drafted
        seconds += passes[min(len(ids), len(passes) - 1)]
        seconds += costs.drafting(len(ids)) or 0.0 if by_model else 0.0
        text += answer[done : done + accepted + 1]
        done += accepted + 1
        result.rounds, result.proposed = result.rounds + 1, result.proposed + len(ids)
        result.accepted += accepted
    plain = (len(answer) - 1) * costs.plain_step
    result.tokens, result.plain = result.tokens + len(answer) - 1, result.plain + plain
    result.seconds += seconds
    result.gains.append(plain / seconds)


def drafter_of(strategy: Strategy, draft: ModelSequence, penalty: float, policy: LookaheadPolicy | None) -> Proposer:
    """The drafter that the traced engine makes for a request."""
    if not strategy.drafter.model:
        return TextDrafter(index_of(strategy), VOCABULARY)
    assert policy is not None
    sampling = GenerationSettings(repetition_penalty=penalty).sampling
    drafter = ModelDrafter(draft, VOCABULARY, None, policy, sampling, np.random.default_rng(0))
    if isinstance(policy, AutoPolicy) and len(strategy.drafter.sources) > 1:
        return SourcesDrafter(drafter, policy, index_of(strategy), VOCABULARY)
    return drafter


def report(name: str, costs: Costs, answers: Sequence[dict[str, list[int]]], options: argparse.Namespace) -> None:
    """A table over all strategies."""
    folder, only = options.draft, set(options.only)
    model = LanguageModel(folder, "CPU", properties(RuntimeSettings(model_cache=False), "CPU"))
    tokens = sum(len(one["answer"]) for one in answers)
    print(f"\n{name}: {len(answers)} answers, {tokens} tokens\n")
    print("| strategy | speedup | worst answer | median | τ | proposed a round | accepted | rule, µs a round |")
    print("|---|---|---|---|---|---|---|---|")
    for label, strategy in strategies().items():
        if only and label.split()[0] not in only:
            continue
        result, estimates = Result(), None
        for one in answers:
            policy = policy_for(strategy, costs, estimates) if strategy.drafter.model else None
            draft = Timed(model.sequence(len(one["prompt"]) + len(one["answer"]) + 64))
            drafter = drafter_of(strategy, draft, options.penalty, policy)
            replay(drafter, draft, one["prompt"], one["answer"], costs, result)
            if isinstance(policy, AutoPolicy):
                estimates = policy.estimates
        print(
            f"| {label} | {result.plain / result.seconds:.3f} | {min(result.gains):.2f} | {median(result.gains):.3f} "
            f"| {result.tokens / result.rounds:.2f} | {result.proposed / result.rounds:.2f} "
            f"| {result.accepted / max(result.proposed, 1):.0%} | {median(result.overheads) * 1e6:.0f} |",
            flush=True,
        )


def main() -> None:
    """Print a table for each machine's costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--draft", type=Path, default=DRAFT)
    parser.add_argument("--costs", nargs="+", default=list(COSTS))
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--only", nargs="+", default=[], help="first words of strategies' names")
    parser.add_argument("--penalty", type=float, default=1.0, help="repetition penalty of the answers")
    options = parser.parse_args()
    answers = [json.loads(line) for line in options.answers.read_text().splitlines()][: options.limit]
    for name in options.costs:
        costs = COSTS[name] if name in COSTS else Costs.model_validate_json(Path(name).read_bytes())
        report(name, costs, answers, options)


if __name__ == "__main__":
    main()
