"""`train-draft`, from a tiny target to a draft that runs; where PyTorch is installed."""

import importlib.util
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed; docs/training.md says how", allow_module_level=True)

import numpy as np
import openvino as ov
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from specdemo.analysis.oracle import passes
from specdemo.cli import main
from specdemo.engines.genai import GenAIEngine
from specdemo.errors import ModelError, SpecdemoError, UsageError
from specdemo.measure.race import run_alone
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import inspect_gguf
from specdemo.models.gguf_convert import convert_gguf
from specdemo.models.library import library
from specdemo.models.pairs import pair_of
from specdemo.records import Request as DecodingRequest
from specdemo.resources import ASSETS
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.train import fit, pipeline, races, text
from specdemo.train.conversations import Conversation, Conversations
from specdemo.train.earlier import from_draft
from specdemo.train.export import draft_model, head_model
from specdemo.train.graph import int8
from specdemo.train.judge import accepted_length
from specdemo.train.labels import write_labels
from specdemo.train.lessons import Distance, Seen, Start, from_target
from specdemo.train.modules import Draft, Head
from specdemo.train.network import Array, Network
from specdemo.train.pipeline import Run
from specdemo.train.plan import Kind, Request
from tests.support import gguf_files
from tests.support.folders import FIXTURES

TARGET = FIXTURES / "eagle3" / "target"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little text, short races, and enough steps for a tiny network."""
    monkeypatch.setattr(text, "BATCH", 24)
    monkeypatch.setattr(text, "ANSWER", 40)
    monkeypatch.setattr(pipeline, "EPOCHS", 60)
    monkeypatch.setattr(races, "OPENINGS", races.OPENINGS[:1])
    monkeypatch.setattr(races, "TOKENS", 16)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without step costs and races."""
    monkeypatch.setattr(pipeline, "costs_of", lambda pair: None)
    monkeypatch.setattr(pipeline, "raced", lambda *_: "")


@pytest.mark.parametrize("kind", ["draft", "eagle3"])
def test_a_draft_is_trained_and_can_be_used(kind: Kind, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--target", str(TARGET), "--kind", kind, "--models-dir", str(tmp_path), "--threads", "1"]
    command = ["train-draft", *options, "--out", "made", "--tokens", "500", "--penalty", "1"]
    assert main(command) == 0
    said = capfd.readouterr()
    assert "--draft made" in said.out
    stages = ("text: ", "labels: ", "measuring step costs", "training: step 5", "minutes left", "Raced on 1 prompts")
    for stage in (*stages, "predicted speedup"):
        assert stage in said.err
    first, *_, last = (float(part.partition("%")[0]) for part in said.err.split("agreement ")[1:])
    assert last > first + 10
    made = {model.name: model for model in library(tmp_path).models}["made"]
    assert made.eagle3 == (kind == "eagle3")
    card = (tmp_path / "made" / "README.md").read_text()
    for words in ("# A draft for target", f"**{last}%**", "| lookahead | 1 |", "median speedup"):
        assert words in card
    assert main(command) == 2
    assert "choose another --out" in capfd.readouterr().err
    if kind == "eagle3":
        assert main([*command, "--out", "again", "--from", "made"]) == 1
        assert "that train-draft made with --kind draft" in capfd.readouterr().err


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("kind", ["draft", "eagle3"])
def test_an_interrupted_run_ends_like_any_other(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "SAVE_SECONDS", 0)
    monkeypatch.setattr(pipeline, "EPOCHS", 8)
    lines = list[str]()

    def interrupt(at: str) -> Callable[[str], None]:
        def say(line: str) -> None:
            lines.append(line)
            if line.startswith(at):
                raise InterruptedError

        return say

    request, target = Request("target", kind, tokens=500), inspect_folder(TARGET)
    whole = Run(request, target, tmp_path / "whole", 1, say=interrupt("never")).everything()
    for stage in ("labels: ", "training: step 5"):
        with pytest.raises(InterruptedError):
            Run(request, target, tmp_path / "parts", 1, say=interrupt(stage)).everything()
        assert not (tmp_path / "parts").exists()
    del lines[:]
    parts = Run(request, target, tmp_path / "parts", 1, say=interrupt("never")).everything()
    assert not any(line.startswith(("text", "labels", "training: step 5")) for line in lines)
    assert parts == whole
    first, second = ((tmp_path / name / "openvino_model.bin").read_bytes() for name in ("whole", "parts"))
    assert first == second


@pytest.mark.usefixtures("unmeasured")
def test_a_draft_begins_from_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, network = inspect_folder(TARGET), Network(TARGET)
    earlier = Run(Request("target", tokens=500, penalty=1), target, tmp_path / "earlier", 1).everything()
    start, kept = from_draft(tmp_path / "earlier", network)
    assert start.rows.shape == (len(kept), network.shape.hidden)
    monkeypatch.setattr(pipeline, "EPOCHS", 1)
    request = Request("target", tokens=500, penalty=1, begin=str(tmp_path / "earlier"))
    assert Run(request, target, tmp_path / "later", 1).everything().agreement >= earlier.agreement - 0.05
    with pytest.raises(ModelError, match="leave --from out"):
        from_draft(FIXTURES / "llama" / "draft", network)
    with pytest.raises(ModelError, match="not a draft for this target"):
        from_draft(tmp_path / "earlier", Network(FIXTURES / "llama" / "target"))
    with pytest.raises(ModelError, match="not a draft for this target"):
        from_draft(ASSETS / "smollm2-draft", network)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("family", "kind"), [("llama", "draft"), ("qwen2", "draft"), ("qwen3", "draft"), ("llama", "eagle3")]
)
def test_a_gguf_file_is_a_target(family: str, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "EPOCHS", 1)
    monkeypatch.setattr(gguf_files, "LAYERS", 10 if kind == "eagle3" else 2)
    file = tmp_path / "tiny.gguf"
    gguf_files.write(file, family)
    assert list(convert_gguf(file))
    target = inspect_gguf(file)
    Run(Request("tiny.gguf", kind, tokens=100), target, tmp_path / "made", 1).everything(["a b", "b"])
    made = inspect_folder(tmp_path / "made", draft=True)
    assert made.detokenizer == (kind == "draft")
    with closing(GenAIEngine(pair_of(target, made, runtime=RuntimeSettings()))) as engine:
        settings = GenerationSettings(num_assistant_tokens=2, max_new_tokens=4)
        assert run_alone(engine.decoder(DecodingRequest.of("a b", settings))).token_ids


def test_what_cannot_be_trained_is_refused_at_once(tmp_path: Path) -> None:
    for family in ("gemma", "gpt2", "phi3"):
        with pytest.raises(ModelError, match="no layers like Llama's"):
            Run(Request(family, tokens=9), inspect_folder(FIXTURES / family / "target"), tmp_path / "made")
    shallow = inspect_folder(FIXTURES / "llama" / "target")
    with pytest.raises(UsageError, match="--kind draft"):
        Run(Request("llama", "eagle3", tokens=9), shallow, tmp_path / "made")
    assert not list(tmp_path.iterdir())
    Run(Request("llama", tokens=9), shallow, tmp_path / "made")
    with pytest.raises(UsageError, match="another seed"):
        Run(Request("llama", tokens=9, seed=1), shallow, tmp_path / "made")


def test_labels_need_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(Request("target", tokens=9), inspect_folder(TARGET), tmp_path / "made")
    conversations = Conversations(run.work / "text")
    conversations.append([Conversation(np.arange(1, 40), 4, sampled=False)])
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(SpecdemoError, match="free some space"):
        run.labels(conversations)


def test_what_a_crash_left_is_cut_off(tmp_path: Path) -> None:
    written = Conversations(tmp_path)
    batch = [Conversation(np.arange(9), 3, sampled=False), Conversation(np.arange(4, 9), 2, sampled=True)]
    written.append(batch)
    whole = [file.read_bytes() for file in (tmp_path / "text.ids", tmp_path / "text.rows")]
    for file, size in (("text.ids", 6), ("text.rows", 7)):
        with (tmp_path / file).open("ab") as sink:
            sink.write(b"x" * size)
    again = Conversations(tmp_path)
    assert [file.read_bytes() for file in (tmp_path / "text.ids", tmp_path / "text.rows")] == whole
    assert (len(again), again.batches, again.tokens, again.answer_tokens) == (2, 1, 14, 9)

    def states(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return ids.astype(np.float16).reshape(-1, 1, 1)

    labels = tmp_path / "states.f16"
    write_labels(states, 2, again, labels)
    found = labels.read_bytes()
    labels.write_bytes(found[: 9 * 2 + 3])
    write_labels(states, 2, again, labels)
    assert labels.read_bytes() == found == states(np.concatenate([one.ids for one in batch])).tobytes()


def test_the_distance_and_its_gradient_are_those_under_the_penalty() -> None:
    torch.manual_seed(0)
    judged = torch.zeros(3, 100, dtype=torch.bool)
    judged[:, 20:90] = True
    batch: Any = type("Batch", (), {"judged": judged, "first": torch.randint(0, 200, (3, 91), dtype=torch.int32)})
    positions = int(judged.sum())
    states = torch.randn(positions, 32, requires_grad=True)
    rows = torch.randn(90, 32).bfloat16().float().requires_grad_()
    taught = torch.randn(positions, 90).softmax(-1).bfloat16()
    distance = Distance.apply(states, rows, taught, Seen(batch, 1.1))
    distance.backward()
    gradients = [states.grad, rows.grad]
    states.grad = rows.grad = None
    logits = states @ rows.T
    where, place = judged.nonzero(as_tuple=True)
    seen = batch.first[where, :-1] <= place[:, None]
    logits = torch.where(seen, torch.where(logits > 0, logits / 1.1, logits * 1.1), logits)
    expected = (logits.logsumexp(-1) - (taught.float() * logits).sum(-1)).mean()
    expected.backward()
    assert distance.item() == pytest.approx(expected.item(), rel=0.01)
    for found, wanted in zip(gradients, (states.grad, rows.grad), strict=True):
        assert found is not None
        assert wanted is not None
        torch.testing.assert_close(found, wanted, rtol=0, atol=0.02 * wanted.abs().max().item())


@pytest.fixture(scope="module")
def start() -> Start:
    """The first and last layer of the target, and half of its tokens."""
    network = Network(TARGET)
    kept = np.arange(0, network.shape.vocabulary, 2)
    start = from_target(network, kept, [0, network.shape.layers - 1])
    return Start(
        start.shape,
        start.frequencies,
        [{name: _stored(value) for name, value in layer.items()} for layer in start.layers],
        start.norm,
        _stored(start.embedding),
        _stored(start.rows),
    )


def _stored(matrix: Array) -> Array:
    """What a matrix becomes when it is stored as int8."""
    if matrix.ndim == 1:
        return matrix
    model = ov.Model([ov.opset13.result(int8(matrix))], [], "stored")
    return np.array(ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({})[0])


def _run(model: ov.Model, ids: np.ndarray[Any, Any], pieces: list[int], **given: np.ndarray[Any, Any]) -> Array:
    """Logits [tokens, vocabulary] of a text that is read in pieces."""
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    request = ov.Core().compile_model(model, "CPU", exact).create_infer_request()
    found, first = [], 0
    for last in pieces:
        feeds = {"input_ids": ids[None, first:last], "attention_mask": np.ones((1, last), np.int64)}
        feeds |= {"position_ids": np.arange(first, last)[None], "beam_idx": np.zeros(1, np.int32)}
        request.infer(feeds | {name: value[None, first:last] for name, value in given.items()})
        found.append(np.array(request.get_tensor("logits").data[0]))
        first = last
    return np.concatenate(found)


@pytest.mark.parametrize("pieces", [[12], [5, 6, 12]])
def test_an_exported_draft_computes_what_was_trained(start: Start, pieces: list[int]) -> None:
    kept, size = np.arange(0, start.shape.vocabulary, 2), start.shape.vocabulary
    module = Draft(start.shape, start.frequencies, 2).eval()
    for layer, weights in zip(module.layers, start.layers, strict=True):
        layer.load_state_dict({f"{name}.weight": torch.from_numpy(value) for name, value in weights.items()})
    weights = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    ids = np.array([2, 4, 7, 100, 510, 4, 9, 8, 60, 60, 3, 2])  # odd ones are unknown to the draft
    small = torch.from_numpy(np.where(ids % 2, len(kept), ids // 2))
    with torch.no_grad():
        states = module(functional.embedding(small, torch.from_numpy(start.embedding))[None])[0]
    expected = (states @ torch.from_numpy(start.rows).T).numpy()
    found = _run(draft_model(start, weights, kept, size), ids, pieces)
    np.testing.assert_allclose(found[:, kept], expected, rtol=0, atol=1e-3 * abs(expected).max())
    assert (np.delete(found, kept, axis=1) < found[:, kept].min() - 1000).all()


def _head(start: Start) -> Head:
    torch.manual_seed(1)
    head = Head(start.shape, start.frequencies, 2)
    head.eval()
    with torch.no_grad():
        for weights in head.parameters():
            if weights.dim() == 2:
                weights.copy_(torch.from_numpy(_stored(weights.numpy())))
        head.scales.uniform_(0.5, 2)
        head.sizes.fill_(2)  # which leaves int8 as exact
        head.norm.weight.uniform_(0.5, 2)
    return head


@pytest.mark.parametrize("pieces", [[12], [5, 6, 12]])
def test_an_exported_head_computes_what_was_trained(start: Start, pieces: list[int]) -> None:
    kept, head = np.arange(0, start.shape.vocabulary, 2), _head(start)
    weights = {name: value.detach().numpy() for name, value in head.state_dict().items()}
    ids = np.arange(0, 24, 2)
    states = np.random.default_rng(0).normal(size=(12, 3 * start.shape.hidden)).astype(np.float32)
    with torch.no_grad():
        embedded = torch.from_numpy(start.embedding[ids // 2])[None]
        output = head.norm(head(embedded, torch.from_numpy(states)[None], 1)[0])[0]
    expected = (output @ torch.from_numpy(start.rows).T).numpy()
    model = head_model(start, weights, kept, start.shape.vocabulary)
    found = _run(model, ids, pieces, hidden_states=states)[:, kept]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * abs(expected).max())


def test_the_steps_of_a_chain_are_those_that_a_head_would_take_one_by_one(start: Start) -> None:
    head, true = _head(start), 8
    embedded, states = torch.randn(1, 12, start.shape.hidden), torch.randn(1, 12, 3 * start.shape.hidden)
    with torch.no_grad():
        chains = head(embedded, states, 3)
        known = head.fc(states * head.scales)[:, :true]
        for step, together in enumerate(chains):
            x = embedded[:, : true + step]
            for layer, join, size in zip(head.layers, head.joins, head.sizes, strict=True):
                x = layer(x + size * join(head.hidden_norm(known)))
            last = x[:, -1:]
            torch.testing.assert_close(last[:, 0], together[:, true + step - 1], rtol=1e-4, atol=1e-4)
            known = torch.cat([known, last], 1)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 8))
def test_accepted_length_is_that_of_the_rounds(agrees: list[bool], lookahead: int) -> None:
    rounds = passes(agrees, lookahead, len(agrees) + lookahead + 1).target
    right = np.array([agrees] * lookahead)
    assert accepted_length([right], lookahead) == pytest.approx(len(agrees) / rounds)
