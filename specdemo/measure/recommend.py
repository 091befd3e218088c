"""What to do about a sweep's figures, in a sentence or two. There need not be a winner."""

from collections.abc import Sequence
from typing import Literal

from specdemo.analysis.intervals import Summary
from specdemo.records import Record
from specdemo.settings import GenerationSettings

_NAMED = 4  # of the settings within measurement error


class Candidate(Record):
    """A setting to try: a lookahead, a confidence threshold, or a policy without a value."""

    kind: Literal["lookahead", "threshold", "policy"]
    name: str
    value: float | None
    settings: GenerationSettings


class Point(Summary):
    """The results of one candidate; one speedup per finished trial."""

    candidate: Candidate


class Recommendation(Record):
    """What to do, in a sentence. `candidate` is the best; None where no setting clearly beats plain decoding."""

    candidate: Candidate | None
    sentence: str


def recommend(points: Sequence[Point], fresh: Point | None = None) -> Recommendation:
    """The fastest setting, if its fresh runs clearly beat plain decoding; it may be one of several as good."""
    if not points:
        return Recommendation(candidate=None, sentence="Nothing has been measured yet.")
    best = fresh or max(points, key=lambda point: point.speedup.middle)
    name, runs = best.candidate.name, len(best.speedups)
    evidence = f"{best.speedup} in {runs} {'fresh ' if fresh else ''}run{'s' if runs > 1 else ''}"
    outputs = "outputs identical" if best.identical else "but outputs differ"
    if fresh is None or best.speedup.low is None:
        sentence = f"Too few runs to be sure: the fastest so far is {name}, {evidence}, {outputs}."
        return Recommendation(candidate=None, sentence=sentence)
    if best.speedup.wide:
        sentence = (
            f"Not settled: the runs of the fastest setting, {name}, differ too much ({best.speedup.ends} in {runs} "
            "fresh runs). Close other programs and sweep again."
        )
        return Recommendation(candidate=None, sentence=sentence)
    if best.speedup.low <= 1:
        clearly = "clearly " if best.speedup.middle > 1 else ""
        sentence = f"No setting {clearly}beats plain decoding here: the best, {name}, reached {evidence}, {outputs}."
        return Recommendation(candidate=None, sentence=sentence)
    equals = _equals([point for point in points if point.candidate.name != name], best.speedup.low)
    if not equals:
        return Recommendation(candidate=best.candidate, sentence=f"Choose {name}: {evidence}, {outputs}.")
    sentence = f"No clear winner: any of {name}, {equals}. For {name}: {evidence}, {outputs}."
    return Recommendation(candidate=best.candidate, sentence=sentence)


def within_error(point: Point, speedup: float) -> bool:
    """Whether a setting may reach this speedup: by its interval, or by its best run if there is none."""
    return (point.speedup.high or max(point.speedups)) >= speedup


def _equals(others: Sequence[Point], speedup: float) -> str:
    """The settings that may be as fast, fastest first; empty if there are none."""
    reaching = [point for point in others if within_error(point, speedup)]
    names = [point.candidate.name for point in sorted(reaching, key=lambda point: -point.speedup.middle)]
    if not names:
        return ""
    shown, more = names[:_NAMED], len(names) - _NAMED
    return f"{', '.join(shown)}{f' and {more} more' if more > 0 else ''}"
