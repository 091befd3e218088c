"""The target's text, and the table counted from it: all that `train-draft` does without PyTorch."""

import importlib.util
import json
import lzma
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino_genai as genai
import pytest

from specdemo.cli import main
from specdemo.decoding.indexes import TABLE, Table
from specdemo.errors import FileError
from specdemo.models.converted import folder_of
from specdemo.models.gguf import inspect_gguf
from specdemo.models.gguf_convert import convert_gguf
from specdemo.models.graph import join_products
from specdemo.train.corpus import Conversation, Corpus, Label, is_corpus, pack, unpacked
from specdemo.train.network import Network
from specdemo.train.prompts import Prompt, kind_of, read_passages, read_prompts, with_passage
from specdemo.train.request import Effort
from specdemo.train.table import predictions
from specdemo.train.text import ALIKE, NO_SOURCES, SHARES, AnswerSettings, Sources, Writer, write_text
from tests.support import gguf_files
from tests.support.folders import FIXTURES

TARGET = FIXTURES / "eagle3" / "target"
PEOPLE = Label("question", "people")


SMALL = Effort(batch=16, answer=24)


def _prompts(file: Path, **counts: int) -> Path:
    rows = [
        {"prompt": f"{source} {number}", "source": source}
        for source, many in counts.items()
        for number in range(many)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_table_is_made_without_pytorch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    prompts = _prompts(tmp_path / "prompts.jsonl", first=20, second=12)
    options = ["train-draft", "--target", str(TARGET), "--models-dir", str(tmp_path), "--threads", "1"]
    sources = ["--prompts", str(prompts), "--hold-out", "second"]
    assert main([*options, *sources, "--kind", "table", "--out", "counts", "--tokens", "900"], effort=SMALL) == 0
    assert "of held-out tokens predicted" in capfd.readouterr().err
    table = Table.load(tmp_path / "counts" / TABLE)
    assert len(table)
    assert table.vocabulary == Network(TARGET).shape.vocabulary
    card = (tmp_path / "counts" / "README.md").read_text()
    assert "prompts of a source left out (second)" in card
    written = Corpus(tmp_path / ".counts.training" / "text")
    first = [written.label(index).source for index in range(len(prompts.read_text().splitlines()))]
    assert (first.count("first"), first.count("second")) == (20, 12)  # before anything else
    elsewhere = predictions(table, written, written.split("second").elsewhere)
    assert f"**{elsewhere.agreement:.1%}**" in card

    again = [
        "--kind",
        "table",
        "--out",
        "again",
        "--tokens",
        "300",
        "--text",
        str(tmp_path / ".counts.training" / "text"),
    ]
    assert main([*options, *again, "--hold-out", "second"], effort=SMALL) == 0
    assert "left out (second)" in (tmp_path / "again" / "README.md").read_text()
    taken = Corpus(tmp_path / ".again.training" / "text")
    assert 300 <= taken.answer_tokens < written.answer_tokens
    assert "a second" not in capfd.readouterr().err  # nothing was written anew

    assert main([*options, "--out", "draft"], effort=SMALL) == 2
    assert "--kind table" in capfd.readouterr().err
    for wrong in ("third", ""):
        one = _prompts(tmp_path / "one.jsonl", only=3) if not wrong else prompts
        assert (
            main(
                [*options, "--kind", "table", "--out", "x", "--prompts", str(one), "--hold-out", wrong or "only"],
                effort=SMALL,
            )
            == 2
        )
        assert "one of several sources" in capfd.readouterr().err
    assert main([*options, "--kind", "table", "--out", "x", "--curve"], effort=SMALL) == 2
    assert "counted, not trained" in capfd.readouterr().err
    assert main([*options, "--kind", "table", "--out", "x", "--text", str(tmp_path)], effort=SMALL) == 2
    assert "text.rows" in capfd.readouterr().err
    (damaged := tmp_path / "damaged").mkdir()
    for name in ("text.ids.xz", "text.rows.xz", "text.labels.xz"):
        (damaged / name).write_bytes(b"cut off")
    asked = ["--kind", "table", "--out", "x", "--text", str(damaged), "--hold-out", "second"]
    assert main([*options, *asked], effort=SMALL) == 2
    assert "is damaged" in capfd.readouterr().err


def test_a_corpus_keeps_answers_labels_and_batches(tmp_path: Path) -> None:
    corpus, other = Corpus(tmp_path / "one"), Label("summary", "passages")
    chat = Conversation(np.arange(8), np.array([0, 0, 1, 1, 0, 0, 1, 1], bool), other, sampled=True)
    corpus.append([Conversation.of([1, 2], [3], PEOPLE)])
    corpus.append([chat, Conversation.of([1], [2, 3], PEOPLE)])
    for found in (corpus, Corpus(tmp_path / "one")):
        assert (len(found), found.batches, found.tokens, found.answer_tokens) == (3, 2, 14, 7)
        assert [one.label for one in found] == [PEOPLE, other, PEOPLE]
        assert found[1].ids.tolist() == chat.ids.tolist()
        assert found[1].answered.tolist() == chat.answered.tolist()
        assert [one.sampled for one in found] == [False, True, False]
        assert [one.prompt for one in found] == [2, 2, 1]
    part = Corpus(tmp_path / "two")
    part.take(corpus, 1)
    assert (len(part), part.labels) == (1, [PEOPLE])
    part = Corpus(tmp_path / "three")
    part.take(corpus, 0)
    assert [one.ids.tolist() for one in part] == [one.ids.tolist() for one in corpus]
    assert part.batches == 2
    pack(tmp_path / "one", tmp_path / "packed")
    assert is_corpus(tmp_path / "packed")
    again = unpacked(tmp_path / "packed", tmp_path / "scratch")
    assert [one.label for one in again] == [one.label for one in corpus]
    (tmp_path / "packed" / "text.ids.xz").write_bytes(b"torn")
    with pytest.raises(FileError, match="is damaged"):
        unpacked(tmp_path / "packed", tmp_path / "scratch")


def test_prompts_are_held_out_whole_and_by_source(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    for start in range(2):  # every prompt twice: answered greedily and sampled
        batch = [Conversation.of([1, number], [5, start], PEOPLE, bool(start)) for number in range(100)]
        corpus.append([*batch, *(Conversation.of([2, number], [6], Label("list", "other")) for number in range(10))])
    parts = corpus.split("other")
    assert (len(parts.train), len(parts.held_out), len(parts.elsewhere)) == (2 * 91, 2 * 9, 20)
    assert sorted([*parts.train, *parts.held_out, *parts.elsewhere]) == list(range(len(corpus)))
    assert not {corpus[index].digest for index in parts.train} & {corpus[index].digest for index in parts.held_out}
    assert not corpus.split().elsewhere


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Write a Python function that adds two numbers.", "code"),
        ("Translate to Spanish: Where is the station?", "translation"),
        ("TL;DR of the following", "summary"),
        ("Correct the grammar: me goes", "rewriting"),
        ("Extract the names from this passage.", "extraction"),
        ("How many eggs are left?", "mathematics"),
        ("Write a poem about the sea.", "writing"),
        ("Give me five names for a cat.", "list"),
        ("Why is the sky blue?", "question"),
    ],
)
def test_kinds_of_task_are_recognised_by_words(words: str, kind: str) -> None:
    assert kind_of(words) == kind


def test_prompts_are_lines_or_json(tmp_path: Path) -> None:
    lines = tmp_path / "mine.txt"
    lines.write_text("Why?\n\nSummarize this.\n")
    assert [(one.text, one.label) for one in read_prompts(lines)] == [
        ("Why?", Label("question", "mine.txt")),
        ("Summarize this.", Label("summary", "mine.txt")),
    ]
    rows = tmp_path / "people.jsonl"
    rows.write_text('{"prompt": "One\\ntwo", "source": "here", "kind": "chat"}\n\n{"prompt": "Why?"}\n')
    assert [one.label for one in read_prompts(rows)] == [Label("chat", "here"), Label("question", "people.jsonl")]
    assert read_prompts(rows)[0].text == "One\ntwo"
    for wrong in ('{"text": "no prompt"}', "[1]", "3", "{"):
        rows.write_text('{"prompt": "fine"}\n' + wrong)
        with pytest.raises(FileError, match=r"Line 2 .* has no prompt; write JSON"):
            read_prompts(rows)
    lines.write_text("\n")
    with pytest.raises(FileError, match="write one per line"):
        read_prompts(lines)
    with pytest.raises(FileError, match="name a text file"):
        read_prompts(tmp_path / "none")


def test_passages_are_whole_sentences(tmp_path: Path) -> None:
    whole = " ".join(f"This is sentence number {number} of a book." for number in range(400))
    packed = tmp_path / "book.txt.xz"
    packed.write_bytes(lzma.compress(whole.encode()))
    pieces = read_passages(packed)
    assert len(pieces) > 3
    assert all(piece in whole for piece in pieces)
    for seed in range(20):
        prompt = with_passage(Random(seed), pieces)
        assert prompt.label.source == "passages"
        sentences = [part for part in prompt.text.replace("\n\n", " ").split(".") if "sentence number" in part]
        assert all(part.strip().endswith("of a book") for part in sentences[:-1])
    (tmp_path / "short.txt").write_text("Short.")
    with pytest.raises(FileError, match="name a longer file"):
        read_passages(tmp_path / "short.txt")
    (tmp_path / "torn.xz").write_bytes(packed.read_bytes()[:50])
    with pytest.raises(FileError, match="name a text file"):
        read_passages(tmp_path / "torn.xz")


class Scripted:
    """A pipeline that answers every request with the same tokens, after one to three steps."""

    def __init__(self, answer: list[int]) -> None:
        self.answer, self.read, self.going, self.most = answer, list[list[int]](), list[Scripted.Handle](), 0

    @dataclass
    class Handle:
        answer: list[int]
        steps: int

        def get_status(self) -> genai.GenerationStatus:
            return genai.GenerationStatus.RUNNING if self.steps else genai.GenerationStatus.FINISHED

        def read_all(self) -> list[Any]:
            return [SimpleNamespace(generated_ids=self.answer)]

    def add_request(self, number: int, ids: Any, config: genai.GenerationConfig) -> "Scripted.Handle":
        assert number == len(self.read), "numbers must differ"
        self.read.append(ids.data[0].tolist())
        self.going.append(self.Handle(self.answer, 1 + number % 3))
        return self.going[-1]

    def step(self) -> None:
        self.going = [one for one in self.going if one.steps]
        self.most = max(self.most, len(self.going))
        for one in self.going:
            one.steps -= 1


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """A tiny target with a chat template."""
    file = tmp_path / "tiny.gguf"
    gguf_files.write(file, "llama")
    assert list(convert_gguf(file))
    answers = AnswerSettings(greedy=1, tokens=SMALL.answer, batch=SMALL.batch)
    return Writer(folder_of(inspect_gguf(file)), answers, 1)


def scripted(writer: Writer) -> Scripted:
    script = Scripted([*writer.encode("a b a b"), min(writer.ends)])
    writer.pipeline = script
    return script


def test_chats_go_on_for_up_to_three_turns(writer: Writer) -> None:
    assert writer.between, "the template has a place for another turn"
    script = scripted(writer)
    writer.latest.append("A text. Of sentences.")
    written = list(islice(writer.write(writer.begun("0", NO_SOURCES)), 200))
    assert script.most == SMALL.batch, "where one ends another begins"
    turns = [int((np.diff(one.answered.astype(int)) == 1).sum()) for one in written]
    assert {*turns} == {1, 2, 3}
    for one in written:
        assert one.ids[one.answered].tolist() == script.answer * (int(one.answered.sum()) // len(script.answer))
        assert one.ids[: one.prompt].tolist() in script.read
    made_up = [writer.decode(one.ids[: one.prompt].tolist()) for one in written if one.label.source == "target"]
    assert 0 < len(made_up) <= ALIKE * 40  # no more of one opening
    assert writer.openings.most_common(1)[0][1] <= ALIKE
    patterns = [one for one in written if one.label.source == "patterns"]
    share = len(patterns) / len(written)
    assert share == pytest.approx(SHARES["patterns"], abs=0.05), "not even where questions are refused"


def test_every_human_prompt_is_answered_once(writer: Writer, tmp_path: Path) -> None:
    script, corpus = scripted(writer), Corpus(tmp_path / "text")
    prompts = [Prompt(f"Why {number}?", Label("question", "people")) for number in range(70)]

    for total in (20, 60, 100, 100):
        before = len(script.read)
        write_text(writer, corpus, 0, lambda written: len(written) / total, Sources(prompts), lambda _: None)  # noqa: B023
        assert total <= len(corpus) < total + SMALL.batch
    assert len(script.read) == before, "nothing is written into a full corpus"
    asked = [one.digest for one in corpus if one.label.source == "people"]
    assert len(asked) == len({*asked}) == 70
    assert {one.label.source for one in islice(corpus, 60)} == {"people"}


def test_products_that_were_joined_are_read_apart() -> None:
    plain, joined = Network(TARGET), Network(TARGET)
    assert join_products(joined.model)
    joined.nodes = joined.model.get_ordered_ops()
    assert joined.shape == plain.shape
    for index in (0, plain.shape.layers - 1):
        found, wanted = joined.layer(index), plain.layer(index)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
