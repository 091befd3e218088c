"""What a load run measures: blocks, in each of which one side serves requests with a constant number in flight.

Percentiles, rates and speedups are not stored: `bench.load.results` derives them.
"""

from pydantic import Field

from specdemo.records.base import MOST, Count, Probability, Record, Seconds, Share

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
