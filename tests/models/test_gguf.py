"""GGUF files: what is read of them, what is refused, and their conversion."""

import json
import shutil
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
import openvino
import pytest
from openvino import opset13 as opset

from specdemo.cli import main
from specdemo.engines.language_model import LanguageModel
from specdemo.errors import ConversionError, GGUFError, LoadError, UnknownNameError
from specdemo.models import convert
from specdemo.models import converted as conversion
from specdemo.models.checks import check_pair
from specdemo.models.convert import join_products, store_as_int8
from specdemo.models.converted import (
    convert_gguf,
    convert_here,
    converted_folder,
    file_digest,
    folder_of,
    is_converted,
)
from specdemo.models.gguf import inspect_gguf, read_header
from specdemo.models.library import library, resolve
from specdemo.models.pairs import bundled_models, pair_of
from specdemo.settings import RuntimeSettings, WeightsForm
from tests.support import gguf_files
from tests.support.hurried import load_briefly

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
TOKENS = [72, 105, 33, 10, 84, 104, 101, 32, 111, 108, 100, 32, 107, 105, 110, 103]
FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the user's, and a cache of our own."""
    for name in ("SPECDEMO_MODELS", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "specdemo" / "gguf"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return gguf_files.write(tmp_path / "tiny.gguf", "llama", "Q8_0")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_tells_what_it_holds(family: str, tmp_path: Path) -> None:
    model = inspect_gguf(gguf_files.write(tmp_path / "tiny.gguf", family, "Q8_0", chat=family != "qwen2"))
    matrices = [array for array in gguf_files.weights(family).values() if array.ndim > 1]
    assert (model.name, model.architecture, model.weights) == ("tiny.gguf", family, "Q8_0")
    assert model.parameters == sum(array.size for array in matrices)
    assert (model.context_length, model.vocabulary) == (gguf_files.CONTEXT, len(gguf_files.vocabulary()))
    assert (model.chat_template, model.detokenizer) == (family != "qwen2", True)
    vectors = sum(array.nbytes for array in gguf_files.weights(family).values() if array.ndim == 1)
    assert model.weight_bytes == model.parameters * 34 // 32 + vectors


def test_weights_that_are_cut_short(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-40_000])
    with pytest.raises(GGUFError, match=rf"'tiny.gguf' has {len(whole) - 40_000} of \d+ bytes and is incomplete"):
        inspect_gguf(file)


@pytest.mark.parametrize("content", [b"", b"GGML\x03\x00\x00\x00", b"PK\x03\x04" + bytes(100)])
def test_what_is_no_gguf_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "other.gguf"
    file.write_bytes(content)
    with pytest.raises(GGUFError, match=r"'other.gguf' is not a readable GGUF file; choose another file"):
        inspect_gguf(file)


def test_families_that_are_not_read(tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "phi.gguf", architecture="phi3")
    with pytest.raises(GGUFError, match=r"'phi.gguf' has the phi3 architecture.* one of llama, qwen2, qwen3"):
        inspect_gguf(file)


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_K"])
def test_quantisations_that_are_not_read(kind: str, tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", kind=kind)
    with pytest.raises(GGUFError, match=rf"'tiny.gguf' holds {kind} tensors, .* choose a file quantized as"):
        inspect_gguf(file)


def test_one_of_several_parts(tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "tiny-00001-of-00002.gguf", more={"split.count": 2})
    with pytest.raises(GGUFError, match="one of several parts; join them with llama-gguf-split"):
        inspect_gguf(file)


def test_a_file_is_a_model_wherever_one_is_named(file: Path, tmp_path: Path) -> None:
    assert resolve(str(file)) == inspect_gguf(file)
    assert resolve(str(file.parent)) == inspect_gguf(file), "the only file in its folder"
    models = tmp_path / "models"
    (models / "org" / "repository").mkdir(parents=True)
    shutil.copy(file, models / "mine.gguf")
    gguf_files.write(models / "org" / "repository" / "tiny.gguf", "qwen2", "Q8_0")
    (models / "bad.gguf").write_bytes(b"GGUF")
    (models / "mmproj-tiny.gguf").write_bytes(b"GGUF")
    found = library(models)
    assert {"mine.gguf", "org/repository/tiny.gguf"} < {model.name for model in found.models}
    assert [unusable.name for unusable in found.unusable] == ["bad.gguf"]
    assert resolve("mine.gguf", models).path == models / "mine.gguf"
    with pytest.raises(UnknownNameError, match=r"'bad.gguf' cannot be used: 'bad.gguf' is incomplete"):
        resolve("bad.gguf", models)


@pytest.mark.parametrize(("name", "meant"), [("qwn3", "qwen3-8b"), ("story-pair/targt", "story-pair/target")])
def test_an_unknown_name_is_compared_with_others(name: str, meant: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"^Unknown model '{name}'. Did you mean {meant}\?$"):
        resolve(name)


def test_a_pairs_name_is_none_of_a_model() -> None:
    with pytest.raises(UnknownNameError) as refused:
        resolve("qwen3-8b")
    assert str(refused.value) == (
        "'qwen3-8b' is a pair of the catalogue, whose target is 'OpenVINO/Qwen3-8B-int4-ov'; "
        "'specdemo models info qwen3-8b' says how to get it."
    )
    with pytest.raises(UnknownNameError, match="whose target is 'story-pair/target'"):
        resolve("story-pair")


def test_before_it_is_converted(file: Path) -> None:
    model = inspect_gguf(file)
    assert not is_converted(model)
    with pytest.raises(LoadError, match=r"'tiny.gguf' is not converted yet"):
        folder_of(model)
    report = check_pair(model, bundled_models()[1])
    assert (report.fits, report.same_tokenizer) == (True, None)
    assert "is converted when it is first used" in (report.reason or "")


def test_a_digest_is_computed_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = file_digest(file)
    monkeypatch.setattr("hashlib.file_digest", None)
    assert file_digest(file) == digest
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(TypeError):
        file_digest(file)


def converted(file: Path) -> Path:
    """The folder that a file is converted to."""
    assert all(seconds > 0 for seconds in convert_gguf(file, "exact"))
    return place_of(file)


def converted_here(file: Path, form: WeightsForm = "exact") -> Path:
    """The same, without a process for each."""
    scratch = file.with_suffix(f".{form}")
    scratch.mkdir(exist_ok=True)
    conversion.conversions().mkdir(parents=True, exist_ok=True)
    convert_here(file, scratch, form)
    return place_of(file, form)


def place_of(file: Path, form: WeightsForm = "exact") -> Path:
    folder = converted_folder(file, form)
    assert folder is not None
    return folder


@pytest.mark.openvino
def test_a_file_is_converted_once(file: Path, cache: Path) -> None:
    before = file.read_bytes()
    folder = converted(file)
    assert folder.name.startswith(file_digest(file))
    assert {path.name for path in cache.iterdir()} == {folder.name, "digests"}
    assert (file.read_bytes(), [path.name for path in file.parent.glob("*.*")]) == (before, ["tiny.gguf"])
    assert list(convert_gguf(file, "exact")) == []
    copy = Path(shutil.copy(file, file.with_name("copy.gguf")))
    stamp = folder.stat().st_mtime_ns
    assert converted(copy) == folder
    assert folder.stat().st_mtime_ns == stamp, "the same content is not converted again"


@pytest.mark.openvino
def test_a_conversion_that_is_broken_off_leaves_nothing(file: Path, cache: Path) -> None:
    seconds = convert_gguf(file, "exact")
    assert isinstance(seconds, Generator)
    with closing(seconds):
        next(seconds)
    assert not [path.name for path in cache.iterdir() if path.name != "digests"]
    assert converted_folder(file, "exact") is None


@pytest.mark.openvino
def test_what_the_reader_refuses_is_one_sentence(tmp_path: Path, cache: Path) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", "llama", "Q8_0")
    header = read_header(file)
    missing = next(tensor for tensor in header.tensors if tensor.name == "blk.1.ffn_down.weight")
    file.write_bytes(file.read_bytes().replace(missing.name.encode(), b"blk.9.ffn_down.weight"))
    with pytest.raises(
        ConversionError, match=r"could not read 'tiny.gguf' \(its last message: .*\); choose another file"
    ):
        list(convert_gguf(file, "exact"))
    assert not [path.name for path in cache.iterdir() if path.name != "digests"]


@pytest.mark.openvino
@pytest.mark.parametrize(("family", "engine"), [*((family, "genai") for family in FAMILIES), (FAMILIES[0], "traced")])
def test_every_family_is_compared(
    family: str, engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", family, "Q8_0")
    options = ["--drafter", "lookup", "--engine", engine, "--max-new-tokens", "24", "--ignore-eos", "--json", "-"]
    assert main(["compare", "Hi", "--target", str(file), *options], load=load_briefly) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["pair"]["name"], told["pair"]["target"]["architecture"]) == ("tiny.gguf", family)
    assert len(told["plain"]["token_ids"]) == len(told["speculative"]["token_ids"]) == 24
    assert_configured(file, family)


def assert_configured(file: Path, family: str) -> None:
    """What its file says stands in the conversion's configuration."""
    folder = folder_of(inspect_gguf(file))
    written = json.loads((folder / "config.json").read_text())
    expected = {
        "model_type": family, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": gguf_files.head_size(family), "max_position_embeddings": 512,
        "rope_theta": 10_000, "vocab_size": 261, "tie_word_embeddings": True,
        "bos_token_id": 259, "eos_token_id": 260,
    }  # fmt: skip
    assert {key: written[key] for key in expected} == expected
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [260]


@pytest.mark.openvino
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0"])
def test_quantized_weights_mean_what_llama_cpp_says_they_do(kind: str, tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", "llama", kind)
    plain = gguf_files.write(tmp_path / "plain.gguf", "llama", "F16", arrays=gguf_files.read(file))
    exact, int8 = (logits(converted_here(file, form)) for form in get_args(WeightsForm))
    theirs = logits(converted_here(plain))
    assert np.corrcoef(exact.ravel(), theirs.ravel())[0, 1] > 0.9995
    assert np.corrcoef(int8.ravel(), theirs.ravel())[0, 1] > 0.999
    assert np.array_equal(exact, int8) == (kind in ("Q8_0", "Q6_K")), "eight bits stay as they are"


def logits(folder: Path) -> np.ndarray[Any, Any]:
    """Logits at every position of a text, and of a step behind it."""
    sequence = LanguageModel(folder, "CPU", EXACT).sequence(len(TOKENS) + 1)
    return np.vstack([sequence.logits(TOKENS), sequence.logits([44])])


@pytest.mark.openvino
@pytest.mark.parametrize(("family", "kind"), [("qwen2", "F32"), ("qwen3", "BF16")])
def test_wide_weights_are_converted_as_halves(family: str, kind: str, tmp_path: Path) -> None:
    wide = gguf_files.write(tmp_path / "wide.gguf", family, kind)
    halves = gguf_files.write(tmp_path / "halves.gguf", family, "F16", arrays=gguf_files.read(wide))
    weights = [(converted_here(file) / "openvino_model.bin").read_bytes() for file in (wide, halves)]
    assert weights[0] == weights[1]


def products(folder: Path) -> int:
    """Products with weights: those of the positions are not transposed."""
    nodes = openvino.Core().read_model(folder / "openvino_model.xml").get_ordered_ops()
    return sum(node.get_type_name() == "MatMul" and bool(node.get_attributes()["transpose_b"]) for node in nodes)


@pytest.mark.openvino
@pytest.mark.parametrize(
    ("family", "kind"), [("llama", "Q4_1"), ("llama", "Q6_K"), ("qwen2", "F16"), ("qwen3", "Q8_0")]
)
def test_joined_products_compute_the_same(
    family: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", family, kind)
    joined = converted_here(file)
    ours, count = logits(joined), products(joined)
    monkeypatch.setattr(convert, "join_products", lambda model: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    apart = converted_here(file)
    assert apart != joined
    assert products(apart) - count == 3 * gguf_files.LAYERS, "q, k and v are one product, gate and up another"
    assert np.array_equal(ours, logits(apart))


@pytest.mark.openvino
def test_only_weights_that_are_stored_alike_are_joined() -> None:
    random = np.random.default_rng(0)
    x = opset.parameter([-1, 32], openvino.Type.f32)
    whole = [random.normal(size=(rows, 32)).astype(np.float32) for rows in (8, 16, 8)]
    plain = [opset.matmul(x, opset.constant(weights), False, True) for weights in whole[:2]]
    half = opset.convert(opset.constant(whole[2].astype(np.float16)), openvino.Type.f32)
    results = [*plain, opset.matmul(x, half, False, True)]
    model = openvino.Model([opset.result(node) for node in results], [x])
    join_products(model)
    products = [node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul"]
    assert len(products) == 2
    request = openvino.Core().compile_model(model, "CPU", EXACT).create_infer_request()
    given = random.normal(size=(3, 32)).astype(np.float32)
    found = list(request.infer([given]).values())
    for place, weights in enumerate(whole):
        assert np.allclose(found[place], given @ weights.T, atol=1e-2)
        assert found[place].shape == (3, len(weights))


@pytest.mark.parametrize(("columns", "size"), [(64, 64), (96, 32), (40, 40)])
def test_groups_of_int8_divide_a_row(columns: int, size: int) -> None:
    weights = np.random.default_rng(0).normal(size=(5, columns)).astype(np.float32)
    x = opset.parameter([-1, columns], openvino.Type.f32)
    model = openvino.Model([opset.result(opset.matmul(x, opset.constant(weights), False, True))], [x])
    store_as_int8(model)
    nodes = model.get_ordered_ops()
    (stored,) = (node for node in nodes if node.get_output_element_type(0) == openvino.Type.i8)
    assert tuple(stored.get_output_shape(0)) == (5, columns // size, size)


@pytest.mark.openvino
@pytest.mark.parametrize(("fast", "form"), [(True, "int8"), (False, "exact")])
def test_the_processor_decides_on_the_form(
    fast: bool, form: WeightsForm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "multiplies_int8", lambda: fast)
    model = inspect_gguf(gguf_files.write(tmp_path / "tiny.gguf", "llama", "Q4_1"))
    target = pair_of(model, runtime=RuntimeSettings()).target
    assert conversion.form_of(target) == form
    assert "this processor" in (conversion.stored_form(target) or "")
    other: WeightsForm = "exact" if fast else "int8"
    given = pair_of(model, runtime=RuntimeSettings(weights=other)).target
    folder = converted_here(tmp_path / "tiny.gguf", other)
    assert folder_of(given) == folder
    assert conversion.stored_form(given) == f"{'exact weights' if fast else 'int8 in groups of 64'} (as set)"
    assert not is_converted(target), "the other form is none of this one"
