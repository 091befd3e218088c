"""OpenVINO's telemetry, off: `import openvino` imports its model converter, which reports to Google Analytics.

Nothing here contacts another host unless it is asked to, so the converter is denied its reporter, which it can do
without. Every package that imports `openvino` imports this first; `import specdemo` alone changes nothing.
"""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
