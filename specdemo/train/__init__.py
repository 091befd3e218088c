"""A draft for a target that has none: text, labels, training, export, report. Needs PyTorch.

Only the command `train-draft` imports it.
"""

import specdemo.telemetry  # noqa: F401 (before `openvino`)
