"""Resumable stages from a target to a draft: text, labels, training, export, report.

Intermediate files stay in a hidden folder next to the draft's until it is deleted. To train longer, start from the
finished draft under another name.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from specdemo.decoding import TABLE
from specdemo.errors import DiskError, UsageError
from specdemo.models.converted import folder_of
from specdemo.models.folder import inspect_folder
from specdemo.models.graph import seen_layers
from specdemo.models.machine import in_units
from specdemo.models.pairs import initial_runtime, pair_of
from specdemo.records import Costs, Model, ModelPair
from specdemo.train import architecture
from specdemo.train.corpus import Corpus
from specdemo.train.dataset import Dataset, Labeller, write_labels
from specdemo.train.evaluate import (
    Evaluation,
    Figures,
    VocabularyCost,
    best_lookahead,
    card,
    costs_of,
    evaluate,
    race_summary,
    step_seconds,
)
from specdemo.train.fit import Plan, Point, endless, fit, write_json
from specdemo.train.network import Ids, Network, Start, from_draft, from_target, initial_weights
from specdemo.train.objective import DraftLearner, HeadLearner, Learner
from specdemo.train.request import FULL, Clock, Effort, Request, remember
from specdemo.train.table import count
from specdemo.train.text import NO_SOURCES, TEXT_SHARE, Sources, write_corpus

BATCH = 1280  # tokens; small, since on a CPU the number of steps is the bottleneck
LEARNING_RATE = 1e-3
LABELS_SHARE = 0.25  # of the minutes, at most; training gets the rest, and soon overfits a short text
LEAST_LAYERS = 10  # minimum number of target layers for GenAI to accept a head
EVALUATED = 400  # maximum held-out answers in the final evaluation
CURVE, BY_TEXT = "curve.json", "curve-by-text.json"
PARTS = (0.125, 0.25, 0.5)  # shares of the text to train drafts on, for the curve by text
VOCABULARIES = (8192, 16384, 24576)  # sizes to compare, besides the requested one

Say = Callable[[str], None]


class Run:
    """A run of all stages for one request."""

    def __init__(
        self, request: Request, target: Model, out: Path, threads: int = 0, say: Say = print, effort: Effort = FULL
    ) -> None:
        """Prepare or resume a run; `out` is the folder of the finished draft.

        Raises:
            UsageError: this name belongs to another request, no head can be made for this target, or a draft was to
                begin from a head.
            ModelError: training does not support the target's architecture.
        """
        self.request, self.target, self.out, self.threads, self.say = request, target, out, threads, say
        self.effort, self.folder = effort, folder_of(target)
        self.network = Network(self.folder)
        self.network.layer(0)  # raises on unsupported architectures
        layers = self.network.shape.layers
        if request.kind == "eagle3":
            self._check_head(layers)
        self.read_layers = seen_layers(layers) if request.kind == "eagle3" else ()
        self.before = from_draft(Path(request.begin), self.network) if request.begin else None
        if self.before and self.before[0].head and request.kind != "eagle3":
            raise UsageError("A draft cannot begin from a head; add --kind eagle3, or name a draft with --from.")
        self.work = out.with_name(f".{out.name}.training")
        remember(request, self.work)
        if threads:
            torch.set_num_threads(threads)
        torch.manual_seed(request.seed)

    def _check_head(self, layers: int) -> None:
        if layers < LEAST_LAYERS:
            raise UsageError(
                f"An EAGLE-3 head needs a target of ten layers, this one has {layers}; choose --kind draft."
            )
        ends = self.network.ends
        if not all(f"layers.{layer}/" in ends[layer].get_friendly_name() for layer in seen_layers(layers)):
            raise UsageError(
                "OpenVINO GenAI would not find this target's layers, whose names it does not recognise; "
                "choose --kind draft, or a target that optimum-intel exported."
            )

    def everything(self, sources: Sources = NO_SOURCES) -> Evaluation:
        """Run all stages.

        Raises:
            SpecdemoError: as raised by a stage.
        """
        corpus = write_corpus(self.request, self.folder, self.work, sources, self.threads, self.say, self.effort)
        self.labels(corpus)
        dataset = self.dataset()
        vocabularies = self.vocabularies(dataset)
        learner, curve, costs = self.training(dataset)
        figures = self.figures(learner, dataset)
        alike, elsewhere = figures.alike, figures.elsewhere
        by_text = [*(self.part(dataset, share) for share in PARTS), figures] if self.request.curve else []
        made = self.work / "draft"
        self.export(learner, dataset.vocabulary, made)
        write_json(curve, made / CURVE)
        if by_text:
            write_json(by_text, made / BY_TEXT)
        if self.request.kind == "draft":
            count(corpus, self.network.shape.vocabulary, self.request.hold_out)[0].save(made / TABLE)
        measured = ""
        if self.effort.races:
            lookahead, _ = best_lookahead(elsewhere or alike, costs)
            measured = race_summary(self._pair(made), self.request, lookahead, self.effort)
        self.describe(made, dataset, vocabularies, [*by_text[:-1], figures], measured)
        made.rename(self.out)
        self.say(
            f"{self.out} is ready: {alike}" + (f"; on {self.request.hold_out}: {elsewhere}" if elsewhere else "")
        )
        if measured:
            self.say(measured)
        stored = sum(file.stat().st_size for file in self.work.rglob("*") if file.is_file())
        self.say(f"{self.work} holds its text and checkpoint, {in_units(stored)}; delete it once you need neither.")
        return alike

    def labels(self, corpus: Corpus) -> None:
        """Store the target's hidden states on its own text, as much of it as the labels' share of the minutes allows.

        Raises:
            DiskError: there is not enough space.
        """
        file, row = self.work / "text" / "states.f16", (len(self.read_layers) + 1) * self.network.shape.hidden * 2
        written = file.stat().st_size if file.exists() else 0
        clock = Clock(self.work / "labels.seconds", self.request.minutes * 60 * LABELS_SHARE)
        if written and clock.share() >= 1:
            return
        needed, free = corpus.tokens * row - written, shutil.disk_usage(self.work).free
        if needed > free:
            raise DiskError(
                f"The target's hidden states need {in_units(needed)}, but {self.work} has only "
                f"{in_units(free)} free; free some space and repeat the command, which continues from here."
            )
        if needed:
            labeller = Labeller(self.network, self.read_layers, self.threads)
            write_labels(labeller, row, corpus, file, clock.share, self.say)

    def dataset(self) -> Dataset:
        """Return the text with its labels and the draft's vocabulary.

        Raises:
            UsageError: there is too little text.
        """
        dataset = Dataset(self.work / "text", self.network, len(self.read_layers) + 1, self.request.hold_out)
        if not dataset.train or not dataset.held_out:
            raise UsageError(
                "The target wrote too little to learn from; choose another --out, with more --tokens or --minutes."
            )
        dataset.choose(dataset.frequent(self.request.vocabulary))
        return dataset

    def vocabularies(self, dataset: Dataset) -> list[VocabularyCost]:
        """Compare vocabulary sizes by the cost of a step and tokens left out; measured once."""
        file = self.work / "vocabularies.json"
        if not file.exists():
            counts, most = dataset.counts(), self.network.shape.vocabulary
            sizes = sorted({min(size, most) for size in (*VOCABULARIES, self.request.vocabulary)})
            tokens = [dataset.frequent(size) for size in sizes]
            seconds = [0.0] * len(sizes)
            if self.request.kind == "draft":
                starts = [(self.start(some), some) for some in tokens]
                models = [
                    architecture.draft_model(start, initial_weights(start), some, most) for start, some in starts
                ]
                seconds = step_seconds(models, self.threads)
            outside = [1 - float(counts[some].sum() / counts.sum()) for some in tokens]
            file.write_text(json.dumps(list(zip(sizes, outside, seconds, strict=True))), encoding="utf-8")
        found = [VocabularyCost(*row) for row in json.loads(file.read_text(encoding="utf-8"))]
        for one in found:
            self.say(f"vocabulary of {one}")
        return found

    def training(self, dataset: Dataset, share: float = 1) -> tuple[Learner, list[Point], Costs | None]:
        """Train with intermediate evaluations; a share of the text gets the same share of the steps or seconds."""
        request = self.request
        learner = self.learner(dataset)
        costs = self.costs(learner, dataset.vocabulary) if self.effort.races else None
        steps = self.effort.epochs * len(dataset.epoch(request.seed, 0, BATCH)) if request.tokens else 0
        seconds = 0 if steps else request.minutes * 60 * (1 - TEXT_SHARE - LABELS_SHARE)
        plan = Plan(
            steps=steps,
            seconds=seconds * share / (1 + sum(PARTS) * request.curve),
            learning_rate=LEARNING_RATE,
        )
        batches = endless(lambda epoch: dataset.epoch(request.seed, epoch, BATCH), dataset.batch)

        def check() -> Evaluation:
            found = evaluate(learner, dataset, dataset.held_out, request.penalty)
            lookahead, speedup = best_lookahead(found, costs)
            if speedup:
                self.say(f"predicted speedup {speedup:.2f} at lookahead {lookahead}")
            return found

        checkpoint = self.work / ("training.pt" if share == 1 else f"training-{share:g}.pt")
        curve = fit(learner, learner.loss, batches, plan, checkpoint, check, self.say, self.effort.save_seconds)
        return learner, curve, costs

    def part(self, dataset: Dataset, share: float) -> Figures:
        """Train a draft on a share of the text, with the full text's vocabulary, and evaluate it."""
        reduced = dataset.reduced(share, self.request.seed)
        self.say(f"curve: training on {reduced.answer_tokens} tokens of answers")
        return self.figures(self.training(reduced, share)[0], reduced)

    def figures(self, learner: Learner, dataset: Dataset) -> Figures:
        """Evaluate on held-out prompts from the training sources, and on the source left out."""
        alike, elsewhere = (
            evaluate(learner, dataset, indices, self.request.penalty, EVALUATED)
            for indices in (dataset.held_out, dataset.elsewhere)
        )
        return Figures(dataset.answer_tokens, alike, elsewhere if elsewhere.tokens else None)

    def learner(self, dataset: Dataset) -> Learner:
        """Return an untrained draft: parts of its target, or an earlier draft with another vocabulary."""
        start, request = self.start(dataset.vocabulary), self.request
        if request.kind == "eagle3":
            return HeadLearner(dataset, start, request, self.network.norm)
        return DraftLearner(dataset, start, request)

    def start(self, vocabulary: Ids) -> Start:
        """Return the initial weights for a vocabulary."""
        if self.before:
            start, earlier = self.before
            return start.grown(earlier, vocabulary, self.network)
        last = self.network.shape.layers - 1
        return from_target(self.network, vocabulary, (0, last) if last else (0,))

    def costs(self, learner: Learner, vocabulary: Ids) -> Costs | None:
        """Measure the pair's step costs, once, since they do not depend on the weights."""
        file = self.work / "costs.json"
        if not file.exists():
            untrained = self.work / "untrained"
            self.export(learner, vocabulary, untrained)
            self.say("measuring step costs")
            costs = costs_of(self._pair(untrained))
            shutil.rmtree(untrained)
            if costs is None:
                return None
            file.write_text(costs.model_dump_json(), encoding="utf-8")
        return Costs.model_validate_json(file.read_text(encoding="utf-8"))

    def _pair(self, draft: Path) -> ModelPair:
        runtime = initial_runtime(self.target).model_copy(update={"inference_num_threads": self.threads})
        return pair_of(self.target, inspect_folder(draft, draft=True), runtime=runtime)

    def export(self, learner: Learner, vocabulary: Ids, out: Path) -> None:
        weights = {name: value.detach().float().numpy() for name, value in learner.model.state_dict().items()}
        head, size, start = isinstance(learner, HeadLearner), self.network.shape.vocabulary, learner.trained()
        model = (architecture.head_model if head else architecture.draft_model)(start, weights, vocabulary, size)
        settings = _read(self.folder / "config.json")
        described = architecture.config(self.network, settings, len(start.layers), eagle3=head)
        architecture.save(out, model, described, self.folder, tokenizer=not head)

    def describe(
        self,
        made: Path,
        dataset: Dataset,
        vocabularies: Sequence[VocabularyCost],
        figures: Sequence[Figures],
        measured: str,
    ) -> None:
        """Write the draft's card into its folder; `figures` are for drafts of more and more text, this one last."""
        request, text = self.request, dataset.corpus
        size = sum(file.stat().st_size for file in made.iterdir())
        budget = f"{request.minutes:g} minutes" if request.minutes else f"at most {self.effort.epochs} times the text"
        also = ", hidden states matched" * request.match_states + ", mistakes replayed" * request.replay
        also += f", chain length {request.chain}" * (request.kind == "eagle3")
        facts = {
            "target": request.target,
            "text": f"{len(text)} conversations, {text.answer_tokens} tokens of answers"
            + f", {int(dataset.labelled.sum())} of them labelled" * (not dataset.labelled.all()),
            "budget": f"{budget}; objective {request.objective}{also}",
            **({"initial weights": Path(request.begin).name} if request.begin else {}),
            "seed": str(request.seed),
            "vocabulary": f"{len(dataset.vocabulary)} tokens, those that the target's answers use most often",
            "other vocabularies": "; ".join(map(str, vocabularies)),
            "size": f"{in_units(size)}, matrices in int8",
        }
        (made / "README.md").write_text(card(request, facts, figures, measured), encoding="utf-8")


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
