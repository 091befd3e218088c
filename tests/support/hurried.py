"""`specdemo` on real engines, measured as briefly as possible: python -m tests.support.hurried COMMAND ..."""

import sys
from functools import partial

from specdemo.cli import main
from specdemo.engines import load_engine
from tests.support import BRIEF

load_briefly = partial(load_engine, thoroughness=BRIEF)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], load=load_briefly))
