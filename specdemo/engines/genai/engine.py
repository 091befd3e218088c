"""A pair decoded by `openvino_genai`.

Speed is bound by reading weights from memory, which is why a target pass over several tokens costs little
more than a pass over one, and why speculation can pay at all.
"""

from statistics import fmean, median

from specdemo.engines.base import Decoder
from specdemo.engines.genai.config import generation_config
from specdemo.engines.genai.decoder import GenAIDecoder
from specdemo.engines.genai.pipelines import Pipelines
from specdemo.environment import describe_environment
from specdemo.records import ModelPair
from specdemo.settings import GenerationSettings


class GenAIEngine:
    """A loaded pair and its decoders."""

    def __init__(self, pair: ModelPair) -> None:
        """Check that the pair can work; load its target.

        Raises:
            SpecdemoError: what `Pipelines` raises.
        """
        self.pair = pair
        self.pipelines = Pipelines(pair)
        self.environment = describe_environment(pair)

    def plain(self) -> Decoder:
        """A decoder of the target alone."""
        return GenAIDecoder(self.pipelines, "plain")

    def speculative(self, settings: GenerationSettings) -> Decoder:
        """A decoder with the drafter these settings name.

        Raises:
            PairError: the pair has no draft, and the settings ask for one.
        """
        if settings.drafter == "model":
            self.pipelines.require_draft()
        return GenAIDecoder(self.pipelines, settings.drafter)

    def draft_step_seconds(self, prompt: str, settings: GenerationSettings) -> float | None:
        """Median over rounds of the draft's seconds / its steps, by the counters that come with `generate()`."""
        if self.pair.draft is None:
            return None
        pipeline = self.pipelines.get("model")
        config = generation_config(pipeline, "model", settings)
        result = pipeline.generate([self.pipelines.tokenizer.encode(prompt).input_ids], [config])[0]
        counters = result.extended_perf_metrics
        microseconds = list(counters.draft_model_metrics.raw_metrics.m_durations)[1:]  # the first is the prefill
        steps = settings.num_assistant_tokens
        rounds = (microseconds[i : i + steps] for i in range(0, len(microseconds) - steps + 1, steps))
        return median(fmean(batch) for batch in rounds) / 1e6

    def close(self) -> None:
        """Free all models."""
        self.pipelines.clear()
