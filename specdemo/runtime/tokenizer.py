"""A model's own tokenizer and detokenizer, as OpenVINO runs them."""

from collections.abc import Sequence

import openvino_genai

from specdemo.errors import LoadError, PromptError
from specdemo.models.converted import folder_of
from specdemo.models.vocabulary import check_tokenizers
from specdemo.records import Model, Request
from specdemo.runtime.prompt import check_prompt, messages


class Tokenizer:
    """Text to ids and back."""

    def __init__(self, model: Model) -> None:
        """Load the tokenizer of a model's folder.

        Raises:
            LoadError: OpenVINO refused it.
        """
        self._model = model
        try:
            self._tokenizer = openvino_genai.Tokenizer(folder_of(model))
        except RuntimeError as error:
            raise LoadError(f"OpenVINO cannot load the tokenizer of {model.name!r}; export it again.") from error

    def encode_prompt(self, request: Request) -> list[int]:
        """Ids of a request's prompt, checked to leave room for its new tokens.

        With a chat template, the prompt is a message after those of earlier turns.

        Raises:
            PromptError: it is empty, no text, or too long.
        """
        check_prompt(request)
        chat = request.apply_chat_template and bool(self._tokenizer.chat_template)
        if request.history and not chat:
            raise PromptError("Earlier turns need the chat template; switch it on, or start a new chat.")
        ids = self._encode_chat(request) if chat else self.encode(request.prompt)
        limit = self._model.context_length
        if not ids:
            raise PromptError("The model has no token for this prompt; enter another text.")
        if limit is not None and len(ids) + request.max_new_tokens > limit:
            raise PromptError(
                f"The prompt's {len(ids)} tokens and {request.max_new_tokens} new ones exceed the model's "
                f"context of {limit}; shorten the prompt or ask for fewer tokens."
            )
        return ids

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with the special tokens the model expects before it."""
        return [int(token) for token in self._tokenizer.encode(text).input_ids.data[0]]

    def _encode_chat(self, request: Request) -> list[int]:
        thinking = {"enable_thinking": request.enable_thinking}
        try:
            text = self._tokenizer.apply_chat_template(messages(request), True, extra_context=thinking)
        except RuntimeError as error:
            raise PromptError("The model's chat template refuses this chat; switch the template off.") from error
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False).input_ids.data[0]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; bytes that form no character become U+FFFD."""
        return str(self._tokenizer.decode(list(ids))) if ids else ""

    def check_fits(self, draft: "Tokenizer") -> None:
        """Check that the proposals of a draft with that tokenizer mean the same here.

        Raises:
            PairError: it does not.
        """
        check_tokenizers(self._tokenizer, draft._tokenizer)

    def ends(self) -> frozenset[int]:
        """Ids that end a text, by the model's generation settings, else by its tokenizer."""
        settings = folder_of(self._model) / "generation_config.json"
        config = openvino_genai.GenerationConfig(settings) if settings.is_file() else None
        ids = {config.eos_token_id, *config.stop_token_ids} if config is not None else set()
        return frozenset(ids - {-1}) or frozenset({self._tokenizer.get_eos_token_id()})
