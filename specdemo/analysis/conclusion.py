"""What a comparison comes to: which speedup may be quoted, from how many runs, and what may be said of it."""

from typing import Literal

from specdemo.analysis import metrics
from specdemo.analysis.intervals import ENOUGH, Interval, median_interval
from specdemo.records import Comparison

_SAME = 0.02  # within this of 1× neither side is called faster


def speedup_of(comparison: Comparison) -> Interval | None:
    """The speedup to quote: the median of the repeats if there are any, else the race's own; None if undefined.

    The race itself is not among them: it takes turns in slices, while somebody watches.
    """
    if comparison.repeats:
        return median_interval([trial.speedup for trial in comparison.repeats])
    speedup = metrics.speedup(comparison)
    return None if speedup is None else Interval(middle=speedup)


def runs_of(comparison: Comparison) -> int:
    """From how many runs that speedup is."""
    return len(comparison.repeats) or 1


def headline(comparison: Comparison) -> str:
    """The outcome in a few words, such as "1.8× faster"."""
    speedup = speedup_of(comparison)
    if not comparison.both:
        return "Nothing to compare"
    if speedup is None:
        return "Too short to compare"
    if speedup.includes_one:
        return f"{speedup.middle:.2f}×: no clear difference"
    if speedup.wide:
        return f"{speedup.low:.2f}–{speedup.high:.2f}×: not settled"
    words = {"faster": "× faster", "slower": "×: slower", "same": "×: no difference"}
    return f"{speedup.middle:.2f}{words[tone(comparison)]}"


def tone(comparison: Comparison) -> Literal["faster", "slower", "same"]:
    """Which way the outcome goes, for colouring."""
    speedup = speedup_of(comparison)
    if speedup is None or abs(speedup.middle - 1) <= _SAME or speedup.includes_one or speedup.wide:
        return "same"
    return "faster" if speedup.middle > 1 else "slower"


def evidence(comparison: Comparison) -> str:
    """How many runs the speedup is from, how much they differ, and what the race itself showed."""
    speedup, race = speedup_of(comparison), metrics.speedup(comparison)
    if speedup is None:
        return ""
    if not comparison.repeats:
        return "From a single run."
    each = [trial.speedup for trial in comparison.repeats]
    if speedup.known:
        spread = speedup.ends
    elif len(each) > 1:
        spread = f"{min(each):.2f}–{max(each):.2f}, too few for an interval, which takes {ENOUGH}"
    else:
        spread = "too few for an interval"
    runs = "1 repeat" if len(each) == 1 else f"Median of {len(each)} repeats"
    shown = "" if race is None else f"; the race itself: {race:.2f}×"
    return f"{runs} ({spread}){shown}."
