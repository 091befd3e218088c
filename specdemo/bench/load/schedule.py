"""The best lookahead per load as a schedule for a server that can follow one.

vLLM takes `num_speculative_tokens_per_batch_size` in its speculative config: a list of [fewest, most, lookahead].
"""

from collections.abc import Sequence
from itertools import groupby, pairwise

from specdemo.bench.load.conclusion import Best
from specdemo.bench.load.results import PLAIN
from specdemo.settings import GenerationSettings
from specdemo.strategies import Constant

Schedule = list[list[int]]


def schedule(chosen: Sequence[Best], variants: dict[str, GenerationSettings]) -> Schedule | None:
    """Rows of [fewest in flight, most in flight, lookahead], 0 for plain decoding, from level 1 to the highest.

    Numbers between two levels follow the lower one. None if speculation never wins, or by anything but a draft model
    with constant lookaheads.
    """
    lookaheads = {PLAIN: 0}
    for method, settings in variants.items():
        strategy = settings.strategy
        if not isinstance(strategy, Constant):
            return None
        lookaheads[method] = strategy.num_assistant_tokens
    known = [(each.level, lookaheads[each.method]) for each in chosen]
    if not any(lookahead for _, lookahead in known):
        return None
    starts = [next(group) for _, group in groupby(known, lambda pair: pair[1])]
    ends = [after - 1 for _, (after, _) in pairwise(starts)] + [known[-1][0]]
    return [[start, end, lookahead] for (start, lookahead), end in zip(starts, ends, strict=True)]
