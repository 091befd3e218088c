import json
import os
import shutil
from collections import namedtuple
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openvino
import openvino_genai
import pytest
from openvino import opset13 as ops

from specdemo.cli import main
from specdemo.engines.language_model import LanguageModel
from specdemo.engines.text import Tokenizer
from specdemo.errors import FetchError, GGUFError, LoadError, ModelError
from specdemo.files import ASSETS
from specdemo.models import converted as conversion
from specdemo.models import gguf, gguf_weights
from specdemo.models.catalogue import bundled_models, pair_of
from specdemo.models.checks import check_pair
from specdemo.models.converted import convert_gguf, converted_folder, file_digest, folder_of, is_converted
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import inspect_gguf, inspect_model
from specdemo.models.gguf_convert import configuration, generation_config
from specdemo.models.gguf_header import BLOCKS, read_header
from specdemo.models.gguf_keys import position_scale
from specdemo.models.gguf_weights import Weights
from specdemo.models.library import library
from specdemo.records import Request
from specdemo.settings import GenerationSettings, RuntimeSettings, WeightsForm
from tests.support import gguf_files, llama, mutants
from tests.support.gguf_files import converted
from tests.support.hurried import load_briefly

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"
}  # fmt: skip
TOKENS = [72, 105, 33, 10, 84, 104, 101, 32, 111, 108, 100, 32, 107, 105, 110, 103]
FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_is_described_by_its_header(family: str, tmp_path: Path) -> None:
    model = inspect_gguf(gguf_files.write(tmp_path / "tiny.gguf", family, "Q8_0", chat=family != "qwen2"))
    matrices = [array for array in gguf_files.weights(family).values() if array.ndim > 1]
    assert (model.name, model.architecture, model.weights) == ("tiny.gguf", family, "Q8_0")
    assert model.parameters == sum(array.size for array in matrices)
    assert (model.context_length, model.vocabulary) == (gguf_files.CONTEXT, len(gguf_files.vocabulary()))
    assert model.chat_template is (family != "qwen2")
    vectors = sum(array.nbytes for array in gguf_files.weights(family).values() if array.ndim == 1)
    assert model.weight_bytes == model.parameters * 34 // 32 + vectors


def test_unreadable_files_are_refused_with_the_reason(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    cut = rf"'tiny.gguf' has {len(whole) - 40_000} of \d+ bytes and is incomplete"
    for content, reason in (
        (whole[:-40_000], cut),
        (b"", "is not a GGUF file; give one"),
        (b"PK\x03\x04" + bytes(100), "is not a GGUF file; give one"),
    ):
        file.write_bytes(content)
        with pytest.raises(GGUFError, match=reason):
            inspect_gguf(file)
    phi = gguf_files.write(tmp_path / "phi.gguf", architecture="phi3")
    with pytest.raises(GGUFError, match=r"'phi.gguf' has the phi3 architecture.* one of llama, qwen2, qwen3"):
        inspect_gguf(phi)
    part = gguf_files.write(tmp_path / "tiny-00001-of-00002.gguf", more={"split.count": 2})
    with pytest.raises(GGUFError, match="one of several parts; join them with llama-gguf-split"):
        inspect_gguf(part)


def test_a_file_before_its_conversion(file: Path) -> None:
    model = inspect_gguf(file)
    assert not is_converted(model)
    with pytest.raises(LoadError, match=r"'tiny.gguf' is not converted yet"):
        folder_of(model)
    report = check_pair(model, bundled_models()[1])
    assert (report.fits, report.same_tokenizer) == (True, None)
    assert "is converted when it is first used" in (report.reason or "")


@pytest.mark.openvino
def test_a_file_is_converted_once_and_a_broken_conversion_leaves_nothing(file: Path) -> None:
    before, cache = file.read_bytes(), conversion.conversions()
    seconds = convert_gguf(file, "exact")
    assert isinstance(seconds, Generator)
    with closing(seconds):
        next(seconds)
    assert not [path.name for path in cache.iterdir() if path.name != "digests"]
    assert converted_folder(file, "exact") is None
    assert all(0 <= share <= 1 for share in convert_gguf(file, "exact"))
    folder = converted_folder(file, "exact")
    assert folder is not None
    assert folder.name.startswith(file_digest(file))
    assert {path.name for path in cache.iterdir()} == {folder.name, "digests"}
    assert (file.read_bytes(), [path.name for path in file.parent.glob("*.*")]) == (before, ["tiny.gguf"])
    stamp = folder.stat().st_mtime_ns
    assert converted(Path(shutil.copy(file, file.with_name("copy.gguf")))) == folder
    assert folder.stat().st_mtime_ns == stamp, "the same content is not converted again"


@pytest.mark.openvino
def test_a_damaged_conversion_is_made_again(file: Path) -> None:
    folder = converted(file)
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for damaged in (None, content[:-1], b""):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            assert converted_folder(file, "exact") is None
        path.write_bytes(content)
        assert converted_folder(file, "exact") == folder
    path.unlink()
    assert converted(file) == folder
    inspect_folder(folder)
    (digest,) = (conversion.conversions() / "digests").iterdir()
    digest.write_text("")
    assert converted(file) == folder


def test_a_disk_that_fills_up_during_a_conversion_is_called_full(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    full = r"may need \d+ kB, but .* has only 7 bytes free; free some space"

    def store(*_: object) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage(7))
        raise RuntimeError("iostream error")

    monkeypatch.setattr("specdemo.models.gguf_convert.store", store)
    with pytest.raises(FetchError, match=rf"^The disk is full\. .* {full}") as raised:
        converted(file)
    assert raised.value.cause == "RuntimeError: iostream error"
    with pytest.raises(FetchError, match=rf"^The conversion of 'tiny.gguf' {full}"):
        list(convert_gguf(file, "exact"))


@pytest.mark.openvino
def test_a_failure_of_the_conversion_is_one_sentence(tmp_path: Path) -> None:
    arrays = gguf_files.weights("llama")
    arrays["blk.1.ffn_down.weight"] = arrays["blk.1.ffn_down.weight"][:128]
    file = gguf_files.write(tmp_path / "tiny.gguf", arrays=arrays)
    with pytest.raises(FetchError, match=r"^'tiny.gguf' cannot be converted; choose another file\.$") as raised:
        list(convert_gguf(file, "exact"))
    assert "shape" in raised.value.cause
    assert not [path.name for path in conversion.conversions().iterdir() if path.name != "digests"]


@pytest.mark.openvino
@pytest.mark.parametrize(("family", "engine"), [("llama", "genai"), ("qwen2", "traced"), ("qwen3", "genai")])
def test_every_family_is_compared(
    family: str, engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", family, "Q8_0")
    options = ["--drafter", "lookup", "--engine", engine, "--max-new-tokens", "8", "--ignore-eos", "--json", "-"]
    assert main(["compare", "Hi", "--target", str(file), *options], load=load_briefly) == 0
    comparison = json.loads(capfd.readouterr().out)
    assert (comparison["pair"]["name"], comparison["pair"]["target"]["architecture"]) == ("tiny.gguf", family)
    assert len(comparison["plain"]["token_ids"]) == len(comparison["speculative"]["token_ids"]) == 8
    folder = folder_of(inspect_gguf(file))
    written = json.loads((folder / "config.json").read_text())
    expected = {
        "model_type": family, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": gguf_files.head_size(family), "max_position_embeddings": 512,
        "vocab_size": 261,
    }  # fmt: skip
    assert {key: written[key] for key in expected} == expected
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [260]


@pytest.mark.openvino
@pytest.mark.parametrize("kind", BLOCKS)
def test_every_kind_of_weights_is_what_its_package_unpacks(kind: str, tmp_path: Path) -> None:
    vectors = kind if kind in ("F16", "BF16") else "F32"
    file, name = gguf_files.write(tmp_path / "tiny.gguf", "qwen2", kind, vectors=vectors), "blk.0.attn_q"
    unpacked, header = gguf_files.read(file), read_header(file)
    rows, inputs = np.arange(9), np.random.default_rng(0).normal(size=(1, 3, 256)).astype(np.float32)
    product = inputs @ unpacked[f"{name}.weight"].T + unpacked[f"{name}.bias"]
    expected = [unpacked["token_embd.weight"][rows], product]
    forms: dict[WeightsForm, float] = {"exact": 5e-4, "int4": 0.01, "int8": 0.01, "fast": 0.2}
    for form, tolerance in forms.items():
        weights = Weights(file, header, form, lambda _: None)
        ids, values = ops.parameter([-1], np.int64), ops.parameter([1, -1, 256], np.float32)
        embedded = ops.gather(weights.embedding(), ids, ops.constant(np.int64(0))).output(0)
        network = openvino.Model([embedded, *weights.products(values.output(0), [name])], [ids, values])
        outputs = openvino.compile_model(network, "CPU", EXACT)([rows, inputs])
        for ours, theirs in zip(outputs.values(), expected, strict=True):
            assert np.abs(ours - theirs).max() < tolerance * np.abs(theirs).max(), form


@pytest.mark.openvino
def test_4_bit_weights_keep_their_size(tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", "llama", "Q4_K")
    sizes = ((converted(file, form) / "openvino_model.bin").stat().st_size for form in ("fast", "int4", "int8"))
    fast, four, eight = sizes
    assert fast < 0.9 * four < 0.81 * eight


def logits(folder: Path) -> np.ndarray[Any, Any]:
    sequence = LanguageModel(folder, "CPU", EXACT).sequence(len(TOKENS) + 1)
    return np.vstack([sequence.logits(TOKENS), sequence.logits([44])])


@pytest.mark.openvino
@pytest.mark.parametrize("shared", [True, False])
def test_a_large_head_is_read_in_4_bits_and_its_likeliest_rows_again(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = gguf_files.weights("llama")
    if not shared:
        arrays["output.weight"] = gguf_files.weights("llama", seed=1)["token_embd.weight"]
    file = gguf_files.write(tmp_path / "tiny.gguf", "llama", "Q8_0", arrays=arrays)
    whole = logits(folder := converted(file, "int8"))
    shutil.rmtree(folder)
    monkeypatch.setattr(gguf_weights, "_ROUGH_HEAD_THRESHOLD", 0)
    rough = logits(converted(file, "int8"))
    likely = whole >= np.sort(whole)[:, -32:-31]  # well within the 64 that are computed in full
    np.testing.assert_allclose(rough[likely], whole[likely], atol=1e-5)
    error = np.abs(rough - whole)[~likely]
    assert 0.02 < np.median(error) < error.max() < 0.2 * np.abs(whole).max()


@pytest.mark.openvino
def test_a_missing_bias_is_zero(tmp_path: Path) -> None:
    arrays = gguf_files.weights("qwen2")
    zero = gguf_files.write(
        tmp_path / "zero.gguf", "qwen2", arrays=arrays | {"blk.0.attn_k.bias": np.zeros(128, "f4")}
    )
    del arrays["blk.0.attn_k.bias"]
    none = gguf_files.write(tmp_path / "none.gguf", "qwen2", arrays=arrays)
    assert np.array_equal(logits(converted(zero)), logits(converted(none)))


@pytest.mark.openvino
def test_the_processor_decides_on_the_form(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = pair_of(inspect_gguf(file), runtime=RuntimeSettings()).target
    given = pair_of(inspect_gguf(file), runtime=RuntimeSettings(weights="exact")).target
    folder = converted(file, "exact")
    monkeypatch.setattr(conversion, "multiplies_int8", lambda: False)
    assert folder_of(target) == folder_of(given) == folder
    assert conversion.stored_form(target) == "exact weights (this processor does not multiply int8)"
    monkeypatch.setattr(conversion, "multiplies_int8", lambda: True)
    assert folder_of(given) == folder
    assert conversion.stored_form(given) == "exact weights"
    assert conversion.form_of(target) == "int8"
    assert not is_converted(target), "the other form is none of this one"


@pytest.mark.parametrize(
    ("weights", "parameters", "form"),
    [("auto", 4e8, "fast"), ("auto", 4e8 - 1, "int8"), ("exact", 4e8, "exact"), ("int8", 4e8, "int8")],
)
def test_a_large_draft_is_in_4_bits_unless_weights_are_set(
    weights: Weights, parameters: float, form: WeightsForm, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "multiplies_int8", lambda: True)
    model = inspect_gguf(file).model_copy(update={"parameters": int(parameters)})
    draft = pair_of(model, model, runtime=RuntimeSettings(weights=weights)).draft
    assert draft is not None
    assert conversion.form_of(draft) == form
    folder = model.model_copy(update={"path": file.parent})
    assert conversion.as_draft(folder) == folder, "it is no file that is converted"


def test_any_file_is_read_or_refused(tmp_path: Path) -> None:
    for place, content in enumerate(mutants.mutants(600)):
        file = tmp_path / f"{place}.gguf"
        file.write_bytes(content)
        try:
            model = inspect_gguf(file)
            header = read_header(file)
            json.dumps(
                [configuration(header), generation_config(header), json.loads(model.model_dump_json())],
                allow_nan=False,
            )
        except GGUFError as error:
            if len(str(error)) >= 1000 or not str(error).endswith("."):
                pytest.fail(str(error))


def test_a_refusal_is_cached_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mutant.gguf"
    file.write_bytes(mutants.SEEDS["no tensors"])
    with pytest.raises(GGUFError) as first:
        inspect_gguf(file)
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "read_header", None)
        with pytest.raises(GGUFError) as second:
            inspect_gguf(file)
    assert str(first.value) == str(second.value)
    file.write_bytes(mutants.header())
    assert inspect_gguf(file).vocabulary == 4


def test_no_file_stops_a_listing(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for place, content in enumerate(mutants.SEEDS.values()):
        (models / f"{place}.gguf").write_bytes(content)
    (models / "good.gguf").write_bytes(mutants.header())
    (models / os.fsdecode(b"\xff.gguf")).write_bytes(mutants.header())
    (models / "dangling.gguf").symlink_to(tmp_path / "nothing")
    os.mkfifo(models / "pipe.gguf")
    found = library(models)
    assert "good.gguf" in [model.name for model in found.models]
    assert len(found.unusable) == len(mutants.SEEDS) + 3
    assert "is not a model" in next(each.reason for each in found.unusable if each.name == "pipe.gguf")
    assert json.loads(found.model_dump_json())


def test_a_bug_in_the_reader_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.gguf").write_bytes(mutants.header())

    def fails(path: Path) -> None:
        raise TypeError(path)

    monkeypatch.setattr(gguf, "inspect_gguf", fails)
    with pytest.raises(ModelError, match=r"'good.gguf' cannot be read \(TypeError\); choose another model"):
        inspect_model(tmp_path / "good.gguf")


# A file is read as llama.cpp reads it, or refused.

TEXT = "don't! I'LL pay 1234,5 aBc ABc ABC /\n\n  x  y!\n\nEnd of\r\n line?/\n 日本語 ñandú"
MERGES = (
    "' t", "n 't", "t !", "1 2", "12 3", "123 4", "Ġ 1", "4 ,", "a B", "B c", "A B", "AB c", "AB C", "! Ċ", "!Ċ Ċ",
    "Ċ Ċ", "Ġ Ġ", "? /", "?/ Ċ", "/ Ċ", "' L", "'L L", "I 'LL", "Ġ /", "x Ġ", "c Ġ", "č Ċ", "f č",
    "o u", "s e", "Ġ h", "Ġh ou", "h ou", "hou se", "Ġ house", "u s", "us e",
)  # fmt: skip
WHOLE = ("Ġhello", "hello", "Ġmoon")  # no merges make these


def tokenizer(file: Path) -> Tokenizer:
    converted(file)
    return Tokenizer(inspect_gguf(file).model_copy(update={"form": "exact"}))


def post(address: str, path: str, **body: Any) -> Any:
    return httpx.post(address + path, json=body, timeout=60).raise_for_status().json()


@pytest.mark.openvino
@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "smollm", "default", "falcon3"])
def test_text_is_split_and_merged_as_the_file_says(pre: str, tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", pre=pre, merges=MERGES, words=WHOLE)
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


@pytest.mark.openvino
@pytest.mark.parametrize(("more", "divided"), [(LINEAR, False), ({}, True)], ids=["linear", "llama3"])
def test_positions_are_scaled_as_in_llama_cpp(more: dict[str, float | str], divided: bool, tmp_path: Path) -> None:
    arrays = gguf_files.weights("llama") | ({"rope_freqs.weight": FREQUENCIES} if divided else {})
    for token, text in enumerate(gguf_files.vocabulary()):
        if not text.isascii():  # llama.cpp's server withholds parts of characters
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
    assert max(apart) < 0.005


def test_the_older_key_of_linear_scaling(tmp_path: Path) -> None:
    old = read_header(gguf_files.write(tmp_path / "old.gguf", more={"llama.rope.scale_linear": 4.0}))
    assert position_scale(old) == 0.25


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
    ids = ours.encode("ab" * 10_000)
    assert len(ids) == 20_000
    with pytest.raises(Exception, match=r"prompt's 20000 tokens and \d+ new ones exceed the model's context of 512"):
        ours.encode_prompt(Request.of("ab" * 10_000, GenerationSettings(apply_chat_template=False)))
    link = tmp_path / "as-genai-saves-it" / "model.gguf"
    link.parent.mkdir()
    gguf_files.write(link, "llama", "Q8_0", merges=("h e",))
    openvino_genai.LLMPipeline(link, "CPU", enable_save_ov_model=True)
    saved = inspect_folder(link.parent)
    assert openvino_genai.Tokenizer(link.parent).encode("ab" * 10_000).input_ids.shape[1] == 8192
    assert Tokenizer(saved).encode("ab" * 10_000) == ids
    bundled = openvino_genai.Tokenizer(ASSETS / "smollm2-draft")
    assert bundled.encode("1 2 " * 5_000).input_ids.shape[1] > 15_000


@pytest.mark.parametrize(
    ("reason", "options", "tensor"),
    [
        ("has a SentencePiece tokenizer", {"tokenizer": "llama"}, None),
        ("holds no merges for its tokenizer", {"merges": ()}, None),
        ("splits text by the unknown rule 'falcon'", {"pre": "falcon"}, None),
        (r"is a mixture of experts \(llama.expert_count 8\)", {"more": {"llama.expert_count": 8}}, None),
        ("has the tensor blk.0.ffn_gate_inp.weight", {}, "blk.0.ffn_gate_inp.weight"),
        ("has the tensor blk.0.attn_q.bias", {}, "blk.0.attn_q.bias"),
        ("scales positions by 'yarn'", {"more": {"llama.rope.scaling.type": "yarn"}}, None),
        ("applies positions to a part of each head", {"more": {"llama.rope.dimension_count": 32}}, None),
        ("has heads of another size", {"more": {"llama.attention.key_length": 128}}, None),
        ("attends to the last 64 tokens only", {"more": {"llama.attention.sliding_window": 64}}, None),
        ("has the setting tokenizer.ggml.add_eos_token True", {"more": {"tokenizer.ggml.add_eos_token": True}}, None),
        ("has the setting llama.logit_scale 0.5", {"more": {"llama.logit_scale": 0.5}}, None),
        ("has the setting llama.attention.new_idea", {"more": {"llama.attention.new_idea": 1}}, None),
        ("has the setting tokenizer.ggml.new_idea", {"more": {"tokenizer.ggml.new_idea": "x"}}, None),
    ],
)
def test_files_that_cannot_be_converted_faithfully_are_refused(
    reason: str, options: dict[str, Any], tensor: str | None, tmp_path: Path
) -> None:
    arrays = gguf_files.weights("llama", tokens=len(gguf_files.vocabulary(options.get("merges", ("a", "b", "c")))))
    if tensor is not None:
        arrays[tensor] = np.ones((2, 256) if tensor.endswith("weight") else 256, np.float32)
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
        converted(file)
