"""Results in Python: figures, files, tables, and HTML views in notebooks."""

import json
import re
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from specdemo import estimate, metrics
from specdemo.errors import UsageError, quoted
from specdemo.estimate import Speedup
from specdemo.experiments import Report, Result, report, to_html, to_markdown, write
from specdemo.exports import schema
from specdemo.exports.html import FILE_KINDS
from specdemo.files import colours, json_text, read_bytes, write_bytes, write_json
from specdemo.presentation.charts import (
    acceptance_figure,
    clock_figure,
    confidence_figure,
    lookahead_figure,
    timeline,
)
from specdemo.records import SIDES, Comparison
from specdemo.summary import summarise

_MOST_BYTES = 2**26
_HEIGHT = 640  # pixels of a replay or a report in a notebook

FIGURES: dict[str, Callable[[Comparison], go.Figure]] = {
    "clock": lambda comparison: _clock(comparison),
    "acceptance": lambda comparison: _acceptance(comparison),
    "timeline": lambda comparison: timeline(comparison.speculative),
    "confidence": lambda comparison: confidence_figure(comparison.speculative),
    "lookahead": lookahead_figure,
}
"""Figures of a comparison by name."""


class Run:
    """A finished comparison of plain and speculative decoding. `comparison` is the complete record."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    @property
    def speedup(self) -> Speedup | None:
        """Plain seconds / speculative seconds for the same number of new tokens, with a 95 % interval.

        Estimated from the timed steps of the race and its repeats; None if a side is too short.
        """
        return estimate.of_comparison(self.comparison)

    @property
    def acceptance_rate(self) -> float | None:
        """α: accepted / proposed, over rounds whose proposals are known."""
        return metrics.acceptance_rate(self.comparison.speculative)

    @property
    def mean_acceptance_length(self) -> float | None:
        """τ: committed tokens / target passes."""
        return metrics.mean_accepted_length(self.comparison.speculative)

    @property
    def identical(self) -> bool:
        """True if both sides wrote the same tokens, up to the end of the shorter one."""
        return metrics.identical(self.comparison)

    @property
    def text(self) -> str:
        """Text of the speculative side."""
        return self.comparison.speculative.text

    def figure(self, name: str) -> go.Figure:
        """Return a Plotly figure: clock, acceptance, timeline, confidence or lookahead.

        Raises:
            UsageError: there is no figure of this name.
        """
        if name not in FIGURES:
            raise UsageError(f"There is no figure {quoted(name)}; choose from {', '.join(FIGURES)}.")
        return coloured(FIGURES[name](self.comparison))

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as the object of schema 2 that `--json` writes."""
        return schema.to_json(self.comparison)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the comparison as JSON; with a path, also write it to a file.

        Raises:
            SpecdemoError: the file cannot be written.
        """
        if path is not None:
            write_json(self.to_dict(), path)
        return json_text(self.to_dict())

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with one row per round and side; round 0 is the prefill.

        Raises:
            UsageError: pandas is not installed.
        """
        rows = [
            {
                "side": side,
                "round": number,
                "seconds": step.seconds,
                "proposed": None if step.proposed is None else len(step.proposed),
                "accepted": step.accepted if number and side == "speculative" else 0,
                "committed": len(step.committed),
                "text": "".join(token.text for token in step.committed),
                "draft_seconds": step.draft_seconds,
                "verify_seconds": step.verify_seconds,
            }
            for side in SIDES
            for number, step in enumerate((self.comparison.side(side).prefill, *self.comparison.side(side).rounds))
        ]
        return frame(rows)

    def save(self, path: str | Path) -> Path:
        """Write a file of the kind given by its suffix: .html, .gif, .png or .json.

        Raises:
            UsageError: the suffix is none of these.
            SpecdemoError: the file cannot be written.
        """
        path = Path(path)
        kind = path.suffix.lower().removeprefix(".")
        if kind == "json":
            self.to_json(path)
        elif kind in FILE_KINDS:
            write_bytes(FILE_KINDS[kind].make(self.comparison), path)
        else:
            raise UsageError(f"A run cannot be saved as {quoted(path.name)}; end it in .html, .gif, .png or .json.")
        return path

    def __str__(self) -> str:
        """Return the conclusion and every figure, without formulas."""
        found = summarise(self.comparison)
        rows = ((figure.name, figure.plain, figure.speculative) for figure in found.figures)
        lines = (f"  {name}: {' | '.join(filter(None, values))}" for name, *values in rows)
        return "\n".join([f"{found.headline} ({self.comparison.pair.name})", *lines])

    def __repr__(self) -> str:
        return f"<Run: {summarise(self.comparison).headline}>"

    def _repr_html_(self) -> str:
        """Return the replay, in a frame of its own that sends no requests."""
        return framed(FILE_KINDS["html"].make(self.comparison).decode())


def open_run(path: str | Path) -> Run:
    """Read a run from a JSON file written by the page, the terminal or `Run.to_json`.

    Raises:
        FileError: the file cannot be read, or is not a comparison.
    """
    text = read_bytes(Path(path), _MOST_BYTES, "a JSON file of a comparison")
    return Run(schema.from_text(text, "choose another file"))


class Experiment:
    """A measurement. `result` is the complete record, `report` its presentation."""

    def __init__(self, result: Result) -> None:
        self.result = result

    @property
    def report(self) -> Report:
        """Result as sentences, tables and charts."""
        return report(self.result)

    @property
    def conclusion(self) -> str:
        """First sentence of the report."""
        return next(iter(self.report.opening), "")

    def figure(self, name: str) -> go.Figure:
        """Return one of the report's Plotly figures.

        Raises:
            UsageError: there is no figure of this name.
        """
        charts = self.report.charts
        if name not in charts:
            raise UsageError(f"There is no figure {quoted(name)}; choose from {', '.join(charts)}.")
        return coloured(charts[name].figure)

    def to_dict(self) -> Mapping[str, Any]:
        """Return everything measured and derived, JSON-serialisable."""
        return self.report.data()

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the data as JSON; with a path, also write it to a file, with tables and an HTML report next to it.

        Raises:
            SpecdemoError: a file cannot be written.
        """
        if path is not None:
            write(self.report, Path(path))
        return json_text(self.to_dict())

    def to_frame(self) -> Any:
        """Return the first table as a `pandas.DataFrame`, with unrounded figures.

        Raises:
            UsageError: pandas is not installed.
        """
        return frame([dict(row) for row in self.report.figures])

    def __str__(self) -> str:
        """Return the report as Markdown."""
        return to_markdown(self.report)

    def __repr__(self) -> str:
        return f"<Experiment: {self.conclusion}>"

    def _repr_html_(self) -> str:
        """Return the report in a frame of its own."""
        return framed(to_html(self.report))


def frame(rows: list[dict[str, Any]]) -> Any:
    """Return rows as a `pandas.DataFrame`.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise UsageError("Tables need pandas, which is not installed; run: pip install pandas") from error
    return pandas.DataFrame(rows)


def framed(page: str) -> str:
    """Return a page in an inline frame, which isolates its styles and scripts."""
    return (
        f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts allow-downloads" '
        f'style="width: 100%; height: {_HEIGHT}px; border: 0"></iframe>'
    )


def coloured(figure: go.Figure) -> go.Figure:
    """Replace style sheet variables in a figure with the page's colours."""
    values = colours()
    text = re.sub(r"var\(--sd-([\w-]+)\)", lambda name: values[name[1]], json.dumps(figure.to_plotly_json()))
    return go.Figure(json.loads(text))


def _clock(comparison: Comparison) -> go.Figure:
    """Plot committed tokens over each side's own clock."""
    figure = go.Figure(json.loads(clock_figure()))
    for trace, side in zip(figure.data, SIDES, strict=True):
        run = comparison.side(side)
        seconds, tokens = 0.0, len(run.prefill.committed)
        x, y = [seconds], [tokens]
        for step in run.rounds:
            seconds, tokens = seconds + step.seconds, tokens + len(step.committed)
            x.append(seconds)
            y.append(tokens)
        trace.update(x=x, y=y)
    return figure.update_layout(height=360, showlegend=True)


def _acceptance(comparison: Comparison) -> go.Figure:
    """Plot each round's proposals, accepted and not, with the running α."""
    figure = go.Figure(json.loads(acceptance_figure()))
    rounds = comparison.speculative.rounds
    numbers = list(range(1, len(rounds) + 1))
    accepted, refused, alpha, _ = figure.data
    accepted.update(x=numbers, y=[step.accepted for step in rounds])
    refused.update(x=numbers, y=[max(len(step.proposed or ()) - step.accepted, 0) for step in rounds])
    alpha.update(x=numbers, y=metrics.running_acceptance(rounds))
    return go.Figure(figure.data[:3], figure.layout).update_layout(height=360, showlegend=True)
