"""Metrics of a run or a comparison: pure functions of records. None means undefined or unknown."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Literal, NamedTuple

from specdemo.files import glossary
from specdemo.records import SIDES, Comparison, Costs, DraftCounts, Outcome, Round, Run, Side
from specdemo.text import duration, number, percent

ROUNDS_TO_JUDGE = 12  # without any accepted proposal: with α = 0.2 that happens in 7 % of runs


def prefill_seconds(run: Run) -> float | None:
    return run.prefill.seconds if run.tokens else None


def decode_seconds(run: Run) -> float:
    return sum(step.seconds for step in run.rounds)


def race_seconds(comparison: Comparison) -> float:
    """Return how long both sides of a race computed, with reading the prompt."""
    return sum(run.prefill.seconds + decode_seconds(run) for run in (comparison.plain, comparison.speculative))


def decoded_tokens(run: Run) -> int:
    """All but the prefill's."""
    return sum(len(step.committed) for step in run.rounds)


def tokens_per_second(run: Run) -> float | None:
    seconds = decode_seconds(run)
    return decoded_tokens(run) / seconds if seconds > 0 else None


def time_per_token(run: Run) -> float | None:
    tokens = decoded_tokens(run)
    return decode_seconds(run) / tokens if tokens else None


def seconds_to(run: Run, tokens: int) -> float:
    """Return the decode seconds of the first `tokens` tokens after the prefill's. A round that commits more counts
    in proportion.
    """
    seconds = 0.0
    for step in run.rounds:
        if tokens <= 0:
            break
        seconds += step.seconds * min(tokens / max(len(step.committed), 1), 1.0)
        tokens -= len(step.committed)
    return seconds


def common_tokens(comparison: Comparison) -> int:
    return min(decoded_tokens(comparison.plain), decoded_tokens(comparison.speculative))


def clocks(comparison: Comparison) -> dict[Side, float]:
    """Both sides' seconds in the race, for the same number of tokens; empty if there are none to compare."""
    tokens = common_tokens(comparison)
    return {side: seconds_to(comparison.side(side), tokens) for side in SIDES} if tokens else {}


def passes_to(comparison: Comparison) -> tuple[int, int] | None:
    """Return both sides' target passes for the same number of tokens; None if unknown for either."""
    tokens, runs = common_tokens(comparison), (comparison.plain, comparison.speculative)
    if not tokens or not all(run.passes_known for run in runs):
        alike = decoded_tokens(comparison.plain) == decoded_tokens(comparison.speculative)
        counts = comparison.plain.passes, comparison.speculative.passes
        return (counts[0], counts[1]) if alike and counts[0] and counts[1] else None
    ends = (accumulate(len(step.committed) for step in run.rounds) for run in runs)
    plain, speculative = (1 + sum(end < tokens for end in of_side) for of_side in ends)
    return plain, speculative


def draft_counts(run: Run) -> DraftCounts:
    """Return the totals that a server reported, or those of rounds whose proposals are known."""
    known = [step for step in run.rounds if step.proposed is not None]
    proposed, accepted = sum(len(step.proposed or ()) for step in known), sum(step.accepted for step in known)
    return run.draft_counts or DraftCounts(rounds=len(known), proposed=proposed, accepted=accepted)


def acceptance_rate(run: Run) -> float | None:
    """α: accepted / proposed, over rounds whose proposals are known; None if nothing was proposed."""
    counts = draft_counts(run)
    return counts.accepted / counts.proposed if counts.proposed else None


def any_accepted(run: Run) -> bool | None:
    """Whether any proposal was accepted; None if neither counts nor target passes are known."""
    if draft_counts(run).accepted:
        return True
    known = run.passes_known or run.draft_counts is not None
    return any(step.accepted for step in run.rounds) if known else None


def judged_acceptance(run: Run) -> float | None:
    """Return accepted / judged proposals: the chance that a proposal after accepted ones is accepted, too."""
    outcomes = [token.outcome for step in run.rounds for token in step.proposed or ()]
    judged = len(outcomes) - outcomes.count(Outcome.DISCARDED)
    return outcomes.count(Outcome.ACCEPTED) / judged if judged else None


def mean_acceptance_length(run: Run) -> float | None:
    """τ: committed tokens per target pass, prefill excluded; None if unknown."""
    return (decoded_tokens(run) + run.hidden_tokens) / run.passes if run.passes else None


def per_position_acceptance(run: Run) -> list[float]:
    """For i = 1, 2, …: rounds that accepted at least i proposals / rounds."""
    if not run.passes_known:
        counts = run.draft_counts
        return [accepted / counts.rounds for accepted in counts.by_position] if counts and counts.rounds else []
    accepted = [step.accepted for step in run.rounds]
    longest = max((len(step.proposed or step.committed[1:]) for step in run.rounds), default=0)
    return [sum(count >= i for count in accepted) / len(accepted) for i in range(1, longest + 1)]


def divergence(plain: Run, speculative: Run) -> int | None:
    """Return the index of the first token in which the outputs differ, or None. If one side ended on its own, the
    next token of a longer side counts as different, unless the run was cancelled or failed. Without ids, texts are
    compared.
    """
    runs = plain, speculative
    if not plain.tokens or not speculative.tokens:
        return None
    by_id = all(len(run.token_ids) == len(run.tokens) for run in runs)
    outputs = [run.token_ids if by_id else run.text for run in runs]
    index = next((index for index, pair in enumerate(zip(*outputs, strict=False)) if pair[0] != pair[1]), None)
    if index is None:
        lengths = [len(output) for output in outputs]
        index = min(lengths)
        if index == max(lengths) or runs[lengths.index(index)].finish_reason in ("cancelled", "failed"):
            return None
    if by_id:
        return index
    ends = accumulate(len(token.text) for token in speculative.tokens)
    return next((token for token, end in enumerate(ends) if end > index), len(speculative.tokens))


def first_divergence(comparison: Comparison) -> int | None:
    return divergence(comparison.plain, comparison.speculative)


def identical(comparison: Comparison) -> bool:
    return first_divergence(comparison) is None


def acceptance_by_confidence(run: Run) -> dict[int, tuple[int, int]]:
    """Accepted and judged proposals by tenths of the draft's probability; discarded ones were never judged."""
    bins: dict[int, list[bool]] = {}
    for draft in (draft for step in run.rounds for draft in step.proposed or ()):
        if draft.draft_probability is not None and not draft.copied and draft.outcome is not Outcome.DISCARDED:
            tenth = min(int(draft.draft_probability * 10), 9)
            bins.setdefault(tenth, []).append(draft.outcome is Outcome.ACCEPTED)
    return {tenth: (sum(bins[tenth]), len(bins[tenth])) for tenth in sorted(bins)}


def drafted(step: Round) -> int:
    return sum(not token.copied for token in step.proposed or ())


def acceptance_by_source(run: Run) -> dict[str, tuple[int, int]]:
    """Accepted and proposed tokens, drafted and copied; empty without any copies."""
    tokens = [token for step in run.rounds for token in step.proposed or ()]
    if not any(token.copied for token in tokens):
        return {}
    sources = {"drafted": False, "copied": True}
    outcomes = {name: [token.outcome for token in tokens if token.copied is each] for name, each in sources.items()}
    return {name: (found.count(Outcome.ACCEPTED), len(found)) for name, found in outcomes.items()}


def expected_speedups(costs: Costs, acceptance: float, *, free: bool = False) -> tuple[float, ...]:
    """Return the expected speedups at lookaheads 1, 2, …, as far as passes were measured, if each proposal after
    accepted ones is accepted with probability `acceptance`: (1 + α + … + α^γ) / (d(γ) + v(γ+1)).

    The textbook sets d(γ) = γc and v = 1 (Leviathan et al. 2023, theorem 3.8). Empty if the draft's cost is unknown.
    """
    rounds = [costs.round_cost(lookahead, free=free) for lookahead in range(1, len(costs.verify))]
    lengths = accumulate(acceptance**position for position in range(len(costs.verify)))
    return tuple(tau / cost for tau, cost in zip(islice(lengths, 1, None), rounds, strict=True) if cost is not None)


def ceiling(costs: Costs, *, free: bool = False) -> tuple[float, int] | None:
    """Return a perfect draft's highest speedup, and its lookahead; None if the draft's cost is unknown."""
    speedups = expected_speedups(costs, 1.0, free=free)
    return (max(speedups), speedups.index(max(speedups)) + 1) if speedups else None


class RoundCosts(NamedTuple):
    """In plain steps: a draft step, drafting in an average round, and the rest of it.

    `lookahead` is None if rounds propose different numbers of tokens.
    """

    draft_step: float | None
    drafting: float | None
    verify: float | None
    lookahead: int | None
    source: Literal["in this run", "measured separately"]


def round_costs(comparison: Comparison, plain_steps: float | None) -> RoundCosts | None:
    """Return the costs of the run's own average round, of so many `plain_steps`, if its engine times drafting; else
    step costs, or None without any.
    """
    rounds, strategy, costs = comparison.speculative.rounds, comparison.settings.strategy, comparison.costs
    model, lookahead = strategy.drafter.model, None if comparison.settings_updates else strategy.fixed_lookahead
    if plain_steps is None or any(step.draft_seconds is None for step in rounds):
        if costs is None:
            return None
        verify = None if lookahead is None else costs.round_cost(lookahead, free=True)
        draft_step = costs.draft_step / costs.plain_step if model and costs.draft_step is not None else None
        return RoundCosts(draft_step, None, verify, lookahead, "measured separately")
    if not model:
        return RoundCosts(None, None, plain_steps, lookahead, "in this run")
    seconds = sum(step.draft_seconds or 0.0 for step in rounds)
    drafting = plain_steps * seconds / decode_seconds(comparison.speculative)
    proposed = sum(map(drafted, rounds))
    draft_step = drafting * len(rounds) / proposed if proposed else None
    return RoundCosts(draft_step, drafting, plain_steps - drafting, lookahead, "in this run")


# Greedy decoding of small models often ends in a loop, such as "a raven, a raven, a raven". A draft predicts loops
# easily, so a speedup measured on one says little about other texts.
_MIN_REPETITIONS = 4  # minimum repetitions in a row
_MIN_TOKENS = 24  # minimum tokens in all


class Loop(NamedTuple):
    """From token `start` (counted from 0) to the end, tokens repeat with this `period`."""

    start: int
    period: int


def loop(ids: Sequence[int | str]) -> Loop | None:
    """Return the shortest loop that the output ends in: at least four repetitions, and 24 tokens in all."""
    for period in range(1, len(ids) // _MIN_REPETITIONS + 1):
        start = len(ids) - period
        while start > 0 and ids[start - 1] == ids[start - 1 + period]:
            start -= 1
        if len(ids) - start >= max(_MIN_REPETITIONS * period, _MIN_TOKENS):
            return Loop(start, period)
    return None


_BEGIN, _END = "<think>", "</think>"


def answer(text: str) -> str:
    """Return the text after thinking, whose start the template may have written; empty if all is thinking."""
    if text.lstrip().startswith(_BEGIN) and _END not in text:
        return ""
    return text.partition(_END)[2].strip() if _END in text else text.strip()


_SHOWN_POSITIONS = 8  # listed in "acceptance by position": what fits on a line


@dataclass(frozen=True)
class Metric:
    """`plain` is empty if the figure applies only to speculation."""

    name: str
    plain: str
    speculative: str
    meaning: str
    formula: str


def figures(comparison: Comparison, speedup: str, plain_steps: float | None) -> Iterator[Metric]:
    """In an order in which they explain each other. `speedup` in words; `plain_steps` that a round takes."""
    plain, speculative = comparison.plain, comparison.speculative

    def metric(term: str, speculative: str, plain: str = "", name: str = "", source: str = "") -> Metric:
        entry = glossary()[term]
        return Metric(name or term, plain, speculative, entry["meaning"], entry["formula"] + source)

    def both(term: str, measure: Callable[[Run], float | None], show: Callable[..., str]) -> Metric:
        return metric(term, show(measure(speculative)), show(measure(plain)))

    yield metric("speedup", speedup)
    yield both("tokens/s", tokens_per_second, number)
    yield both("time per output token (TPOT)", time_per_token, duration)
    yield both("time to first token (TTFT)", prefill_seconds, duration)
    yield metric("acceptance rate α", number(acceptance_rate(speculative)))
    yield both("mean acceptance length τ", mean_acceptance_length, number)
    yield metric("acceptance by position i", _positions(speculative))
    costs = round_costs(comparison, plain_steps)
    if costs is None:
        return
    d, v = ("d", "v") if costs.lookahead is None else (f"d({costs.lookahead})", f"v({costs.lookahead + 1})")
    names = "draft cost c", f"drafting {d}", f"verify cost {v}"
    terms = "draft cost c", "drafting d(γ)", "verify cost v(γ + 1)"
    for term, name, cost in zip(terms, names, costs[:3], strict=True):
        if cost is not None:
            yield metric(term, f"{cost:.3f}", name=name, source=f", {costs.source}")


def _positions(run: Run) -> str:
    """Acceptance by position, up to the last one that a round accepted."""
    rates = per_position_acceptance(run)
    shown = [percent(rate) for rate in rates if rate > 0][:_SHOWN_POSITIONS]
    if len(shown) < len(rates):
        shown.append(f"{'0 %' if not rates[len(shown)] else '…'} from {len(shown) + 1} on")
    return " · ".join(shown) or "–"
