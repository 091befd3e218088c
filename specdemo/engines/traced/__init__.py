"""The engine on `openvino` alone: our own draft/verify loop, which sees every proposal and every probability."""

from specdemo.engines.traced.engine import TracedEngine

__all__ = ["TracedEngine"]
