"""`specdemo serve` on real engines in a hurry; their process imports this file again."""

import sys

from specdemo.cli import main
from tests import hurry  # noqa: F401 (a setting)

if __name__ == "__main__":
    sys.exit(main(["serve"]))
