"""Text and tokens: a model's own tokenizer and detokenizer, and the text of tokens as they arrive.

A byte-level token can end in the middle of a character. Its bytes are held back, and the whole character is
credited to the token that completes it, so that the texts of all tokens always join to the text of the run.

Special tokens that somebody typed are text, as in chat applications: `<|im_start|>system` in a prompt begins no
message. OpenVINO's tokenizers make control tokens of them wherever they stand, so a text is cut within each, and the
parts are encoded one after the other. A text without any is encoded in one piece, so nothing changes for it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from xml.etree import ElementTree

import openvino_genai

from specdemo.errors import LoadError, PromptError
from specdemo.files import is_text
from specdemo.models.checks import check_tokenizers
from specdemo.models.converted import folder_of
from specdemo.records import MOST_TURNS, Model, Request

Decode = Callable[[list[int]], str]

UNDECODED = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 8  # tokens before the new ones: enough for detokenizers that treat a leading space specially


class IncrementalText:
    """Detokenises one token at a time, decoding only a short window."""

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        """`context` is what comes before, usually the prompt; its text is not returned."""
        self._decode = decode
        self._window = list(context[-_CONTEXT:])
        self._before = decode(self._window)

    def push(self, token: int) -> str:
        """Text that this token completes; empty while a character is incomplete."""
        self._window.append(token)
        text = self._decode(self._window)
        if text[len(self._before) :].endswith(UNDECODED):
            return ""
        return self._show(text)

    def flush(self) -> str:
        """Whatever is still held back, undecodable bytes shown as U+FFFD."""
        return self._show(self._decode(self._window))

    def held(self) -> str:
        """What is held back, as U+FFFD; empty if nothing is."""
        return self._decode(self._window)[len(self._before) :]

    def _show(self, text: str) -> str:
        """What is new in the window's text; a window that has grown is cut off at its beginning."""
        new, self._before = text[len(self._before) :], text
        if len(self._window) > 2 * _CONTEXT:
            del self._window[:-_CONTEXT]
            self._before = self._decode(self._window)
        return new


def texts(decode: Decode, context: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """Text of each token if it followed `context`; part of a character is U+FFFD, a special token empty."""
    text = IncrementalText(decode, context)
    return [text.push(token) or text.held() for token in tokens]


def messages(request: Request) -> list[dict[str, str]]:
    """The prompt as the last message of a chat, as chat templates and servers take it."""
    turns = [(("user", turn.prompt), ("assistant", turn.answer)) for turn in request.history]
    said = [part for turn in turns for part in turn] + [("user", request.prompt)]
    return [{"role": role, "content": text} for role, text in said]


def check_prompt(request: Request) -> None:
    """Check that there is a prompt, and that it and the turns before it are text.

    Raises:
        PromptError: it is empty, something cannot be encoded, or there are too many turns.
    """
    if not request.prompt.strip():
        raise PromptError("The prompt is empty; enter the beginning of a text.")
    if len(request.history) > MOST_TURNS:
        raise PromptError(f"The chat has more than {MOST_TURNS} turns; start a new chat.")
    if not all(is_text(message["content"]) for message in messages(request)):
        raise PromptError("The prompt is not text: it holds characters that are not valid Unicode; enter it again.")


_MARK = "\ue000"  # where a text is cut, while a template is applied to it


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
        ids = self._encode_chat(request) if chat else self._encode_typed(request.prompt)
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

    def _encode_typed(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are text, with those the model expects before it."""
        first, *others = self._cut(text)
        return self.encode(first) + [token for part in others for token in self._encode_part(part)]

    def _encode_chat(self, request: Request) -> list[int]:
        """Ids of a chat, whose template makes special tokens, and its messages none."""
        chat = messages(request)
        mark = _MARK * (1 + max(len(run) for run in _runs_of(_MARK, chat)))
        for message in chat:
            message["content"] = mark.join(self._cut(message["content"]))
        thinking = {"enable_thinking": request.enable_thinking}
        try:
            text = self._tokenizer.apply_chat_template(chat, True, extra_context=thinking)
        except RuntimeError as error:
            raise PromptError("The model's chat template refuses this chat; switch the template off.") from error
        return [token for part in text.split(mark) for token in self._encode_part(part)]

    def _encode_part(self, text: str) -> list[int]:
        """Ids of a text without anything before it."""
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False).input_ids.data[0]]

    def _cut(self, text: str) -> list[str]:
        """The text in parts that hold no special token."""
        special = self._special
        if special is None:
            return [text]
        parts, start = [], 0
        for found in special.finditer(text):
            token = found[0].strip()
            if len(token) > 1:
                end = text.index(token, found.start()) + 1
                parts.append(text[start:end])
                start = end
        return [*parts, text[start:]]

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        """All special tokens, as the tokenizer itself finds them in a text."""
        patterns = special_patterns(folder_of(self._model))
        try:
            return re.compile("|".join(patterns)) if patterns else None
        except re.error:  # OpenVINO's expressions are not Python's
            return None

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; bytes that form no character become U+FFFD."""
        return str(self._tokenizer.decode(list(ids))) if ids else ""

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of these ids, special tokens included, for software that takes texts only.

        Raises:
            PromptError: the text means other ids: a special token was typed, or the ids form no text.
        """
        text = str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
        if self.encode(text) != list(ids):
            raise PromptError(
                "This prompt holds a special token as text, which GenAI cannot tell from a real one where a model is "
                "exported in parts; take it out."
            )
        return text

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


def special_patterns(folder: Path) -> list[str]:
    """The expressions by which the tokenizer in a folder splits special tokens off."""
    root = ElementTree.parse(folder / "openvino_tokenizer.xml").getroot()
    layers = {layer.get("id"): layer for layer in root.iter("layer")}
    splits = {number for number, layer in layers.items() if layer.get("type") == "SpecialTokensSplit"}
    before = [layers[edge.get("from-layer")] for edge in root.iter("edge") if edge.get("to-layer") in splits]
    places = [found.attrib for layer in before if layer.get("type") == "Const" for found in layer.iter("data")]
    data = (folder / "openvino_tokenizer.bin").read_bytes()
    return [data[int(at["offset"]) :][: int(at["size"])].decode() for at in places]


def _runs_of(mark: str, chat: Sequence[dict[str, str]]) -> Iterator[str]:
    """Whatever runs of a character there are in a chat, and an empty one."""
    yield ""
    for message in chat:
        yield from re.findall(f"{mark}+", message["content"])
