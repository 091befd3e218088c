"""specdemo: watch plain and speculative decoding of the same model race on your own machine."""

import sys

__version__ = "0.1.0"

# `import openvino` also imports its model converter, which reports that to www.google-analytics.com. Nothing here
# contacts another host, so the converter is denied its reporter, which it can do without.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
