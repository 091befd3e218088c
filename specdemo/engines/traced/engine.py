"""A pair decoded by our own loop. One compiled target serves both sides; each request has caches of its own."""

from collections.abc import Generator
from contextlib import closing
from functools import partial
from itertools import islice
from time import perf_counter

from specdemo.engines.base import Decoder, steps
from specdemo.engines.language_model import LanguageModel
from specdemo.engines.language_model import Sequence as ModelSequence
from specdemo.engines.tokenizer import Tokenizer, folder_of
from specdemo.engines.traced.decoder import NewPolicy, TracedDecoder
from specdemo.engines.traced.drafters import Drafter, LookupDrafter, ModelDrafter, TranslatingDrafter
from specdemo.environment import describe_environment
from specdemo.errors import PairError, SettingsError
from specdemo.lookahead import policy_for
from specdemo.models.devices import check_device, precision_properties
from specdemo.models.pairs import check_vocabularies
from specdemo.records import Costs, Model, ModelPair
from specdemo.settings import GenerationSettings
from specdemo.verification import Uniform

_CALIBRATION = GenerationSettings(engine="traced", ignore_eos=True, max_new_tokens=64)


class TracedEngine:
    """A loaded pair and its decoders."""

    def __init__(self, pair: ModelPair) -> None:
        """Load target and draft. Models whose tokenizers differ can be paired too, in greedy decoding.

        Raises:
            DeviceError: this machine has no such device.
            LoadError: OpenVINO refused to load a model.
        """
        self.pair = pair
        device, draft_device = pair.runtime.device, pair.runtime.draft_device or pair.runtime.device
        for name in (device, draft_device):
            check_device(name)
        properties = precision_properties(pair.runtime.precision)
        self._tokenizer = Tokenizer(pair.target)
        self._target: LanguageModel | None = LanguageModel(folder_of(pair.target), device, properties)
        self._draft: LanguageModel | None = None
        self._draft_tokenizer: Tokenizer | None = None
        if pair.draft is not None:
            self._draft = LanguageModel(folder_of(pair.draft), draft_device, properties)
            self._draft_tokenizer = _own_tokenizer(self._tokenizer, pair.draft)
            self.pair = pair.model_copy(update={"translated": self._draft_tokenizer is not None})
        self.environment = describe_environment(pair)

    def plain(self) -> Decoder:
        """A decoder of the target alone."""
        return TracedDecoder(self._tokenizer, self._new_target, None)

    def speculative(
        self, settings: GenerationSettings, costs: Costs | None = None, policy: NewPolicy | None = None
    ) -> Decoder:
        """A decoder with the drafter these settings name, and their policy unless another is given.

        Raises:
            PairError: the settings ask for a draft model, and the pair has none.
            SettingsError: they ask to sample with a draft that has another tokenizer, or for the automatic lookahead
                while the step costs are not known.
        """
        if settings.drafter == "model" and self._draft is None:
            raise PairError("This pair has no draft model; give one, or choose prompt lookup.")
        if settings.drafter == "model" and self.pair.translated and settings.do_sample:
            raise SettingsError("A draft with another tokenizer works in greedy decoding only; switch sampling off.")
        policy = policy or partial(policy_for, costs=costs)
        policy(settings)  # complains before anything is started
        return TracedDecoder(self._tokenizer, self._new_target, self._new_drafter, policy)

    def pass_seconds(self, prompt: str, tokens: int) -> Generator[float]:
        """Seconds of target passes that verify so many tokens, again and again at the same text."""
        text = self._tokenizer.encode(prompt)
        sequence = self._new_target(len(text) + tokens, _CALIBRATION)
        longer = [*text, *(text * tokens)[:tokens]]
        sequence.logits(text)
        while True:
            began = perf_counter()
            sequence.logits(longer, tokens)
            yield perf_counter() - began

    def count_tokens(self, text: str) -> int:
        """Number of the target's tokens that this text is."""
        return len(self._tokenizer.encode(text))

    def draft_seconds(self, prompt: str, lookahead: int) -> list[float]:
        """Seconds that the draft takes for so many proposals, round after round."""
        if self._draft is None or self.pair.translated:  # a proposal is then not one step
            return []
        settings = _CALIBRATION.model_copy(update={"num_assistant_tokens": lookahead})
        with closing(steps(self.speculative(settings), prompt, settings)) as rounds:
            return [
                step.draft_seconds
                for step in islice(rounds, 1, None)
                if step.draft_seconds is not None and step.proposed and len(step.proposed) == lookahead
            ]

    def close(self) -> None:
        """Free all models."""
        self._target = self._draft = None

    def _new_target(self, capacity: int, settings: GenerationSettings) -> ModelSequence:
        assert self._target is not None, "a closed engine decodes nothing"
        return self._target.sequence(capacity, kv_cache=settings.kv_cache == "on")

    def _new_drafter(self, capacity: int, settings: GenerationSettings, random: Uniform) -> Drafter:
        assert self._target is not None, "a closed engine decodes nothing"
        if settings.drafter == "lookup":
            return LookupDrafter(self._target.vocabulary, settings)
        assert self._draft is not None, "checked when the decoder was made"
        sequence = self._draft.sequence(capacity, kv_cache=settings.kv_cache == "on")
        context = self.pair.draft.context_length if self.pair.draft is not None else None
        drafter = ModelDrafter(sequence, self._target.vocabulary, context, settings, random)
        if self._draft_tokenizer is None:
            return drafter
        return TranslatingDrafter(drafter, self._draft_tokenizer, self._tokenizer)


def _own_tokenizer(target: Tokenizer, draft: Model) -> Tokenizer | None:
    """The draft's tokenizer if it is not the target's."""
    tokenizer = Tokenizer(draft)
    try:
        check_vocabularies(target.vocabulary(), tokenizer.vocabulary())
    except PairError:
        return tokenizer
    return None
