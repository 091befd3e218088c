"""Tokenizers, and the text of tokens as they arrive.

A byte-level token can end in the middle of a character. The character belongs to the token that completes it, so the
texts of all tokens join to the text of the run. A special token that a user types is text, but OpenVINO's tokenizers
turn `<|im_start|>` into a control token anywhere. Texts are therefore split inside of these, and encoded in parts.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from xml.etree import ElementTree

import openvino_genai

from specdemo.engines.base import check_prompt
from specdemo.errors import LoadError, PromptError
from specdemo.models.checks import check_vocabularies, constants_of, load_tokenizer
from specdemo.models.converted import folder_of
from specdemo.records import Model, Request

Decode = Callable[[list[int]], str]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 8  # tokens before the new ones: enough for detokenizers that treat a leading space specially


class IncrementalText:
    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        """Start after `context`, usually the prompt; its text is not returned."""
        self._decode = decode
        self._window = list(context[-_CONTEXT:])
        self._before = decode(self._window)

    def push(self, token: int) -> str:
        """Add a token and return the text it completes; empty while a character is incomplete."""
        self._window.append(token)
        text = self._decode(self._window)
        if text[len(self._before) :].endswith(REPLACEMENT):
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._decode(self._window))

    def pending(self) -> str:
        return self._decode(self._window)[len(self._before) :]

    def _advance(self, text: str) -> str:
        new, self._before = text[len(self._before) :], text
        if len(self._window) > 2 * _CONTEXT:
            del self._window[:-_CONTEXT]
            self._before = self._decode(self._window)
        return new


def token_texts(decode: Decode, context: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """Return each token's text after `context`; partial characters become U+FFFD, special tokens are empty."""
    text = IncrementalText(decode, context)
    return [text.push(token) or text.pending() for token in tokens]


_MARK = "\ue000"  # marks cuts while a chat template is applied


class Tokenizer:
    def __init__(self, model: Model) -> None:
        self._model, self._tokenizer = model, load_tokenizer(model)
        settings = folder_of(model) / "generation_config.json"
        try:
            self._settings = openvino_genai.GenerationConfig(*[settings] * settings.is_file())
        except RuntimeError as error:
            message = f"{settings.name} of {model.name!r} cannot be read"
            raise LoadError.of(error, message, "correct it, or delete it") from error

    def encode_prompt(self, request: Request) -> list[int]:
        """Return a prompt's ids; a `PromptError` if it is empty, no valid text, or leaves no room for new tokens."""
        check_prompt(request)
        chat = request.apply_chat_template and bool(self._tokenizer.chat_template)
        if (request.history or request.system_prompt) and not chat:
            raise PromptError(
                "Earlier turns and system prompts need the chat template; switch it on, or start a new chat without."
            )
        ids = self._encode_chat(request) if chat else self._encode_text(request.prompt)
        limit = self._model.context_length
        if not ids:
            raise PromptError("The model has no token for this prompt; enter another text.")
        if limit is not None and len(ids) + request.max_new_tokens > limit:
            raise PromptError(
                f"The prompt's {len(ids)} tokens and {request.max_new_tokens} new ones exceed the model's "
                f"context of {limit}; shorten the prompt or ask for fewer tokens."
            )
        return ids

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a text; `special`: preceded by the special tokens that the model expects."""
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=special).input_ids.data[0]]

    def _encode_text(self, text: str) -> list[int]:
        first, *others = self._split_special(text)
        return self.encode(first) + [token for part in others for token in self.encode(part, special=False)]

    def _encode_chat(self, request: Request) -> list[int]:
        """Return the ids of a chat; special tokens come from the template only, not from messages."""
        chat = request.messages
        runs = [run for message in chat for run in re.findall(f"{_MARK}*", message["content"])]
        mark = _MARK * (1 + max(map(len, runs)))
        for message in chat:
            message["content"] = mark.join(self._split_special(message["content"]))
        thinking = {"enable_thinking": request.enable_thinking}
        try:
            text = self._tokenizer.apply_chat_template(chat, True, extra_context=thinking)
        except RuntimeError as error:
            raise PromptError("The model's chat template rejects this chat; switch the template off.") from error
        return [token for part in text.split(mark) for token in self.encode(part, special=False)]

    def _split_special(self, text: str) -> list[str]:
        special = self._special
        if special is None:
            return [text]
        parts, start = [], 0
        for match in special.finditer(text):
            token = match[0].strip()
            if len(token) > 1:
                end = text.index(token, match.start()) + 1
                parts.append(text[start:end])
                start = end
        return [*parts, text[start:]]

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        patterns = special_patterns(folder_of(self._model))
        try:
            return re.compile("|".join(patterns)) if patterns else None
        except re.error:  # OpenVINO's expressions are not Python's
            return None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; bytes that form no character become U+FFFD."""
        return str(self._tokenizer.decode(list(ids))) if ids else ""

    def check_fits(self, draft: "Tokenizer") -> None:
        """Raise a `PairError` unless a draft's tokenizer gives tokens the same meaning."""
        check_vocabularies(self._tokenizer.get_vocab(), draft._tokenizer.get_vocab())

    def eos_ids(self) -> frozenset[int]:
        """Return the end-of-text ids from the model's generation config, else from its tokenizer."""
        ids = {self._settings.eos_token_id, *self._settings.stop_token_ids}
        return frozenset(ids - {-1}) or frozenset({self._tokenizer.get_eos_token_id()})


def special_patterns(folder: Path) -> list[str]:
    """Return the regular expressions by which the tokenizer in a folder splits off special tokens."""
    root = ElementTree.parse(folder / "openvino_tokenizer.xml").getroot()
    constants = [data.attrib for data in constants_of(root, ("SpecialTokensSplit",))]
    content = (folder / "openvino_tokenizer.bin").read_bytes()
    return [content[int(data["offset"]) :][: int(data["size"])].decode() for data in constants]
