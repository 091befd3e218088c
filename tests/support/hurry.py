"""No test is about speed: engines warm up until they are steady and no longer, and what is measured is so briefly.

They decode in one thread on any core: several test processes share the cores, where two threads would wait for each
other, and OpenVINO would pin all the single ones to the same core. What runs engines in tests imports this, and so do
the engines' processes.
"""

from specdemo.measure import other_load, step_costs, trials, warm_up
from specdemo.models import devices

devices.ON_CPU |= {"INFERENCE_NUM_THREADS": "1", "ENABLE_CPU_PINNING": "NO"}
warm_up.COLD_SECONDS = 0
warm_up.REPETITION_SECONDS = 0
warm_up.STEADY = 1
trials.MOST_REPEATS = 1
step_costs.VISITS = 1
step_costs.REPEATS = 1
other_load.LEAST_SECONDS = float("inf")  # what else runs on a machine that tests is no part of any result
