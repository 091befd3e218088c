"""One speculative run between two plain ones, as sweeps, benchmarks and repeated races measure it."""

from pydantic import Field

from specdemo.records.base import MOST, Count, Probability, Record, Seconds, Share


class Trial(Record):
    """One speculative run and its plain neighbours.

    `seconds` and `plain_seconds`, the mean of both neighbours, are for the same number of new `tokens`, prefill
    excluded. `draft_seconds` and `verify_seconds` are None where the engine does not report them; `accepted`
    and `proposed` where it does not report proposals; `rounds` where it does not tell them. `other_load` is the share
    of the machine's processor time that other processes took meanwhile, None if that is not known. `plain_steps` are
    the seconds of every plain step, of the run before and of the one after; `round_steps` tokens committed, tokens
    proposed (-1 if unknown) and seconds of every speculative round. Both are empty in older files.
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
    plain_steps: tuple[tuple[Seconds, ...], ...] = Field((), max_length=2)
    round_steps: tuple[tuple[Count, int, Seconds], ...] = Field((), max_length=MOST)

    @property
    def speedup(self) -> float:
        """Plain seconds / speculative seconds for the same number of new tokens."""
        return self.plain_seconds / self.seconds
