"""What experiments measure: trials, one speculative run between two plain ones; and blocks of a load run.

Percentiles, rates and speedups are not stored: `analysis` and `experiments` derive them.
"""

from pydantic import Field

from specdemo.records.base import MOST, Count, Probability, Record, Seconds, Share


class Trial(Record):
    """One speculative run and its plain neighbours.

    `seconds` and `plain_seconds`, the mean of both neighbours, are for the same number of new `tokens`, prefill
    excluded. `draft_seconds` and `verify_seconds` are None where the engine does not report them; `accepted`
    and `proposed` where it does not report proposals; `rounds` where it does not tell them. `other_load` is the share
    of the machine's processor time that other processes took meanwhile, None if that is not known. `plain_steps` are
    the seconds of every plain step, of the run before and of the one after; `round_steps` tokens committed, tokens
    proposed (-1 if unknown) and seconds of every speculative round. Both are empty in older files. `thinking` are the
    speculative run's tokens up to the end of what the model thinks, the prefill's included.
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
    thinking: Count | None = None
    plain_steps: tuple[tuple[Seconds, ...], ...] = Field((), max_length=2)
    round_steps: tuple[tuple[Count, int, Seconds], ...] = Field((), max_length=MOST)

    @property
    def speedup(self) -> float:
        """Plain seconds / speculative seconds for the same number of new tokens."""
        return self.plain_seconds / self.seconds


MOST_IN_FLIGHT = 256
"""GenAI's own limit of sequences in a batch."""


class Served(Record):
    """A request that was served: which prompt, how many tokens, and when, in seconds since it was submitted.

    `output` is a digest of its tokens' ids, or of its text where ids are not told.
    """

    prompt: str
    tokens: Count
    first: Seconds
    last: Seconds
    output: str

    @property
    def tokens_per_second(self) -> float | None:
        """What its user sees after the first token; None if that was the only one, or all came at once."""
        return (self.tokens - 1) / (self.last - self.first) if self.last > self.first else None


class Block(Record):
    """One side with so many requests in flight, from the first submission until the last of `served` ended.

    Whenever one ends, another begins, so that as many are in flight at the end as at the beginning; what has not
    ended by then counts for `tokens` but is not `served`. `accepted[k]` is how many rounds accepted exactly k
    proposals, None where rounds cannot be seen; `judged`: accepted and proposed tokens, over the rounds whose
    proposals were counted. `batch` is the mean number of requests that a target pass advanced, `cache_bytes` the most
    that the target's KV cache held; None where the engine does not tell. `other_load` is the share of the machine's
    processor time that other processes took.
    """

    level: int = Field(ge=1, le=MOST_IN_FLIGHT)
    seconds: Seconds
    tokens: Count
    served: tuple[Served, ...]
    accepted: tuple[Count, ...] | None = Field(None, max_length=MOST)
    judged: tuple[Count, Count] | None = None
    batch: Share | None = None
    cache_bytes: Count | None = None
    other_load: Probability | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all requests per second."""
        return self.tokens / self.seconds
