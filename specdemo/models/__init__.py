"""Model pairs: where they are, whether they are complete, and whether they fit each other and this machine. Engines
and all above them import this.
"""

import sys

# `import openvino` imports its model converter, which reports to Google Analytics unless the reporter is missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
