"""`specdemo` on real engines in a hurry; its engines' processes import this file again.

python -m tests.support.hurried COMMAND ...
"""

import sys

from specdemo.cli import main
from tests.support import hurry  # noqa: F401 (a setting)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
