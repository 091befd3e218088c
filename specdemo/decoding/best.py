"""The lookahead to start with on a machine, predicted from measured step costs and a draft's known agreement."""

from collections.abc import Sequence

from specdemo.records import Costs


def best_lookahead(agreement_per_step: Sequence[float], costs: Costs) -> tuple[int, float]:
    """Return the best constant lookahead, and its predicted speedup; (0, 1.0) where plain decoding is faster.

    `agreement_per_step[i]` is the share of a draft's (i + 1)-th proposals of a round that the target accepts, if it
    accepted those before; lookaheads beyond its length, or beyond the measured passes, are not considered. The
    speedup is τ / (draft steps + v(γ + 1)), in plain steps, and so never above τ.
    """
    best, reach, tokens = (0, 1.0), 1.0, 1.0
    for lookahead, agreement in enumerate(agreement_per_step[: len(costs.verify) - 1], 1):
        reach *= agreement
        tokens += reach
        drafting = costs.drafting(lookahead)
        if drafting is None:
            break
        # a pass over more tokens is never cheaper than a plain one: where it was measured so, that is noise
        steps = max(costs.verify[lookahead], costs.plain_step) + drafting
        best = max(best, (lookahead, tokens / steps * costs.plain_step), key=lambda found: found[1])
    return best
