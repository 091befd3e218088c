"""Model pairs: where they are, whether they are complete, and whether they fit each other and this machine."""

import specdemo.telemetry  # noqa: F401 (before `openvino`)
