"""`specdemo serve` on real engines, in a hurry, which this file's second import makes known to the engine's process."""

import sys

from specdemo.cli import main
from tests import hurry  # noqa: F401 (a setting)

if __name__ == "__main__":
    sys.exit(main(["serve"]))
