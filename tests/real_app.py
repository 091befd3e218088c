"""`app.py` on real engines, in a hurry: they warm up until they are steady, and repeat a race once.

The engine's process imports this file too, so what is set here holds there.
"""

import runpy

from specdemo.measure import repeats, warm_up
from tests.browser import ROOT

warm_up.COLD_SECONDS = 0
repeats.MOST = 1

if __name__ == "__main__":
    runpy.run_path(str(ROOT / "app.py"), run_name="__main__")
