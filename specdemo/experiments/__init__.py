"""Experiments: resumable plans, results with confidence intervals, and reports.

`KINDS` are the experiments that the page and the terminal offer in the same way. The sweep is separate: it takes
typed prompts instead of a suite.
"""

from specdemo.experiments import bench, load, variants
from specdemo.experiments.plan import Kind as Kind

KINDS: tuple[Kind, ...] = (bench.KIND, load.KIND, variants.TEMPERATURE, variants.PRECISION)
