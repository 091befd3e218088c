"""Disable OpenVINO's telemetry: `import openvino` imports its model converter, which reports to Google Analytics.

specdemo contacts other hosts only on request, so it blocks the converter's reporting module, which is optional. Every
package that imports `openvino` imports this first; `import specdemo` alone changes nothing.
"""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
