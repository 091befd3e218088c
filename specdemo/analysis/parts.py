"""Parts of runs: how acceptance and speedup vary along the text, between thinking and answer, and between rounds.

A part is a slice of both sides: the rounds that begin in it, and the plain steps of the same tokens. Its speedup
comes from the estimator of whole runs.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from specdemo.analysis import metrics
from specdemo.analysis.estimates import Summary, summarise
from specdemo.analysis.metrics import thinking_tokens
from specdemo.records import Comparison, Trial

_BLOCKS = (16, 32, 64, 128, 256, 512)
_MOST = 8  # blocks per run
_FEW = 3  # rounds, below which a part says nothing


class Part(Summary):
    """A part of some runs: tokens from `start` to before `end`, counted from the first round's first."""

    name: str
    start: int
    end: int
    rounds: int


def race_of(comparison: Comparison) -> Trial | None:
    """Return the race itself as a trial with the steps of both sides; None if a side has none."""
    run, plain, tokens = comparison.speculative, comparison.plain, metrics.common_tokens(comparison)
    seconds = metrics.seconds_to(run, tokens)
    if not seconds or not run.passes_known:
        return None
    complete = all(step.proposed is not None for step in run.rounds)
    return Trial(
        tokens=tokens,
        seconds=seconds,
        plain_seconds=metrics.seconds_to(plain, tokens),
        identical=metrics.identical(comparison),
        rounds=len(run.rounds),
        run_tokens=metrics.decoded_tokens(run),
        run_seconds=metrics.decode_seconds(run),
        proposed=sum(len(step.proposed or ()) for step in run.rounds) if complete else None,
        accepted=sum(step.accepted for step in run.rounds) if complete else None,
        plain_steps=(metrics.seconds_of_tokens(plain),),
        round_steps=tuple(
            (len(step.committed), -1 if step.proposed is None else len(step.proposed), step.seconds)
            for step in run.rounds
        ),
        thinking=thinking_tokens(run),
    )


def by_position(trials: Sequence[Trial], prompts: Sequence[Hashable] | None = None) -> list[Part]:
    """Return the parts of the text in at most eight equal blocks."""
    longest = max((trial.run_tokens for trial in trials), default=0)
    block = next((size for size in _BLOCKS if size * _MOST >= longest), _BLOCKS[-1])
    found = (
        _part(f"{start + 1}–{start + block}", trials, prompts, start, start + block)
        for start in range(0, longest, block)
    )
    return [part for part in found if part is not None]


def by_thinking(trials: Sequence[Trial], prompts: Sequence[Hashable] | None = None) -> list[Part]:
    """Return thinking and answer as parts; empty if nothing thinks."""
    if not any(trial.thinking for trial in trials):
        return []
    parts = []
    for name, answers in (("thinking", False), ("answer", True)):
        slices = []
        for index, trial in enumerate(trials):
            border = max((trial.thinking or 0) - 1, 0)  # the prefill gave the first token
            start, end = (border, trial.run_tokens) if answers else (0, border)
            if (cut := _slice(trial, start, end)) is not None:
                slices.append((cut, None if prompts is None else prompts[index]))
        part = _summary(name, slices, 0, 0)
        if part is not None:
            parts.append(part)
    return parts


def accepted_per_round(trials: Sequence[Trial]) -> dict[int, int]:
    """Return how many rounds accepted 0, 1, 2, … proposals; empty if rounds are unknown."""
    seen: Counter[int] = Counter()
    for trial in trials:
        if trial.rounds is None:
            return {}
        seen.update(_accepted(trial))
    return {count: seen[count] for count in range(max(seen, default=-1) + 1)}


def _accepted(trial: Trial) -> Iterator[int]:
    """Yield each round's accepted proposals: all committed tokens but one; in the last round, the remainder."""
    *rounds, last = [tokens for tokens, _, _ in trial.round_steps] or [0]
    counts = [max(tokens - 1, 0) for tokens in rounds]
    yield from counts
    if trial.round_steps:
        yield max(last - 1, 0) if trial.accepted is None else max(trial.accepted - sum(counts), 0)


def _part(
    name: str, trials: Sequence[Trial], prompts: Sequence[Hashable] | None, start: int, end: int
) -> Part | None:
    slices = [
        (cut, None if prompts is None else prompts[index])
        for index, trial in enumerate(trials)
        if (cut := _slice(trial, start, end)) is not None
    ]
    return _summary(name, slices, start, end)


def _summary(name: str, slices: Sequence[tuple[Trial, Hashable]], start: int, end: int) -> Part | None:
    cuts = [cut for cut, _ in slices]
    rounds = sum(cut.rounds or 0 for cut in cuts)
    if rounds < _FEW:
        return None
    found = summarise(cuts, [prompt for _, prompt in slices])
    return Part(**found.model_dump(), name=name, start=start, end=end, rounds=rounds)


def _slice(trial: Trial, start: int, end: int) -> Trial | None:
    """Return the rounds that begin with a token from `start` to before `end`, and the plain steps of their tokens."""
    position, begins, kept, accepted = 0, None, [], 0
    for step, right in zip(trial.round_steps, _accepted(trial), strict=True):
        if start <= position < end:
            begins = position if begins is None else begins
            kept.append(step)
            accepted += right
        position += step[0]
    if begins is None:
        return None
    committed = sum(tokens for tokens, _, _ in kept)
    plain = [steps[begins : begins + committed] for steps in trial.plain_steps]
    tokens = min(committed, trial.tokens - begins, *map(len, plain))
    if tokens <= 0:
        return None
    complete = trial.accepted is not None and all(proposed >= 0 for _, proposed, _ in kept)
    seconds = sum(seconds for _, _, seconds in kept)
    return trial.model_copy(
        update={
            "tokens": tokens,
            "seconds": seconds,
            "plain_seconds": sum(map(sum, plain)) / len(plain),
            "rounds": len(kept),
            "run_tokens": committed,
            "run_seconds": seconds,
            "draft_seconds": None,
            "verify_seconds": None,
            "proposed": sum(proposed for _, proposed, _ in kept) if complete else None,
            "accepted": accepted if complete else None,
            "judged": None,
            "plain_steps": tuple(plain),
            "round_steps": tuple(kept),
        }
    )
