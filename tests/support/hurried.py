"""`specdemo` on real engines that measure as little as possible: python -m tests.support.hurried COMMAND ..."""

import sys

from specdemo.capabilities import EngineName
from specdemo.cli import main
from specdemo.engines import load_engine
from specdemo.engines.base import Engine
from specdemo.records import ModelPair, Side
from tests.support import BRIEF
from tests.support.step_costs import remember_costs


def load_briefly(name: EngineName, pair: ModelPair, side: Side | None = None) -> Engine:
    remember_costs(pair, name)
    return load_engine(name, pair, side, thoroughness=BRIEF)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], load=load_briefly))
