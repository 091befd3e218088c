"""What a load run found, and the figures that follow from it.

A row is one block. Speedups are of neighbours: a speculative block is compared with the plain one of the same repeat
and level, so that drift of the machine cancels out.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from pydantic import Field

from specdemo.analysis.intervals import Interval, median_interval
from specdemo.bench.results import Header
from specdemo.bench.suites import Task
from specdemo.measure.hardware import MemoryUse
from specdemo.records import MOST, Environment, Record
from specdemo.records.base import Count
from specdemo.records.load import Block, Served
from specdemo.settings import GenerationSettings

PLAIN = "plain"


class LoadHeader(Header):
    """What a load run measures. `methods` are plain and every speculative way; `requests` the least per block.

    `seed` is that of all orders, on which it depends which requests a block serves.
    """

    levels: tuple[int, ...]
    requests: int
    seed: int

    def differences(self, begun: Self) -> list[str]:
        """How that one differs, in words."""
        same = {
            "other numbers of requests in flight": self.levels == begun.levels,
            "other numbers of requests per block": self.requests == begun.requests,
            "another random order": self.seed == begun.seed,
        }
        return super().differences(begun) + [difference for difference, equal in same.items() if not equal]


class LoadRow(Record):
    """One block: which decoding strategy, in which repeat."""

    method: str
    repeat: Count
    block: Block

    @property
    def key(self) -> tuple[int, int, str]:
        """Repeat, level and method."""
        return self.repeat, self.block.level, self.method


class LoadLine(Record):
    """A line of the journal: a finished row, or what it was measured on."""

    row: LoadRow | None = None
    environment: Environment | None = None


class Percentiles(Record):
    """Median and 99th percentile over requests, in seconds."""

    median: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """Those of at least one request."""
        median, p99 = np.percentile(seconds, (50, 99))
        return cls(median=float(median), p99=float(p99))


class Point(Record):
    """One method with so many requests in flight, over all its blocks.

    `tokens_per_second` is of all requests together, the median of the blocks; `user_tokens_per_second` what the
    median request sees after its first token. `first` and `last` are from a request's submission until its first and
    its last token. `per_position[i]`: rounds that accepted at least i + 1 drafts / rounds. `batch` is the mean
    number of requests that a target pass advanced. `speedup` is None for plain decoding itself, and until both sides
    of a repeat are there. `identical` of `requests` outputs are those of plain decoding of one request at a time;
    None until that is known.
    """

    method: str
    level: int
    blocks: int
    requests: int
    tokens_per_second: Interval
    user_tokens_per_second: float | None
    first: Percentiles
    last: Percentiles
    mean_accepted_length: float | None
    acceptance_rate: float | None
    per_position: tuple[float, ...] = Field((), max_length=MOST)
    batch: float | None
    cache_bytes: int | None
    speedup: Interval | None
    speedups: tuple[float, ...]
    identical: int | None
    other_load: float | None


class Load(Record):
    """A load run, finished or not. `variants` are the settings of its speculative methods."""

    header: LoadHeader
    variants: dict[str, GenerationSettings]
    tasks: tuple[Task, ...]
    date: str = ""
    repeats: int = Field(ge=1)
    environment: Environment | None = None
    rows: tuple[LoadRow, ...] = ()
    memory: tuple[MemoryUse, ...] = ()

    @property
    def total(self) -> int:
        """Number of blocks."""
        return len(self.header.levels) * len(self.header.methods) * self.repeats

    @property
    def complete(self) -> bool:
        """Whether every method ran at every level in every repeat."""
        return len(self.rows) == self.total

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, without the points that were derived from this."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("points", None)
        return copy

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every method at every level that has a row, methods in their order and levels ascending."""
        alone = _outputs_alone(self.rows)
        blocks: dict[tuple[str, int], list[Block]] = {}
        for row in sorted(self.rows, key=lambda row: row.key):
            blocks.setdefault((row.method, row.block.level), []).append(row.block)
        return tuple(
            _point(method, level, blocks[method, level], _speedups(self.rows, method, level), alone)
            for method in self.header.methods
            for level in self.header.levels
            if (method, level) in blocks
        )


def _outputs_alone(rows: Sequence[LoadRow]) -> dict[str, str]:
    """The output of every prompt in the first plain block with one request at a time."""
    first = min((row for row in rows if row.method == PLAIN and row.block.level == 1), key=_repeat, default=None)
    return {} if first is None else {served.prompt: served.output for served in first.block.served}


def _repeat(row: LoadRow) -> int:
    return row.repeat


def _speedups(rows: Sequence[LoadRow], method: str, level: int) -> tuple[float, ...]:
    """This method's tokens per second / those of plain decoding, for every repeat that has both."""
    if method == PLAIN:
        return ()
    rates = {row.key: row.block.tokens_per_second for row in rows if row.block.level == level}
    repeats = sorted(row.repeat for row in rows if row.method == method and row.block.level == level)
    plain = {repeat: rates.get((repeat, level, PLAIN)) for repeat in repeats}
    return tuple(rates[repeat, level, method] / rate for repeat, rate in plain.items() if rate is not None)


def _point(
    method: str, level: int, blocks: Sequence[Block], speedups: tuple[float, ...], alone: dict[str, str]
) -> Point:
    served = [request for block in blocks for request in block.served]
    users = [rate for request in served if (rate := request.tokens_per_second) is not None]
    batches = [block.batch for block in blocks if block.batch is not None]
    caches = [block.cache_bytes for block in blocks if block.cache_bytes is not None]
    others = [block.other_load for block in blocks if block.other_load is not None]
    length, per_position = _rounds(blocks)
    return Point(
        method=method,
        level=level,
        blocks=len(blocks),
        requests=len(served),
        tokens_per_second=median_interval([block.tokens_per_second for block in blocks]),
        user_tokens_per_second=float(np.median(users)) if users else None,
        first=Percentiles.of([request.first for request in served]),
        last=Percentiles.of([request.last for request in served]),
        mean_accepted_length=length,
        acceptance_rate=_acceptance_rate(blocks),
        per_position=per_position,
        batch=float(np.mean(batches)) if batches else None,
        cache_bytes=max(caches, default=None),
        speedup=median_interval(speedups) if speedups else None,
        speedups=speedups,
        identical=_identical(served, alone),
        other_load=float(np.median(others)) if others else None,
    )


def _rounds(blocks: Sequence[Block]) -> tuple[float | None, tuple[float, ...]]:
    """Tokens committed per round, and the share of rounds that accepted at least 1, 2, … proposals."""
    seen = [block.accepted for block in blocks if block.accepted is not None]
    if len(seen) < len(blocks):
        return None, ()
    counts = np.zeros(max(map(len, seen)))
    for accepted in seen:
        counts[: len(accepted)] += accepted
    rounds = counts.sum()
    at_least = counts[::-1].cumsum()[::-1] / rounds
    length = float((counts * np.arange(1, len(counts) + 1)).sum() / rounds)
    return length, tuple(map(float, at_least[1:]))


def _acceptance_rate(blocks: Sequence[Block]) -> float | None:
    judged = [block.judged for block in blocks if block.judged is not None]
    proposed = sum(proposed for _, proposed in judged)
    return sum(accepted for accepted, _ in judged) / proposed if proposed and len(judged) == len(blocks) else None


def _identical(served: Sequence[Served], alone: dict[str, str]) -> int | None:
    if any(request.prompt not in alone for request in served):
        return None
    return sum(request.output == alone[request.prompt] for request in served)
