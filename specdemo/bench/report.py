"""A benchmark as Markdown, CSV, JSON, and as one small HTML file that opens offline, light or dark.

The table is that of the article on dynamic speculation (Mamou et al. 2024): target, draft, task, and the speedup of
each way of decoding; a speedup is always shown together with whether the outputs were identical.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from specdemo.analysis import metrics
from specdemo.analysis.figures import number, percent
from specdemo.bench.charts import charts
from specdemo.bench.conclusion import opening
from specdemo.bench.results import ALL, Bench, Cell, cells, headline, problems
from specdemo.errors import UsageError, quoted
from specdemo.measure.hardware import MEBIBYTE, draft_extra
from specdemo.output import SCHEMA, write_json, write_text
from specdemo.resources import ASSETS, colours

_TEMPLATE = ASSETS / "report.html"
_BESIDE = (".md", ".csv", ".html")
COLUMNS = ("target", "draft", "task", "engine", "method", "speedup", "outputs", "τ", "α", "tokens/s", "runs")


def to_json(result: Bench) -> dict[str, Any]:
    """One JSON-serialisable object: everything measured, the table, and the headline figures."""
    return {
        "schema": SCHEMA,
        **result.model_dump(mode="json"),
        "table": [cell.model_dump(mode="json") for cell in cells(result)],
        "headline": headline(result),
    }


def table(result: Bench) -> list[tuple[str, ...]]:
    """The rows under `COLUMNS`, as text."""
    pair = result.header.pair
    names = pair.target.name, pair.draft.name if pair.draft is not None else "–"
    return [(*names, *_row(cell)) for cell in cells(result)]


def to_markdown(result: Bench) -> str:
    """The table, and what else was measured, in sentences."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table(result)]
    begin = "\n\n".join(opening(result))
    return "\n".join([f"# Benchmark of {result.header.pair.name}", "", begin, "", *lines, "", *notes(result)]) + "\n"


def to_csv(result: Bench) -> str:
    """The table's figures unrounded, one cell per line."""
    names = [name for name in Cell.model_fields if name not in ("speedup", "speedups")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["target", "draft", *names, "median", "low", "high"])
    pair = result.header.pair
    for cell in cells(result):
        spread = (cell.speedup.middle, cell.speedup.low, cell.speedup.high)
        draft = pair.draft.name if pair.draft is not None else None
        writer.writerow([pair.target.name, draft, *(getattr(cell, name) for name in names), *spread])
    return out.getvalue()


def to_html(result: Bench) -> str:
    """One self-contained file with plots, table and notes."""
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(_TEMPLATE.read_text(encoding="utf-8"))
    plots = [(chart.title, name, _plot(chart.figure)) for name, chart in charts(result).items()]
    return page.render(
        title=f"Benchmark of {result.header.pair.name}",
        light=colours(),
        dark=colours(dark=True),
        script=Markup((ASSETS / "page" / "sketch.js").read_text(encoding="utf-8")),
        opening=opening(result),
        plots=plots,
        columns=COLUMNS,
        rows=table(result),
        notes=filter(None, notes(result)),
    )


def _plot(figure: go.Figure) -> Markup:
    """A figure as JSON that may stand in a script."""
    return Markup(json.dumps(figure.to_plotly_json()).replace("<", "\\u003c"))


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
        yield f"{engine}: {where.device}, {where.threads} threads, {precision}{step}{draft}."
    yield from _memory(result)
    yield from _bound(result)


def write(result: Bench, path: Path) -> list[Path]:
    """Write all four files, the JSON at this path, the others `beside` it; return their paths.

    Raises:
        SpecdemoError: one cannot be written.
    """
    write_json(to_json(result), path, indent=1)
    texts = {".md": to_markdown(result), ".csv": to_csv(result), ".html": to_html(result)}
    for ending, text in texts.items():
        write_text(text, beside(path, ending))
    return [path, *(beside(path, ending) for ending in texts)]


def beside(path: Path, ending: str) -> Path:
    """The path of a file that accompanies the JSON at `path`: `.json` is replaced by another ending, or one is added.

    Only `.json` is replaced, so that `run.v1` and `run.v2` do not share a file.

    Raises:
        UsageError: the JSON's name is that of another kind of file written beside it.
    """
    if path.suffix.lower() in _BESIDE:
        raise UsageError(
            f"A file like {quoted(path.name)} is written beside the JSON; choose a path that ends in .json."
        )
    return path.with_name(path.name.removesuffix(".json") + ending)


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


def _memory(result: Bench) -> Iterator[str]:
    for use in result.memory:
        yield (
            f"Memory, {use.engine} {use.side}: {use.resident / MEBIBYTE:.0f} MiB resident, peak "
            f"{use.peak / MEBIBYTE:.0f} MiB, beyond its size before loading, in a separate process that loads only "
            "what this side decodes with."
        )
    for engine in dict.fromkeys(use.engine for use in result.memory):
        extra = draft_extra(result.memory, engine, "resident")
        if extra is not None:
            yield (
                f"Speculation takes {extra / MEBIBYTE:.0f} MiB more resident memory than plain decoding with "
                f"{engine}; each process holds the target once."
            )


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
        way = f"{cell.engine} {cell.method}"
        yield f"Share of that limit, {way}: {percent(speculative)}; plain decoding beside it: {percent(plain)}."
