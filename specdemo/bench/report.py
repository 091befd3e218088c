"""A benchmark as a report.

The table is that of the article on dynamic speculation (Mamou et al. 2024): target, draft, task, and the speedup of
each decoding strategy; a speedup is always shown together with whether the outputs were identical.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from specdemo.analysis import metrics
from specdemo.bench.charts import charts
from specdemo.bench.conclusion import opening
from specdemo.bench.files import Report
from specdemo.bench.results import ALL, Bench, Cell, cells, headline, problems
from specdemo.measure.hardware import MEBIBYTE, MemoryUse, draft_extra
from specdemo.presentation.figures import number, percent

COLUMNS = ("target", "draft", "task", "engine", "method", "speedup", "outputs", "τ", "α", "tokens/s", "runs")


def report_of(result: Bench) -> Report:
    """The benchmark as a report."""
    pair, found = result.header.pair, cells(result)
    names = {"target": pair.target.name, "draft": pair.draft.name if pair.draft is not None else None}
    return Report(
        title=f"Benchmark of {pair.name}",
        opening=list(opening(result)),
        charts=charts(result),
        columns=COLUMNS,
        rows=table(result),
        notes=list(notes(result)),
        data=lambda: {
            **result.model_dump(mode="json"),
            "table": [cell.model_dump(mode="json") for cell in found],
            "headline": headline(result),
        },
        figures=[names | _figures(cell) for cell in found],
    )


def _figures(cell: Cell) -> dict[str, Any]:
    figures = cell.model_dump(exclude={"speedup", "speedups"})
    return figures | {"median": cell.speedup.middle, "low": cell.speedup.low, "high": cell.speedup.high}


def table(result: Bench) -> list[tuple[str, ...]]:
    """The rows under `COLUMNS`, as text."""
    pair = result.header.pair
    names = pair.target.name, pair.draft.name if pair.draft is not None else "–"
    return [(*names, *_row(cell)) for cell in cells(result)]


def notes(result: Bench) -> Iterator[str]:
    """What the table is based on, and memory and bandwidth where they were measured."""
    if not result.complete:
        wanted = len(result.tasks) * result.repeats * len(result.header.methods)
        yield f"Unfinished: {len(result.rows)} of {wanted} runs."
    yield (
        "Speedup: plain seconds / speculative seconds for the same number of new tokens, prefill excluded; "
        f"{_repeats(result)}. Each speculative run is compared with the plain runs of the same engine just before "
        "and after it."
    )
    for problem, rows in problems(result).items():
        methods = ", ".join(dict.fromkeys(f"{row.engine} {row.method}" for row in rows))
        prompts = f"{len({row.prompt for row in rows})} of {len(result.tasks)} prompts"
        yield f"Left out for {methods}, {prompts}: {problem}"
    for engine, facts in result.engines.items():
        where, costs = facts.environment, facts.costs
        cost = metrics.draft_cost(costs) if costs is not None else None
        step = f"; a plain step takes {costs.plain_step * 1e3:.2f} ms" if costs is not None else ""
        draft = f", a draft step {cost:.2f} times that" if cost is not None else ""
        precision = f"{where.inference_precision}, KV cache {where.kv_cache_precision}"
        told = "" if where.served else f", {where.threads} threads, {precision}{step}{draft}"
        yield f"{engine}: {where.device}{told}."
    yield from memory_notes(result.memory)
    yield from _bound(result)


def _repeats(result: Bench) -> str:
    """How many repeats the table's cells cover: fewer than requested if it is unfinished."""
    counts = {cell.repeats for cell in cells(result)} or {0}
    fewest, most = min(counts), max(counts)
    if most <= 1:
        return "a single repeat, so nothing tells how much it varies"
    return f"mean ± standard deviation over {most if fewest == most else f'{fewest} to {most}'} repeats"


def _row(cell: Cell) -> Sequence[str]:
    spread = "" if cell.deviation is None else f" ± {cell.deviation:.2f}"
    outputs = "identical" if cell.identical else f"{cell.identical_runs} of {cell.runs} identical"
    rate = "–" if cell.acceptance_rate is None else f"{cell.acceptance_rate:.2f}"
    speed = f"{cell.tokens_per_second:.0f}"
    length = number(cell.mean_accepted_length)
    return (
        cell.task, cell.engine, cell.method, f"{cell.mean:.2f}{spread}", outputs, length, rate, speed, str(cell.runs)
    )  # fmt: skip


def memory_notes(uses: Sequence[MemoryUse]) -> Iterator[str]:
    """What each side takes, and how much more speculation does."""
    for use in uses:
        yield (
            f"Memory, {use.engine} {use.side}{_together(use.at_once)}: {use.resident / MEBIBYTE:.0f} MiB resident, "
            f"peak {use.peak / MEBIBYTE:.0f} MiB, beyond its size before loading, in a separate process that loads "
            "only what this side decodes with."
        )
    for engine in dict.fromkeys(use.engine for use in uses):
        extra = draft_extra(uses, engine, "resident")
        if extra is not None:
            yield (
                f"Speculation takes {extra / MEBIBYTE:.0f} MiB more resident memory than plain decoding with "
                f"{engine}; each process holds the target once."
            )


def _together(at_once: int) -> str:
    return f", {at_once} requests at once" if at_once > 1 else ""


def _bound(result: Bench) -> Iterator[str]:
    bound = result.bound
    if bound is None:
        return
    gigabytes = f"{bound.read_bandwidth / 1e9:.1f} GB/s reading, {bound.copy_bandwidth / 1e9:.1f} GB/s copying"
    cache = f"{bound.context * bound.cache_per_token / 1e6:.1f} MB of cache"
    yield (
        f"Memory bandwidth: {gigabytes}, measured with {bound.threads} threads on arrays of "
        f"{bound.array_bytes / MEBIBYTE:.0f} MiB each. A target pass reads {bound.weights / 1e6:.1f} MB of weights "
        f"and, after {bound.context} tokens, {cache}: at most {bound.tokens_per_second:.0f} tokens per second with "
        "plain decoding, unless the processor's caches hold the weights."
    )
    for cell in (cell for cell in cells(result) if cell.task == ALL):
        plain, speculative = (bound.share(rate) for rate in (cell.plain_tokens_per_second, cell.tokens_per_second))
        strategy = f"{cell.engine} {cell.method}"
        yield f"Share of that limit, {strategy}: {percent(speculative)}; plain decoding beside it: {percent(plain)}."
