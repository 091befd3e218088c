"""Experiments: prompts × settings × repeats → rows → one report with one conclusion."""

from specdemo.experiments.plan import Axes, Plan, Variant, grid
from specdemo.experiments.presets import PRESETS, Preset
from specdemo.experiments.report import (
    Chart,
    Point,
    Report,
    Table,
    beside,
    conclude,
    fastest,
    joined,
    points,
    read_result,
    report,
    times,
    to_html,
    to_markdown,
    write,
)
from specdemo.experiments.rows import Checkpoint, Header, Loaded, Result, Row, run
from specdemo.experiments.suites import Task, chosen_tasks, typed_tasks

__all__ = [
    "PRESETS",
    "Axes",
    "Chart",
    "Checkpoint",
    "Header",
    "Loaded",
    "Plan",
    "Point",
    "Preset",
    "Report",
    "Result",
    "Row",
    "Table",
    "Task",
    "Variant",
    "beside",
    "chosen_tasks",
    "conclude",
    "fastest",
    "grid",
    "joined",
    "points",
    "read_result",
    "report",
    "run",
    "times",
    "to_html",
    "to_markdown",
    "typed_tasks",
    "write",
]
