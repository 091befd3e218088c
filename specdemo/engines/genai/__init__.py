"""The engine on `openvino_genai`: fast, and shows of a round what GenAI lets be seen or replayed."""

from specdemo.engines.genai.engine import GenAIEngine

__all__ = ["GenAIEngine"]
