"""specdemo from Python: the measurements of the page and the terminal, for scripts and notebooks.

    import specdemo

    with specdemo.load("story-pair") as pair:
        run = specdemo.compare(pair, "Once upon a time there was a fox who", num_assistant_tokens=3)
        print(run.speedup)

Pairs and their measurements are in `pairs`, results in `runs`; `specdemo` itself exports all of these names.
"""

from specdemo.api.pairs import LiveRound as LiveRound
from specdemo.api.pairs import LiveRun as LiveRun
from specdemo.api.pairs import Pair as Pair
from specdemo.api.pairs import compare as compare
from specdemo.api.pairs import experiment as experiment
from specdemo.api.pairs import load as load
from specdemo.api.runs import Experiment as Experiment
from specdemo.api.runs import Run as Run
from specdemo.api.runs import open_run as open_run
