"""Experiments: resumable plans, results with confidence intervals, and reports.

`KINDS` are the experiments that the page and the terminal offer in the same way. The sweep is separate: it takes
typed prompts instead of a suite.
"""

from specdemo.experiments import bench, load, variants
from specdemo.experiments.against import read_bench, report_against
from specdemo.experiments.bench_result import Bench
from specdemo.experiments.checkpoint import Checkpoint, Header
from specdemo.experiments.plan import Extras, Kind, Option, Plan, Result, never, run, run_with_extras
from specdemo.experiments.report import Line, Report, Table, beside, speedup_lines, to_html, to_markdown, write
from specdemo.experiments.suites import Task, chosen_tasks
from specdemo.experiments.sweep import LOOKAHEADS, REPEATS, THRESHOLDS, SweepPlan, candidates, prompts_as_tasks, sweep
from specdemo.experiments.sweep_result import Candidate, Sweep, curves, within_error

__all__ = [
    "KINDS",
    "LOOKAHEADS",
    "REPEATS",
    "THRESHOLDS",
    "Bench",
    "Candidate",
    "Checkpoint",
    "Extras",
    "Header",
    "Kind",
    "Line",
    "Option",
    "Plan",
    "Report",
    "Result",
    "Sweep",
    "SweepPlan",
    "Table",
    "Task",
    "beside",
    "candidates",
    "chosen_tasks",
    "curves",
    "never",
    "prompts_as_tasks",
    "read_bench",
    "report_against",
    "run",
    "run_with_extras",
    "speedup_lines",
    "sweep",
    "to_html",
    "to_markdown",
    "within_error",
    "write",
]

KINDS: tuple[Kind, ...] = (bench.KIND, load.KIND, variants.TEMPERATURE, variants.PRECISION)
