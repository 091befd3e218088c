"""Running models: tokenizers, sequences with a KV cache, EAGLE-3 heads."""

import specdemo.telemetry  # noqa: F401 (before `openvino`)
