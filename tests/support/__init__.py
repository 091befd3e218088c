import math

from specdemo.engines.base import Thoroughness

BRIEF = Thoroughness(
    repetition_seconds=0, steady=1, cold_seconds=0, repeats=1, fixed_lengths=False, load_seconds=math.inf
)
"""One measurement of each kind: for simulated clocks, and for runs whose figures nobody reads."""
