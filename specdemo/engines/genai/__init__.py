"""The engine on `openvino_genai`: fast, and shows what GenAI reports of a round or what can be replayed."""

from specdemo.engines.genai.engine import GenAIEngine

__all__ = ["GenAIEngine"]
