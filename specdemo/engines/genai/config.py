"""A request as `openvino_genai.GenerationConfig`, and the pipeline that decodes it."""

from typing import Literal

import openvino_genai

from specdemo.decoding import fields
from specdemo.records import Request
from specdemo.strategies import Lookup, Plain, Strategy

Kind = Literal["plain", "model", "lookup"]
"""What a pipeline decodes with: the target alone, a draft model, or prompt lookup."""


def kind_of(strategy: Strategy) -> Kind:
    """The pipeline that decodes this way."""
    if isinstance(strategy, Plain):
        return "plain"
    return "lookup" if isinstance(strategy, Lookup) else "model"


def generation_config(
    pipeline: openvino_genai.ContinuousBatchingPipeline, request: Request
) -> openvino_genai.GenerationConfig:
    """The request for the pipeline of its kind; end-of-text tokens are the model's own."""
    config = pipeline.get_config()
    for name, value in fields.genai(request).items():
        setattr(config, name, value)
    return config
