"""The scripts that train and distil a pair, a few steps of them; where PyTorch is installed."""

import importlib.util
import lzma
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdemo.analysis.oracle import passes

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")),
    reason="PyTorch is not installed; assets/training/requirements.txt has what training needs",
)
SCRIPTS = Path(__file__).resolve().parents[1] / "assets" / "training"


@pytest.fixture(autouse=True, scope="module")
def _scripts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("children", "novels"):
        books = [
            f"The {name} of book {book} went on.\n\n" + "And so they did, said the fox. " * 80 for book in range(20)
        ]
        (folder / f"{name}_pd.txt.xz").write_bytes(lzma.compress("<|endoftext|>".join(books).encode()))
    return folder


def make(work: Path, corpus: Path, *options: str) -> str:
    command = [sys.executable, str(SCRIPTS / "make_pair.py"), "tiny", str(work), "--corpus", str(corpus), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_tiny_pair_is_made_and_what_is_done_is_not_done_again(tmp_path: Path, corpus: Path) -> None:
    first = make(tmp_path, corpus)
    assert "target-corpus: step 6 of 6" in first
    assert "draft-own_text: step 4 of 4" in first
    for role in ("target", "draft"):
        assert {"config.json", "model.safetensors"} <= {file.name for file in (tmp_path / role).iterdir()}
    assert (tmp_path / "draft" / "tokenizer.json").is_file()
    report = (tmp_path / "report.md").read_text()
    for words in ("children | novels | python", "| draft, greedy |", "τ at lookahead 4", "unselected"):
        assert words in report
    again = make(tmp_path, corpus, "--compare", str(tmp_path / "draft"))
    assert "step" not in again.partition("|")[0]
    assert str(tmp_path / "draft") in (tmp_path / "report.md").read_text()


def test_a_drafts_recipe_for_another_target_asks_for_it(tmp_path: Path, corpus: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "make_pair.py"), "bundled", str(tmp_path), "--corpus", str(corpus)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "give it with --target" in done.stderr


def test_training_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    import torch

    import fit

    monkeypatch.setattr(fit, "SAVE_EVERY", 3)
    text = np.tile(np.arange(40, dtype=np.uint16), 50)
    batches = fit.windows({"text": text}, {"text": 1}, batch=2, length=16)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}

    def interrupted(step: int) -> torch.Tensor:
        if step == 5:
            raise InterruptedError
        return batches(step)

    whole, parts = fit.llama(shape, 40), fit.llama(shape, 40)
    fit.fit(whole, fit.from_text, batches, 40, 0.03, tmp_path / "whole.pt")
    with pytest.raises(InterruptedError):
        fit.fit(parts, fit.from_text, interrupted, 40, 0.03, tmp_path / "parts.pt")
    resumed = fit.llama(shape, 40)
    fit.fit(resumed, fit.from_text, batches, 40, 0.03, tmp_path / "parts.pt")
    for ours, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    learnt, untaught = (fit.from_text(model, batches(99)).item() for model in (whole, fit.llama(shape, 40)))
    assert learnt < 0.8 * untaught


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 8))
def test_accepted_length_is_that_of_the_rounds(agrees: list[bool], lookahead: int) -> None:
    from evaluate import accepted_length

    rounds = passes(agrees, lookahead, len(agrees) + lookahead + 1).target
    assert accepted_length(agrees, lookahead) == pytest.approx(len(agrees) / rounds)


def test_whole_documents_are_held_out() -> None:
    from texts import pieces, split

    documents = [f"{number} " * (50 + number) for number in range(30)]
    learnt, held_out = split(documents, 0.2)
    assert sorted(learnt + held_out) == sorted(documents)
    assert sum(map(len, held_out)) >= 0.2 * sum(map(len, documents))
    assert split(documents, 0.2) == (learnt, held_out)
    book = "\n\n".join(f"{number} " * 300 for number in range(40))
    assert "\n\n".join(pieces(book)) == book
    assert len(list(pieces(book))) > 1


def test_python_is_learnt_without_its_tests() -> None:
    from texts import sources

    packages = sources("python", Path())
    assert any("class Counter" in text for text in packages)
    assert not any("import unittest.mock\n\nclass Test" in text for text in packages)
    with pytest.raises(SystemExit, match="--corpus"):
        sources("novels", Path("nowhere"))
