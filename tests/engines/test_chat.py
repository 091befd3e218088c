"""Chats: templates, earlier turns, and what prefix caching saves, on the bundled pair with a chat template added."""

from contextlib import closing
from pathlib import Path
from typing import Any

import openvino_genai
import pytest

from specdemo.capabilities import EngineName
from specdemo.engines import load_engine, sequences
from specdemo.engines.base import Engine
from specdemo.engines.genai import engine as genai_engine
from specdemo.engines.genai import pipelines
from specdemo.engines.text import Tokenizer, special_patterns
from specdemo.errors import PromptError
from specdemo.racing.race import race
from specdemo.records import SIDES, Comparison, ModelPair, Phase, Request, Slice, Turn
from specdemo.settings import GenerationSettings, RuntimeSettings
from tests.support import BRIEF
from tests.support.folders import chat_pair

pytestmark = pytest.mark.openvino
SETTINGS = GenerationSettings(max_new_tokens=8, ignore_eos=True)
CHUNK = 128  # tokens per chunk, so that a prompt of a few hundred takes several
HISTORY = (Turn(prompt="Who is there?", answer="A fox."),)


def encoded(pair: ModelPair, prompt: str, history: tuple[Turn, ...] = (), **values: Any) -> str:
    tokenizer = Tokenizer(pair.target)
    return tokenizer.decode(
        tokenizer.encode_prompt(Request.of(prompt, SETTINGS.model_copy(update=values), tuple(history)))
    )


def test_a_prompt_is_a_message_if_the_model_has_a_template(tmp_path: Path) -> None:
    pair = chat_pair(tmp_path)
    assert encoded(pair, "Hello") == "<user>Hello\n<assistant>"
    assert encoded(pair, "Hello", apply_chat_template=False) == "Hello"
    assert encoded(pair, "Hello", enable_thinking=False) == "<user>Hello\n<assistant><think></think>"
    assert encoded(pair, "And?", HISTORY) == "<user>Who is there?\n<assistant>A fox.\n<user>And?\n<assistant>"


def test_earlier_turns_need_a_template_that_takes_them(tmp_path: Path) -> None:
    pair = chat_pair(tmp_path)
    with pytest.raises(PromptError, match="need the chat template; switch it on, or start a new"):
        encoded(pair, "And?", HISTORY, apply_chat_template=False)
    assert pair.target.path is not None
    (pair.target.path / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    with pytest.raises(PromptError, match="rejects this chat; switch the template off"):
        encoded(pair, "Hello")


TYPED = "Once <|endoftext|> upon <|endoftext|><|endoftext|>"


def test_typed_special_tokens_are_text_with_and_without_a_template(tmp_path: Path) -> None:
    pair = chat_pair(tmp_path)
    assert pair.target.path is not None
    assert special_patterns(pair.target.path) == [r"(\<\|endoftext\|\>)"]
    tokenizer, history = Tokenizer(pair.target), (Turn(prompt=TYPED, answer=TYPED),)
    special = openvino_genai.Tokenizer(pair.target.path).encode("<|endoftext|>").input_ids.data[0]
    assert len(special) == 1, "OpenVINO makes one of it wherever it stands"
    for request, text in (
        (Request.of(TYPED, SETTINGS.model_copy(update={"apply_chat_template": False})), TYPED),
        (Request.of(TYPED, SETTINGS), f"<user>{TYPED}\n<assistant>"),
        (
            Request.of("\ue000\ue000 And?", SETTINGS, history),
            f"<user>{TYPED}\n<assistant>{TYPED}\n<user>\ue000\ue000 And?\n<assistant>",
        ),
    ):
        ids = tokenizer.encode_prompt(request)
        assert special[0] not in ids
        assert tokenizer.decode(ids) == text, "nothing is lost"
    plain = "Once upon a time <| there |> was <end"
    assert tokenizer.encode_prompt(Request.of(plain, SETTINGS.model_copy(update={"apply_chat_template": False}))) == (
        tokenizer.encode(plain)
    )


def turn(engine: Engine, prompt: str, history: tuple[Turn, ...] = ()) -> tuple[Comparison, list[Phase]]:
    settings = SETTINGS.model_copy(update={"engine": engine.name})
    progress = list(race(engine, prompt, settings, history=history))
    comparison = progress[-1]
    assert isinstance(comparison, Comparison)
    assert [event.side for event in progress if isinstance(event, Slice)][:2] == list(SIDES)
    return comparison, [phase for phase in progress if isinstance(phase, Phase) and phase.name == "prefilling"]


@pytest.mark.parametrize("engine_name", ["genai", "traced"])
def test_a_long_prompt_is_read_in_parts_and_the_next_turn_reads_only_what_is_new(
    engine_name: EngineName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((genai_engine, "PREFILL_CHUNK"), (pipelines, "PREFILL_CHUNK"), (sequences, "CHUNK")):
        monkeypatch.setattr(module, name, CHUNK)
    engine = load_engine(engine_name, chat_pair(tmp_path, enable_prefix_caching=True), thoroughness=BRIEF)
    long = TYPED + " once upon a time there was a fox who" * (2 * CHUNK // 8)
    first, parts = turn(engine, long)
    assert first.plain.token_ids == first.speculative.token_ids, "with typed special tokens, too"
    assert len(parts) >= 2 * 2, "both sides report"
    assert all(0 < part.done <= part.total for part in parts)
    history = (Turn(prompt=long, answer=first.plain.text),)
    second, parts = turn(engine, "And then?", history)
    assert parts == [], "what both sides have read is in the cache"
    assert second.history == history
    engine.close()

    pair = engine.pair.model_copy(update={"runtime": RuntimeSettings(precision="f32")})
    with closing(load_engine(engine_name, pair, thoroughness=BRIEF)) as uncached:
        again, parts = turn(uncached, "And then?", history)
    assert len(parts) >= 2 * 2
    for side in SIDES:
        assert again.side(side).token_ids == second.side(side).token_ids, "a cache changes nothing"
