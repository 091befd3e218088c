"""Experiments: a plan whose rows resume, a result with intervals, a conclusion and a report; every kind of them.

`KINDS` are those that page and terminal offer in the same way. The sweep is one more, which page and terminal offer
for prompts that are typed.
"""

from specdemo.experiments import bench, load, variants
from specdemo.experiments.plan import Kind as Kind

KINDS: tuple[Kind, ...] = (bench.KIND, load.KIND, variants.TEMPERATURE, variants.PRECISION)
