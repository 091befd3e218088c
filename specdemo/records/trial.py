"""One speculative run between two plain ones, as sweeps, benchmarks and repeated races measure it."""

from specdemo.records.base import Count, Probability, Record, Seconds, Share


class Trial(Record):
    """One speculative run and its plain neighbours.

    `seconds` and `plain_seconds`, the mean of both neighbours, are for the same number of new `tokens`, prefill
    excluded. `draft_seconds` and `verify_seconds` are None where the engine does not report them; `accepted`
    and `proposed` where it does not report proposals; `rounds` where it does not tell them. `other_load` is the share
    of the machine's processor time that other processes took meanwhile, None if that is not known.
    """

    tokens: Count
    seconds: Seconds
    plain_seconds: Seconds
    identical: bool
    rounds: Count | None
    run_tokens: Count
    run_seconds: Seconds
    draft_seconds: Share | None = None
    verify_seconds: Share | None = None
    proposed: Count | None = None
    accepted: Count | None = None
    judged: Count | None = None
    other_load: Probability | None = None

    @property
    def speedup(self) -> float:
        """Plain seconds / speculative seconds for the same number of new tokens."""
        return self.plain_seconds / self.seconds
