"""A GGUF file is read as llama.cpp reads it, or refused when it is listed."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai
import pytest

from specdemo.engines.language_model import LanguageModel
from specdemo.engines.text import Tokenizer
from specdemo.errors import GGUFError
from specdemo.files import ASSETS
from specdemo.models.gguf import inspect_gguf
from specdemo.models.gguf_header import read_header
from specdemo.models.gguf_keys import rope_factors
from specdemo.records import Request
from specdemo.settings import GenerationSettings
from tests.support import gguf_files, llama
from tests.support.gguf_files import converted

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
TEXT = "don't! I'LL pay 1234,5 aBc ABc ABC /\n\n  x  y!\n\nEnd of\r\n line?/\n 日本語 ñandú"
MERGES = (
    "' t", "n 't", "t !", "1 2", "12 3", "123 4", "Ġ 1", "4 ,", "a B", "B c", "A B", "AB c", "AB C", "! Ċ", "!Ċ Ċ",
    "Ċ Ċ", "Ġ Ġ", "? /", "?/ Ċ", "/ Ċ", "' L", "'L L", "I 'LL", "Ġ /", "x Ġ", "c Ġ", "č Ċ", "f č",
    "o u", "s e", "Ġ h", "Ġh ou", "h ou", "hou se", "Ġ house", "u s", "us e",
)  # fmt: skip
WORDS = ("Ġhello", "hello", "Ġmoon")  # which no merges make


def tokenizer(file: Path) -> Tokenizer:
    converted(file)
    return Tokenizer(inspect_gguf(file).model_copy(update={"form": "exact"}))


def post(address: str, path: str, **body: Any) -> Any:
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.openvino
@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "smollm", "default", "falcon3"])
def test_text_is_split_and_merged_as_the_file_says(pre: str, tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", pre=pre, merges=MERGES, words=WORDS)
    ours = tokenizer(file)
    with llama.started(file) as address:
        for text in (
            TEXT, "Hi", "hello", "a house", "my house, hellos, hello moon", "moonshine and houses", "", " ",
            "2024 1234567 a\t\tb \n",
        ):  # fmt: skip
            theirs = post(address, "/tokenize", content=text, add_special=True)["tokens"]
            assert ours.encode(text) == theirs, text


@pytest.mark.openvino
def test_bos_starts_a_text_but_not_each_part_of_a_chat(tmp_path: Path) -> None:
    begin = gguf_files.vocabulary().index("<|im_start|>")
    for pre, key in (("smollm", True), ("llama-bpe", False)):
        file = gguf_files.write(tmp_path / f"{pre}.gguf", pre=pre, more={"tokenizer.ggml.add_bos_token": key})
        ours = tokenizer(file)
        assert (ours.encode("Hi")[0] == begin) is key
        chat = ours.encode_prompt(Request.of("Hi", GenerationSettings(apply_chat_template=True)))
        assert chat.count(begin) == 2, "one for each message of the template"


FREQUENCIES = np.geomspace(1, 16, 32).astype(np.float32)
LINEAR: dict[str, float | str] = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
YARN: dict[str, float | str] = LINEAR | {"rope.scaling.type": "yarn", "rope.scaling.original_context_length": 64}


@pytest.mark.openvino
@pytest.mark.parametrize(
    ("more", "divided"), [(LINEAR, False), (YARN, False), ({}, True)], ids=["linear", "yarn", "llama3"]
)
def test_positions_are_scaled_as_in_llama_cpp(more: dict[str, float | str], divided: bool, tmp_path: Path) -> None:
    arrays = gguf_files.weights("llama") | ({"rope_freqs.weight": FREQUENCIES} if divided else {})
    for token, text in enumerate(gguf_files.vocabulary()):
        if not text.isascii():  # llama.cpp's server holds parts of characters back
            arrays["token_embd.weight"][token] = 0
    settings = {f"llama.{key}": value for key, value in more.items()}
    file = gguf_files.write(tmp_path / "tiny.gguf", more=settings, arrays=arrays)
    ids = np.random.default_rng(0).integers(0, 128, 200).tolist()
    with llama.started(file) as address:
        answer = post(address, "/completion", prompt=ids, n_predict=1, n_probs=20, temperature=0)
    theirs = {each["id"]: each["logprob"] for each in answer["completion_probabilities"][0]["top_logprobs"]}
    logits = np.array(LanguageModel(converted(file), "CPU", EXACT).sequence(len(ids)).logits(ids)[-1], np.float64)
    ours = logits - np.log(np.exp(logits).sum())
    apart = [abs(ours[id_] - logprob) for id_, logprob in theirs.items()]
    assert max(apart) < 0.02


def test_the_older_key_of_linear_scaling(tmp_path: Path) -> None:
    old = read_header(gguf_files.write(tmp_path / "old.gguf", more={"llama.rope.scale_linear": 4.0}))
    assert rope_factors(old, 8) == ([0.25] * 4, 1.0)


@pytest.mark.openvino
def test_user_defined_tokens_decode_to_text_and_control_tokens_do_not(tmp_path: Path) -> None:
    ours = tokenizer(gguf_files.write(tmp_path / "tiny.gguf", "qwen3", defined=("<think>", "</think>")))
    tokens = gguf_files.vocabulary(defined=("<think>", "</think>"))
    begin, think, end = (tokens.index(name) for name in ("<|im_start|>", "<think>", "</think>"))
    assert ours.decode([begin, think, 72, end]) == f"<think>{tokens[72]}</think>"
    assert ours.encode("<think>")[-1] == think


@pytest.mark.openvino
def test_long_prompts_are_not_truncated(tmp_path: Path) -> None:
    ours = tokenizer(gguf_files.write(tmp_path / "tiny.gguf", merges=("h e",)))
    assert len(ours.encode("ab" * 10_000)) == 20_000
    with pytest.raises(Exception, match=r"prompt's 20000 tokens and \d+ new ones exceed the model's context of 512"):
        ours.encode_prompt(Request.of("ab" * 10_000, GenerationSettings(apply_chat_template=False)))
    bundled = openvino_genai.Tokenizer(ASSETS / "smollm2-draft")
    assert bundled.encode("1 2 " * 5_000).input_ids.shape[1] > 15_000


def expert(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    arrays["blk.0.ffn_gate_inp.weight"] = np.ones((2, gguf_files.EMBEDDING), np.float32)


def biased(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    arrays["blk.0.attn_q.bias"] = np.ones(gguf_files.EMBEDDING, np.float32)


@pytest.mark.parametrize(
    ("reason", "options", "change"),
    [
        ("has a SentencePiece tokenizer", {"tokenizer": "llama"}, None),
        ("holds no merges for its tokenizer", {"merges": ()}, None),
        ("splits text by the unknown rule 'falcon'", {"pre": "falcon"}, None),
        ("is a mixture of experts", {"more": {"llama.expert_count": 8}}, None),
        ("is a mixture of experts", {}, expert),
        ("has the tensor blk.0.attn_q.bias", {}, biased),
        ("scales positions by 'longrope'", {"more": {"llama.rope.scaling.type": "longrope"}}, None),
        ("applies positions to a part of each head", {"more": {"llama.rope.dimension_count": 32}}, None),
        ("has heads of another size", {"more": {"llama.attention.key_length": 128}}, None),
        ("attends to the last 64 tokens only", {"more": {"llama.attention.sliding_window": 64}}, None),
        ("ends every prompt with an end token", {"more": {"tokenizer.ggml.add_eos_token": True}}, None),
        ("scales activations in a way", {"more": {"llama.logit_scale": 0.5}}, None),
        ("makes embeddings, not text", {"more": {"llama.pooling_type": 1}}, None),
        ("has the setting llama.attention.new_idea", {"more": {"llama.attention.new_idea": 1}}, None),
        ("has the setting tokenizer.ggml.new_idea", {"more": {"tokenizer.ggml.new_idea": "x"}}, None),
    ],
)
def test_files_that_cannot_be_converted_faithfully_are_refused(
    reason: str, options: dict[str, Any], change: Callable[[dict[str, Any]], None] | None, tmp_path: Path
) -> None:
    arrays = gguf_files.weights("llama", tokens=len(gguf_files.vocabulary(options.get("merges", ("a", "b", "c")))))
    if change is not None:
        change(arrays)
    file = gguf_files.write(tmp_path / "tiny.gguf", arrays=arrays, **options)
    with pytest.raises(GGUFError, match=rf"^'tiny.gguf' {reason}.*; choose another file, or export the original"):
        inspect_gguf(file)


@pytest.mark.parametrize(
    "more",
    [
        {"llama.rope.dimension_count": 64, "llama.attention.key_length": 64, "llama.vocab_size": 261},
        {"llama.expert_count": 0, "llama.logit_scale": 1.0, "tokenizer.ggml.add_eos_token": False},
        {"general.author": "somebody", "quantize.imatrix.file": "x.dat", "tokenizer.chat_template.tool_use": "x"},
    ],
)
def test_keys_without_effect_are_accepted(more: dict[str, Any], tmp_path: Path) -> None:
    assert inspect_gguf(gguf_files.write(tmp_path / "tiny.gguf", more=more)).architecture == "llama"


def test_a_merge_without_its_token_is_refused(tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", merges=("h e",))
    file.write_bytes(file.read_bytes().replace(b"h e", b"h z"))
    with pytest.raises(GGUFError, match="is damaged: the merge 'h z' of its tokenizer is not among its tokens"):
        inspect_gguf(file)
