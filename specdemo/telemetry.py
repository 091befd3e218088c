"""Disable OpenVINO's telemetry: `import openvino` imports its model converter, which reports to Google Analytics.

The reporting module is optional, so it is blocked. Every package that imports `openvino` imports this first.
"""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
