"""`app.py` on real engines, which warm up no longer than until they are steady: for tests that are not about speed.

The engine's process imports this file too, so what is set here holds there.
"""

import runpy

from specdemo.measure import warm_up
from tests.browser import ROOT

warm_up.COLD_SECONDS = 0

if __name__ == "__main__":
    runpy.run_path(str(ROOT / "app.py"), run_name="__main__")
