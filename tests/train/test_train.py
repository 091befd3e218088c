"""`train-draft`, from a tiny target to a draft that runs; where PyTorch is installed."""

import importlib.util
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed; docs/training.md says how", allow_module_level=True)

import numpy as np
import torch

from specdemo.cli import main
from specdemo.decoding.indexes import TABLE
from specdemo.engines.base import BRIEF
from specdemo.engines.genai import GenAIEngine
from specdemo.errors import ModelError, SpecdemoError, UsageError
from specdemo.files import ASSETS
from specdemo.measure.race import run_alone
from specdemo.models.folder import inspect_folder
from specdemo.models.gguf import inspect_gguf
from specdemo.models.gguf_convert import convert_gguf
from specdemo.models.library import library
from specdemo.models.pairs import pair_of
from specdemo.records import Request as DecodingRequest
from specdemo.settings import GenerationSettings, RuntimeSettings
from specdemo.train import pipeline
from specdemo.train.corpus import Conversation, Corpus, Label
from specdemo.train.dataset import Dataset, write_labels
from specdemo.train.network import Network, from_draft
from specdemo.train.pipeline import Run
from specdemo.train.prompts import Prompt
from specdemo.train.request import Effort, Kind, Request
from specdemo.train.text import Sources
from tests.support import gguf_files
from tests.support.folders import FIXTURES

TARGET = FIXTURES / "eagle3" / "target"
LABEL = Label("question", "people")


SMALL = Effort(batch=24, answer=40, epochs=60, races=1, race_tokens=16)
"""Little text, one short race, and enough steps for a tiny network."""
UNMEASURED = replace(SMALL, races=0)
"""Without step costs and races."""


@pytest.mark.parametrize("kind", ["draft", "eagle3"])
def test_a_draft_is_trained_and_can_be_used(kind: Kind, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--target", str(TARGET), "--kind", kind, "--models-dir", str(tmp_path), "--threads", "1"]
    command = ["train-draft", *options, "--out", "made", "--tokens", "500", "--penalty", "1"]
    assert main(command, effort=SMALL) == 0
    said = capfd.readouterr()
    assert "--draft made" in said.out
    stages = ("text: ", "labels: ", "measuring step costs", "training: step ", "minutes left", "Raced on 1 prompts")
    for stage in (*stages, "predicted speedup", "tokens outside"):
        assert stage in said.err
    first, *_, last = (float(part.partition("%")[0]) for part in said.err.split("agreement ")[1:])
    assert last > first + 10
    made = {model.name: model for model in library(tmp_path).models}["made"]
    assert made.eagle3 == (kind == "eagle3")
    card = (tmp_path / "made" / "README.md").read_text()
    for words in ("# A draft for target", f"**{last}%**", "| lookahead | 1 |", "median speedup"):
        assert words in card
    assert main(command, effort=SMALL) == 2
    assert "choose another --out" in capfd.readouterr().err
    if kind == "eagle3":
        assert main([*command, "--out", "again", "--from", "made", "--kind", "draft"], effort=SMALL) == 2
        assert "A draft cannot begin from a head" in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["draft", "eagle3"])
def test_an_interrupted_run_ends_like_any_other(kind: Kind, tmp_path: Path) -> None:
    effort = replace(UNMEASURED, epochs=8, save_seconds=0)
    lines = list[str]()

    def interrupt(at: str) -> Callable[[str], None]:
        def say(line: str) -> None:
            lines.append(line)
            if line.startswith(at):
                raise InterruptedError

        return say

    request, target = Request("target", kind, tokens=500), inspect_folder(TARGET)
    whole = Run(request, target, tmp_path / "whole", 1, say=interrupt("never"), effort=effort).everything()
    for stage in ("labels: ", "training: step"):
        with pytest.raises(InterruptedError):
            Run(request, target, tmp_path / "parts", 1, say=interrupt(stage), effort=effort).everything()
        assert not (tmp_path / "parts").exists()
    interrupted = lines[-1].partition(",")[0]
    del lines[:]
    parts = Run(request, target, tmp_path / "parts", 1, say=interrupt("never"), effort=effort).everything()
    assert not any(line.startswith(("text", "labels", f"{interrupted},")) for line in lines)
    assert parts == whole
    first, second = ((tmp_path / name / "openvino_model.bin").read_bytes() for name in ("whole", "parts"))
    assert first == second


def test_a_draft_begins_from_an_earlier_one(tmp_path: Path) -> None:
    target, network = inspect_folder(TARGET), Network(TARGET)
    request = Request("target", tokens=500, penalty=1)
    earlier = Run(request, target, tmp_path / "earlier", 1, effort=UNMEASURED).everything()
    start, kept = from_draft(tmp_path / "earlier", network)
    assert start.rows.shape == (len(kept), network.shape.hidden)
    once = replace(UNMEASURED, epochs=1)
    request = replace(request, begin=str(tmp_path / "earlier"))
    assert Run(request, target, tmp_path / "later", 1, effort=once).everything().agreement >= earlier.agreement - 0.05
    head = Run(replace(request, kind="eagle3"), target, tmp_path / "head", 1, effort=once)
    assert head.everything().agreement >= earlier.agreement - 0.05
    learner = head.learner(head.dataset())
    assert [learner.steps(share) for share in (0, 0.1)] == [1, 3]
    with pytest.raises(ModelError, match="leave --from out"):
        from_draft(FIXTURES / "llama" / "draft", network)
    with pytest.raises(ModelError, match="not a draft for this target"):
        from_draft(tmp_path / "earlier", Network(FIXTURES / "llama" / "target"))
    with pytest.raises(ModelError, match="not a draft for this target"):
        from_draft(ASSETS / "smollm2-draft", network)


def test_a_head_begins_from_an_earlier_one_as_it_was(tmp_path: Path) -> None:
    target, request = inspect_folder(TARGET), Request("target", "eagle3", tokens=500, penalty=1)
    run = Run(request, target, tmp_path / "earlier", 1, effort=replace(UNMEASURED, epochs=1))
    run.everything()
    dataset = run.dataset()
    earlier, untrained = run.learner(dataset), run.learner(dataset)
    torch.manual_seed(3)
    with torch.no_grad():
        for join, layer in zip(earlier.model.joins, earlier.model.layers, strict=True):
            torch.nn.init.normal_(join.weight, std=0.05)
            torch.nn.init.normal_(layer.o.weight, std=0.05)
        earlier.model.hidden_norm.weight.uniform_(0.5, 2)
        earlier.model.fc.weight.mul_(0.7)
    run.export(earlier, dataset.vocabulary, tmp_path / "made")
    again = Run(replace(request, begin=str(tmp_path / "made"), chain=1), target, tmp_path / "again", 1)
    learner, batch = again.learner(dataset), dataset.batch(dataset.train[:4])
    assert [learner.steps(share) for share in (0, 0.9)] == [1, 1]
    with torch.no_grad():
        expected, found, other = (one.predictions(batch, 3)[-1] for one in (earlier, learner, untrained))
        assert torch.equal(again.learner(dataset).predictions(batch, 3)[-1], found)
    assert (found - expected).abs().mean() < 0.03 * expected.abs().mean() < 0.1 * (other - expected).abs().mean()


def test_parts_of_the_text_say_what_more_of_it_is_worth(tmp_path: Path) -> None:
    prompts = [Prompt(f"a b {number}", Label("list", "people" if number % 4 else "others")) for number in range(60)]
    request = Request("target", tokens=1500, hold_out="others", match_states=True, replay=True, curve=True)
    effort = replace(UNMEASURED, epochs=6)
    found = Run(request, inspect_folder(TARGET), tmp_path / "made", 1, effort=effort).everything(Sources(prompts))
    points = json.loads((tmp_path / "made" / pipeline.BY_TEXT).read_text())
    tokens = [point["tokens"] for point in points]
    assert tokens == sorted({*tokens})
    assert len(tokens) == len(pipeline.PARTS) + 1
    assert points[-1]["alike"]["agreement"] == found.agreement
    assert all(point["elsewhere"]["tokens"] == points[0]["elsewhere"]["tokens"] > 0 for point in points)
    card = (tmp_path / "made" / "README.md").read_text()
    for words in (
        "hidden states matched, mistakes replayed",
        "| people | ",
        "| others | – | ",
        f"| {tokens[0]} | {points[0]['alike']['agreement']:.1%} | ",
        f"| {tokens[-1]} | {found.agreement:.1%} | ",
    ):
        assert words in card


@pytest.mark.parametrize(
    ("family", "kind"), [("llama", "draft"), ("qwen2", "draft"), ("qwen3", "draft"), ("llama", "eagle3")]
)
def test_a_gguf_file_is_a_target(family: str, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_files, "LAYERS", 10 if kind == "eagle3" else 2)
    file = tmp_path / "tiny.gguf"
    gguf_files.write(file, family)
    assert list(convert_gguf(file))
    target = inspect_gguf(file)
    prompts = [
        Prompt(f"a b {number}", Label("question", "people" if number % 3 else "others")) for number in range(48)
    ]
    request = Request("tiny.gguf", kind, tokens=1500, hold_out="others", vocabulary=64)
    Run(request, target, tmp_path / "made", 1, effort=replace(UNMEASURED, epochs=1)).everything(Sources(prompts))
    made = inspect_folder(tmp_path / "made", draft=True)
    card = (tmp_path / "made" / "README.md").read_text()
    for words in (
        "left out of the training, others, it predicted",
        "| question |",
        "64 tokens: ",
        "τ on the other source",
    ):
        assert words in card
    curve = json.loads((tmp_path / "made" / "curve.json").read_text())
    assert curve[-1]["step"] > 0
    assert curve[-1]["agreement"] >= 0
    assert (tmp_path / "made" / TABLE).exists() == (kind == "draft")
    assert made.detokenizer == (kind == "draft")
    with closing(GenAIEngine(pair_of(target, made, runtime=RuntimeSettings()), thoroughness=BRIEF)) as engine:
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
    stored = tmp_path / ".made.training" / "request.json"
    stored.write_text(stored.read_text().replace('"chain": 3,', ""))  # as versions without it stored requests
    Run(Request("llama", tokens=9), shallow, tmp_path / "made")
    with pytest.raises(UsageError, match="another chain"):
        Run(Request("llama", tokens=9, chain=1), shallow, tmp_path / "made")


def test_labels_need_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(Request("target", tokens=9), inspect_folder(TARGET), tmp_path / "made")
    corpus = Corpus(run.work / "text")
    corpus.append([Conversation.of([1, 2, 3], list(range(4, 40)), LABEL)])
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(SpecdemoError, match="free some space"):
        run.labels(corpus)


@pytest.mark.parametrize("kind", ["draft", "eagle3"])
def test_a_draft_but_no_head_learns_from_text_that_there_was_no_time_to_label(kind: Kind, tmp_path: Path) -> None:
    lines = list[str]()
    run = Run(Request("target", kind, minutes=1), inspect_folder(TARGET), tmp_path / "made", say=lines.append)
    corpus = Corpus(run.work / "text")
    asked = [[1, 2, number, 3] for number in range(16)]
    corpus.append([Conversation.of(prompt, [*range(prompt[2], prompt[2] + 20), 90], LABEL) for prompt in asked])
    (run.work / "labels.seconds").write_text("60")
    run.labels(corpus)
    assert lines == ["labels: time is up after 1 of 16 conversations"]
    dataset = Dataset(run.work / "text", run.network, len(run.read_layers) + 1)
    used = [*dataset.train, *dataset.held_out]
    if kind == "eagle3":
        assert used == [0]
        return
    assert sorted(used) == list(range(16))
    dataset.choose(np.arange(30))
    batch = dataset.batch([0, 15])
    assert batch.labelled == [True, False]
    assert batch.states[0].any()
    assert not batch.states[1].any()
    assert batch.scored.sum(1).tolist() == [21, 21]
    assert batch.learned.sum(1).tolist() == [21, 15]  # tokens 15 to 29 of 15 to 34 and 90
    run.describe(tmp_path, dataset, [], [run.figures(run.learner(dataset), dataset)], "")
    assert "336 tokens of answers, 1 of them labelled" in (tmp_path / "README.md").read_text()


def test_what_a_crash_left_is_cut_off(tmp_path: Path) -> None:
    written = Corpus(tmp_path)
    batch = [
        Conversation.of([0, 1, 2], [3, 4, 5, 6, 7, 8], LABEL),
        Conversation.of([4, 5], [6, 7, 8], LABEL, sampled=True),
    ]
    written.append(batch)
    whole = [file.read_bytes() for file in (tmp_path / "text.ids", tmp_path / "text.rows")]
    for file, size in (("text.ids", 6), ("text.rows", 7)):
        with (tmp_path / file).open("ab") as sink:
            sink.write(b"x" * size)
    again = Corpus(tmp_path)
    assert [file.read_bytes() for file in (tmp_path / "text.ids", tmp_path / "text.rows")] == whole
    assert (len(again), again.batches, again.tokens, again.answer_tokens) == (2, 1, 14, 9)

    def states(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return ids.astype(np.float16).reshape(-1, 1, 1)

    labels = tmp_path / "states.f16"
    write_labels(states, 2, again, labels, lambda: 0)
    found = labels.read_bytes()
    labels.write_bytes(found[: 9 * 2 + 3])
    write_labels(states, 2, again, labels, lambda: 0)
    assert labels.read_bytes() == found == states(np.concatenate([one.ids for one in batch])).tobytes()
