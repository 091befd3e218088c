"""What conversion changes in a GGUF file's network: products are joined, and weights may be stored as int8."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as opset

from specdemo.cli import main
from specdemo.engines.language_model import LanguageModel
from specdemo.models import gguf_convert
from specdemo.models.converted import (
    WeightsChoice,
    awaits_conversion,
    choice_of,
    converted_folder,
    folder_of,
    form_of,
    measure_forms,
    remember_choice,
)
from specdemo.models.gguf import inspect_gguf
from specdemo.models.gguf_convert import Forms, convert_here, convert_pair
from specdemo.models.graph import join_products, store_as_int8
from specdemo.models.pairs import pair_of
from specdemo.records import Model
from specdemo.settings import RuntimeSettings, WeightsForm
from tests.support import gguf_files
from tests.support.hurried import load_briefly

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
TOKENS = [72, 105, 33, 10, 84, 104, 101, 32, 111, 108, 100, 32, 107, 105, 110, 103]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "specdemo" / "gguf"


def converted(file: Path, form: WeightsForm = "exact") -> Path:
    scratch = file.with_suffix(".scratch")
    scratch.mkdir(exist_ok=True)
    list(convert_here(file, scratch, Forms(form)))
    folder = converted_folder(file, form)
    assert folder is not None
    return folder


def logits(folder: Path) -> np.ndarray[Any, Any]:
    """Logits at every position of a text, and of a step behind it."""
    sequence = LanguageModel(folder, "CPU", EXACT).sequence(len(TOKENS) + 1)
    return np.vstack([sequence.logits(TOKENS), sequence.logits([44])])


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
    joined = converted(file)
    ours, count = logits(joined), products(joined)
    monkeypatch.setattr(gguf_convert, "join_products", lambda model: 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    apart = converted(file)
    assert apart != joined
    assert products(apart) - count == 3 * gguf_files.LAYERS, "q, k and v are one product, gate and up another"
    assert np.array_equal(ours, logits(apart))


@pytest.mark.openvino
@pytest.mark.parametrize(
    ("family", "kind"), [("llama", "Q4_0"), ("llama", "Q4_K"), ("qwen2", "Q4_1"), ("qwen3", "F16")]
)
def test_int8_weights_are_nearly_those_of_the_file(family: str, kind: str, tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", family, kind)
    exact, int8 = (logits(converted(file, form)) for form in ("exact", "int8"))
    assert np.corrcoef(exact.ravel(), int8.ravel())[0, 1] > 0.999
    assert not np.array_equal(exact, int8)


@pytest.mark.openvino
def test_eight_bits_stay_as_they_are(tmp_path: Path) -> None:
    file = gguf_files.write(tmp_path / "tiny.gguf", "llama", "Q8_0")
    exact, int8 = (converted(file, form) for form in ("exact", "int8"))
    assert (exact / "openvino_model.bin").read_bytes() == (int8 / "openvino_model.bin").read_bytes()


@pytest.mark.openvino
def test_only_weights_that_are_stored_alike_are_joined() -> None:
    random = np.random.default_rng(0)
    x = opset.parameter([-1, 32], openvino.Type.f32)
    whole = [random.normal(size=(rows, 32)).astype(np.float32) for rows in (8, 16, 8)]
    plain = [opset.matmul(x, opset.constant(weights), False, True) for weights in whole[:2]]
    half = opset.convert(opset.constant(whole[2].astype(np.float16)), openvino.Type.f32)
    results = [*plain, opset.matmul(x, half, False, True)]
    model = openvino.Model([opset.result(node) for node in results], [x])
    assert join_products(model) == 1
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
    assert store_as_int8(model) == 1
    nodes = model.get_ordered_ops()
    (stored,) = (node for node in nodes if node.get_output_element_type(0) == openvino.Type.i8)
    assert tuple(stored.get_output_shape(0)) == (5, columns // size, size)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return gguf_files.write(tmp_path / "tiny.gguf", "llama", "Q4_1")


def load(model: Model, weights: str = "auto") -> Model:
    """The target of a pair, converted as a start converts it."""
    pair = pair_of(model, runtime=RuntimeSettings.checked(weights=weights))
    for _ in convert_pair(pair):
        pass
    return pair.target


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[WeightsChoice]]:
    """What measurements find, one after another."""
    found: list[WeightsChoice] = []

    def here(path: Path, scratch: Path, forms: Forms) -> Iterator[None]:
        yield from convert_here(path, scratch, forms)

    monkeypatch.setattr(gguf_convert, "measure_forms", lambda *_: found.pop(0))
    monkeypatch.setattr(gguf_convert, "follow", lambda work, *arguments, **_: here(*arguments))
    yield found
    assert not found, "each was measured"


FAST_INT8 = WeightsChoice(form="int8", exact_ms=(14.0, 20.0), int8_ms=(12.0, 16.0))
FAST_EXACT = WeightsChoice(form="exact", exact_ms=(10.0, 13.0), int8_ms=(10.5, 12.0))


@pytest.mark.openvino
def test_the_faster_form_is_chosen_once_and_remembered(file: Path, measured: list[WeightsChoice]) -> None:
    model = inspect_gguf(file)
    assert (awaits_conversion(model), choice_of(model)) == (True, None)
    measured.append(FAST_INT8)
    target = load(model)
    assert (form_of(target), choice_of(target)) == ("int8", FAST_INT8)
    assert folder_of(target).name.endswith("-int8")
    assert not awaits_conversion(target)
    assert folder_of(load(model)) == folder_of(target), "it is not measured again"
    assert folder_of(load(model, "exact")) == converted_folder(file, "exact")


@pytest.mark.openvino
def test_exact_weights_that_are_fast_enough_leave_no_others(file: Path, measured: list[WeightsChoice]) -> None:
    measured.append(FAST_EXACT)
    target = load(inspect_gguf(file))
    assert (form_of(target), converted_folder(file, "int8")) == ("exact", None)
    assert folder_of(load(inspect_gguf(file), "int8")) == converted_folder(file, "int8")
    assert converted_folder(file, "int8") is not None, "whoever asks for them gets them"


@pytest.mark.openvino
def test_a_measurement_in_its_own_process(file: Path) -> None:
    choice = choice_of(load(inspect_gguf(file)))
    assert choice is not None
    assert len(choice.exact_ms) == len(choice.int8_ms) == 2
    assert all(value > 0 for value in (*choice.exact_ms, *choice.int8_ms))
    assert "measured here" in choice.reason


@pytest.mark.openvino
def test_exact_is_chosen_unless_it_takes_a_tenth_longer(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, int8 = (converted(file, form) for form in ("exact", "int8"))
    for factor, form in ((1.08, "exact"), (1.12, "int8")):
        seconds = iter([0.01 * factor, 0.02 * factor, 0.01, 0.02] * 100)
        monkeypatch.setattr("specdemo.models.converted.median_seconds", lambda *_, seconds=seconds: next(seconds))
        assert measure_forms(exact, int8, "CPU", EXACT, EXACT).form == form


def test_a_damaged_record_counts_as_none(file: Path, cache: Path) -> None:
    remember_choice("a" * 64, FAST_EXACT)
    (record,) = (cache / "weights").iterdir()
    record.write_text("{")
    from specdemo.models.converted import remembered_choice

    assert remembered_choice("a" * 64) is None


@pytest.mark.openvino
def test_the_terminal_takes_a_form(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--drafter", "lookup", "--max-new-tokens", "8", "--ignore-eos", "--json", "-", "--weights", "int8"]
    assert main(["compare", "Hi", "--target", str(file), *options], load=load_briefly) == 0
    written = json.loads(capfd.readouterr().out)
    assert written["pair"]["runtime"]["weights"] == "int8"
    assert converted_folder(file, "int8") is not None
