import json
import shutil
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as opset

from specdemo.cli import main
from specdemo.engines.language_model import LanguageModel
from specdemo.errors import FetchError, GGUFError, LoadError
from specdemo.models import converted as conversion
from specdemo.models.catalogue import bundled_models, pair_of
from specdemo.models.checks import check_pair
from specdemo.models.convert import store_as_int8
from specdemo.models.converted import convert_gguf, converted_folder, file_digest, folder_of, is_converted
from specdemo.models.gguf import inspect_gguf
from specdemo.settings import RuntimeSettings
from tests.support import gguf_files
from tests.support.gguf_files import converted
from tests.support.hurried import load_briefly

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
TOKENS = [72, 105, 33, 10, 84, 104, 101, 32, 111, 108, 100, 32, 107, 105, 110, 103]
FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return gguf_files.write(tmp_path / "tiny.gguf", "llama", "Q8_0")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_is_described_by_its_header(family: str, tmp_path: Path) -> None:
    model = inspect_gguf(gguf_files.write(tmp_path / "tiny.gguf", family, "Q8_0", chat=family != "qwen2"))
    matrices = [array for array in gguf_files.weights(family).values() if array.ndim > 1]
    assert (model.name, model.architecture, model.weights) == ("tiny.gguf", family, "Q8_0")
    assert model.parameters == sum(array.size for array in matrices)
    assert (model.context_length, model.vocabulary) == (gguf_files.CONTEXT, len(gguf_files.vocabulary()))
    assert (model.chat_template, model.detokenizer) == (family != "qwen2", True)
    vectors = sum(array.nbytes for array in gguf_files.weights(family).values() if array.ndim == 1)
    assert model.weight_bytes == model.parameters * 34 // 32 + vectors


def test_unreadable_files_are_refused_with_the_reason(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    cut = rf"'tiny.gguf' has {len(whole) - 40_000} of \d+ bytes and is incomplete"
    for content, reason in (
        (whole[:-40_000], cut),
        (b"", "not a readable GGUF file; choose another file"),
        (b"PK\x03\x04" + bytes(100), "not a readable GGUF file; choose another file"),
    ):
        file.write_bytes(content)
        with pytest.raises(GGUFError, match=reason):
            inspect_gguf(file)
    phi = gguf_files.write(tmp_path / "phi.gguf", architecture="phi3")
    with pytest.raises(GGUFError, match=r"'phi.gguf' has the phi3 architecture.* one of llama, qwen2, qwen3"):
        inspect_gguf(phi)
    for kind in ("Q5_0", "Q5_K"):
        other = gguf_files.write(tmp_path / f"{kind}.gguf", "llama", kind)
        with pytest.raises(GGUFError, match=rf"holds {kind} tensors, .* choose a file quantized as"):
            inspect_gguf(other)
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
    assert all(seconds > 0 for seconds in convert_gguf(file, "exact"))
    folder = converted_folder(file, "exact")
    assert folder is not None
    assert folder.name.startswith(file_digest(file))
    assert {path.name for path in cache.iterdir()} == {folder.name, "digests"}
    assert (file.read_bytes(), [path.name for path in file.parent.glob("*.*")]) == (before, ["tiny.gguf"])
    stamp = folder.stat().st_mtime_ns
    assert converted(Path(shutil.copy(file, file.with_name("copy.gguf")))) == folder
    assert folder.stat().st_mtime_ns == stamp, "the same content is not converted again"


@pytest.mark.openvino
def test_a_failure_of_the_reader_is_one_sentence(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"blk.1.ffn_down.weight", b"blk.9.ffn_down.weight"))
    with pytest.raises(FetchError, match=r"could not read 'tiny.gguf' \(its last message: .*\); choose another file"):
        list(convert_gguf(file, "exact"))
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
        "rope_theta": 10_000, "vocab_size": 261, "tie_word_embeddings": True,
        "bos_token_id": 259, "eos_token_id": 260,
    }  # fmt: skip
    assert {key: written[key] for key in expected} == expected
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [260]


@pytest.mark.openvino
@pytest.mark.parametrize("kinds", [("Q4_1",), ("Q4_K",), ("Q4_0", "Q6_K", "Q8_0")], ids="-".join)
def test_quantized_weights_decode_as_in_llama_cpp(kinds: tuple[str, ...], tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", "llama", *kinds)
    plain = gguf_files.write(tmp_path / "plain.gguf", "llama", "F16", arrays=gguf_files.read(file))
    theirs = logits(converted(plain))
    assert np.corrcoef(logits(converted(file)).ravel(), theirs.ravel())[0, 1] > 0.9995
    assert np.corrcoef(logits(converted(file, "int8")).ravel(), theirs.ravel())[0, 1] > 0.999


def logits(folder: Path) -> np.ndarray[Any, Any]:
    sequence = LanguageModel(folder, "CPU", EXACT).sequence(len(TOKENS) + 1)
    return np.vstack([sequence.logits(TOKENS), sequence.logits([44])])


@pytest.mark.openvino
@pytest.mark.parametrize(("family", "kind", "vectors"), [("qwen2", "F32", "F16"), ("qwen3", "BF16", "BF16")])
def test_matrices_become_f16_and_vectors_f32(family: str, kind: str, vectors: str, tmp_path: Path) -> None:
    arrays = {
        name: array * np.float32(1.5) if array.ndim == 1 else array
        for name, array in gguf_files.weights(family).items()
    }
    other = gguf_files.write(tmp_path / "other.gguf", family, kind, vectors=vectors, arrays=arrays)
    usual = gguf_files.write(tmp_path / "usual.gguf", family, "F16", arrays=gguf_files.read(other))
    assert len({(converted(file) / "openvino_model.bin").read_bytes() for file in (other, usual)}) == 1


@pytest.mark.parametrize(("columns", "size"), [(64, 64), (96, 32), (40, 40)])
def test_weights_are_stored_as_int8_and_products_of_one_input_become_one(columns: int, size: int) -> None:
    random = np.random.default_rng(0)
    x = opset.parameter([-1, columns], openvino.Type.f32)
    whole = [random.normal(size=(rows, columns)).astype(np.float32) for rows in (8, 5, 8)]
    eight = opset.convert(opset.constant(random.integers(-9, 9, (4, columns), np.int8)), openvino.Type.f32)
    after = opset.add(opset.matmul(x, opset.constant(whole[1]), False, True), opset.constant(np.float32(1)))
    nodes = [opset.matmul(x, opset.constant(whole[0]), False, True), after, opset.matmul(x, eight, False, True)]
    alone = opset.matmul(opset.relu(x), opset.constant(whole[2]), False, True)
    model = openvino.Model([opset.result(node) for node in (*nodes, alone)], [x])
    compiled = openvino.Core().compile_model(model, "CPU", EXACT)
    given = random.normal(size=(3, columns)).astype(np.float32)
    expected = [np.array(each) for each in compiled([given]).values()]
    store_as_int8(model)
    products = [node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul"]
    stored = {
        tuple(node.get_output_shape(0))
        for node in model.get_ordered_ops()
        if node.get_output_element_type(0) == openvino.Type.i8
    }
    assert len(products) == 3, "two were one, another has eight bits already, and one reads something else"
    assert stored == {(13, columns // size, size), (8, columns // size, size), (4, columns)}
    found = openvino.Core().compile_model(model, "CPU", EXACT)([given]).values()
    for ours, exact in zip(found, expected, strict=True):
        assert np.allclose(ours, exact, atol=0.02 * np.abs(exact).max())


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
    assert conversion.stored_form(given) == "exact weights (as set)"
    assert conversion.form_of(target) == "int8"
    assert not is_converted(target), "the other form is none of this one"
