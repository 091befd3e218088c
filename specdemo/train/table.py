"""A target's n-gram table, counted from its text: a drafter without a model, and without PyTorch.

Alone it predicts a fifth of the tokens, and two fifths where five tokens match (SmolLM2-135M-Instruct, 700,000 tokens
of answers); a lookup takes about ten microseconds. The traced engine uses it as a source of proposals.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specdemo.decoding import LONGEST, TABLE, Table
from specdemo.errors import UsageError
from specdemo.models.converted import folder_of
from specdemo.models.machine import in_units
from specdemo.records import Model
from specdemo.train.corpus import Corpus
from specdemo.train.network import Network
from specdemo.train.request import FULL, Effort, Request, remember
from specdemo.train.text import NO_SOURCES, Sources, write_corpus

EVALUATED = 400  # maximum conversations


class Predictions(NamedTuple):
    """Tokens and correct predictions on greedy answers, by length of the matching context (0: none)."""

    tokens: list[int]
    right: list[int]

    @property
    def agreement(self) -> float:
        """Share of all tokens that are predicted."""
        return sum(self.right) / max(1, sum(self.tokens))


def count(corpus: Corpus, vocabulary: int, hold_out: str = "") -> tuple[Table, Predictions, Predictions]:
    """Count the training part; return the table, and its predictions on held-out prompts and the source left out."""
    parts = corpus.split(hold_out)
    texts = (corpus[index] for index in parts.train)
    table = Table.count(((one.ids, one.answered) for one in texts), vocabulary)
    return table, predictions(table, corpus, parts.held_out), predictions(table, corpus, parts.elsewhere)


def predictions(table: Table, corpus: Corpus, indices: Sequence[int]) -> Predictions:
    """Predict the greedy answers among these conversations."""
    found = Predictions([0] * (LONGEST + 1), [0] * (LONGEST + 1))
    for conversation in [one for one in map(corpus.__getitem__, indices) if not one.sampled][:EVALUATED]:
        ids = conversation.ids.tolist()
        for place in np.flatnonzero(conversation.answered).tolist():
            following = table.following(ids[max(0, place - LONGEST) : place])
            size = following.size if following else 0
            found.tokens[size] += 1
            found.right[size] += following is not None and following.token == ids[place]
    return found


def make_table(
    request: Request,
    target: Model,
    out: Path,
    sources: Sources = NO_SOURCES,
    threads: int = 0,
    say: Callable[[str], None] = print,
    effort: Effort = FULL,
) -> Predictions:
    """Let the target write, count its n-grams, and store the table and its card in the folder `out`.

    Raises:
        UsageError: this name belongs to another request, or there is too little text.
    """
    folder, work = folder_of(target), out.with_name(f".{out.name}.training")
    remember(request, work)
    corpus = write_corpus(request, folder, work, sources, threads, say, effort)
    table, alike, elsewhere = count(corpus, Network(folder).vocabulary, request.hold_out)
    if not len(table):
        raise UsageError("The target wrote too little; choose another --out, with more --tokens or --minutes.")
    made = work / "table"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    table.save(made / TABLE)
    size = in_units((made / TABLE).stat().st_size)
    (made / "README.md").write_text(_card(request, corpus, table, alike, elsewhere, size), encoding="utf-8")
    made.rename(out)
    say(f"{out} is ready: {alike.agreement:.1%} of held-out tokens predicted, {size}")
    return alike


def _card(
    request: Request, corpus: Corpus, table: Table, alike: Predictions, elsewhere: Predictions, size: str
) -> str:
    columns = {"held-out prompts of its sources": alike}
    if sum(elsewhere.tokens):
        columns[f"prompts of a source left out ({request.hold_out})"] = elsewhere
    cells = [
        [f"{right / tokens:.0%} of {tokens}" if tokens else "–" for tokens, right in zip(*found, strict=True)]
        for found in columns.values()
    ]
    names = ["no context", "1 token", *(f"{size} tokens" for size in range(2, LONGEST + 1))]
    rows = [f"| {' | '.join([name, *row])} |" for name, *row in zip(names, *cells, strict=True)]
    total = [f"**{found.agreement:.1%}**" for found in columns.values()]
    lines = [
        f"# A table of n-grams for {request.target}",
        "",
        f"`{TABLE}` holds what the target most often said after one to {LONGEST} tokens, counted by "
        "`python -m specdemo train-draft --kind table` from text that the target wrote itself, under repetition "
        f"penalty {request.penalty:g}. It has {len(table)} contexts that occurred at least twice, from {len(corpus)} "
        f"conversations with {corpus.answer_tokens} tokens of answers ({size}).",
        "",
        "Tokens of the target's greedy answers that it predicts, by the length of the longest context found:",
        "",
        f"| | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
        *rows,
        f"| all | {' | '.join(total)} |",
    ]
    return "\n".join(lines) + "\n"
