"""Model pairs: their locations, whether they are complete, and whether they fit each other and this machine.

`engines` and everything above it may import this.
"""

import sys

# `import openvino` imports its model converter, which reports to Google Analytics unless the reporter is missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
