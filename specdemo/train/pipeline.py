"""The stages from a target to a draft: text, labels, training, export, report. Each continues where it was stopped.

Everything is kept in a hidden folder beside the draft's place until it is deleted. To train longer, begin from the
finished draft under another name.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from specdemo.errors import DiskError, UsageError
from specdemo.models.converted import folder_of
from specdemo.models.folder import inspect_folder
from specdemo.models.graph import seen_layers
from specdemo.models.memory import in_units
from specdemo.models.pairs import pair_of, suited
from specdemo.records import Costs, Model, ModelPair
from specdemo.train import export
from specdemo.train.card import card
from specdemo.train.conversations import Conversations
from specdemo.train.earlier import from_draft
from specdemo.train.fit import Plan, endless, fit
from specdemo.train.judge import Judgement, judge
from specdemo.train.labels import Labeller, write_labels
from specdemo.train.lessons import DraftLesson, HeadLesson, Lesson, from_target
from specdemo.train.material import Material
from specdemo.train.network import Ids, Network
from specdemo.train.plan import Request, keep
from specdemo.train.races import best_lookahead, costs_of, raced
from specdemo.train.text import AnswerSettings, Writer, write_text

EPOCHS = 6  # times that a text is learnt from, where its size is the budget
BATCH = 1280  # tokens; small, since on a CPU the number of steps is what is scarce
LEARNING_RATE = 1e-3
SHARES = {
    "text": 0.4,
    "labels": 0.25,
}  # of the minutes; learning, which has the rest, soon knows a short text by heart
LEAST_LAYERS = 10  # of a target that GenAI takes a head for
JUDGED = 400  # held-out answers at the end, at most

Say = Callable[[str], None]


class Run:
    """A run of the stages for one request."""

    def __init__(self, request: Request, target: Model, out: Path, threads: int = 0, say: Say = print) -> None:
        """Prepare, or continue; `out` is the draft's folder to be.

        Raises:
            UsageError: another request was begun under this name, or no head can be made for this target.
            ModelError: the target is built in a way that training does not know.
        """
        self.request, self.target, self.out, self.threads, self.say = request, target, out, threads, say
        self.folder = folder_of(target)
        self.network = Network(self.folder)
        self.network.layer(0)  # which refuses other architectures
        layers = self.network.shape.layers
        if request.kind == "eagle3":
            self._check_head(layers)
        self.seen = seen_layers(layers) if request.kind == "eagle3" else ()
        self.before = from_draft(Path(request.begin), self.network) if request.begin else None
        self.work = out.with_name(f".{out.name}.training")
        keep(request, self.work)
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
                "OpenVINO GenAI would not find this target's layers, whose names it does not know; "
                "choose --kind draft, or a target that optimum-intel exported."
            )

    def everything(self, prompts: Sequence[str] = ()) -> Judgement:
        """All stages, one after the other.

        Raises:
            SpecdemoError: what a stage raises.
        """
        conversations = self.text(prompts)
        self.labels(conversations)
        material = Material(self.work / "text", self.network, len(self.seen) + 1)
        material.keep(self.before[1] if self.before else material.frequent(self.request.kept))
        lesson, judgement, costs = self.training(material)
        made = self.work / "draft"
        self.export(lesson, material.kept, made)
        measured = raced(self._pair(made), self.request, best_lookahead(judgement, costs)[0])
        self.describe(made, material, judgement, measured)
        made.rename(self.out)
        self.say(f"{self.out} is ready: {judgement}")
        if measured:
            self.say(measured)
        stored = sum(file.stat().st_size for file in self.work.rglob("*") if file.is_file())
        self.say(f"{self.work} holds its text and checkpoint, {in_units(stored)}; delete it once you need neither.")
        return judgement

    def text(self, prompts: Sequence[str] = ()) -> Conversations:
        """The target writes, unless it has written enough."""
        conversations = Conversations(self.work / "text")
        done = self.work / "text.done"
        if not done.exists():
            writer = Writer(self.folder, AnswerSettings(penalty=self.request.penalty), self.threads)
            clock = _Clock(self.work / "text.seconds", self.request.minutes * 60 * SHARES["text"])

            def share(written: Conversations) -> float:
                tokens = self.request.tokens
                return written.answer_tokens / tokens if tokens else clock.share()

            write_text(writer, conversations, self.request.seed, share, prompts, self.say)
            done.touch()
        return conversations

    def labels(self, conversations: Conversations) -> None:
        """The target reads what it wrote, and its states are kept.

        Raises:
            DiskError: there is no room for them.
        """
        file, row = self.work / "text" / "states.f16", (len(self.seen) + 1) * self.network.shape.hidden * 2
        written = file.stat().st_size if file.exists() else 0
        needed, free = conversations.tokens * row - written, shutil.disk_usage(self.work).free
        if needed > free:
            raise DiskError(
                f"What the target thinks of its text needs {in_units(needed)}, but {self.work} has only "
                f"{in_units(free)} free; free some space and repeat the command, which continues from here."
            )
        if needed:
            write_labels(Labeller(self.network, self.seen, self.threads), row, conversations, file, self.say)

    def training(self, material: Material) -> tuple[Lesson, Judgement, Costs | None]:
        """Learn, with early figures."""
        request = self.request
        if not material.learnt or not material.held_out:
            raise UsageError(
                "The target wrote too little to learn from; choose another --out, with more --tokens or --minutes."
            )
        lesson = self.lesson(material)
        costs = self.costs(lesson, material.kept)
        steps = EPOCHS * len(material.epoch(request.seed, 0, BATCH)) if request.tokens else 0
        seconds = 0 if steps else request.minutes * 60 * (1 - sum(SHARES.values()))
        plan = Plan(steps=steps, seconds=seconds, learning_rate=LEARNING_RATE)
        batches = endless(lambda epoch: material.epoch(request.seed, epoch, BATCH), material.batch)

        def figures() -> str:
            return _figures(judge(lesson, material, request.penalty), costs)

        fit(lesson, lesson.loss, batches, plan, self.work / "training.pt", self.say, figures)
        judgement = judge(lesson, material, request.penalty, answers=JUDGED)
        self.say(f"training is done: {_figures(judgement, costs)}")
        return lesson, judgement, costs

    def lesson(self, material: Material) -> Lesson:
        """A draft that has learnt nothing yet: parts of its target, or an earlier draft."""
        eagle3, last = self.request.kind == "eagle3", self.network.shape.layers - 1
        chosen = (0, last) if last else (0,)
        start = self.before[0] if self.before else from_target(self.network, material.kept, chosen)
        if eagle3:
            return HeadLesson(material, start, self.request.penalty, self.network.norm)
        return DraftLesson(material, start, self.request.penalty)

    def costs(self, lesson: Lesson, kept: Ids) -> Costs | None:
        """Step costs of the pair, measured once: what a draft has learnt does not change them."""
        file = self.work / "costs.json"
        if not file.exists():
            untrained = self.work / "untrained"
            self.export(lesson, kept, untrained)
            self.say("measuring step costs")
            costs = costs_of(self._pair(untrained))
            shutil.rmtree(untrained)
            if costs is None:
                return None
            file.write_text(costs.model_dump_json(), encoding="utf-8")
        return Costs.model_validate_json(file.read_text(encoding="utf-8"))

    def _pair(self, draft: Path) -> ModelPair:
        runtime = suited(self.target).model_copy(update={"inference_num_threads": self.threads})
        return pair_of(self.target, inspect_folder(draft, draft=True), runtime=runtime)

    def export(self, lesson: Lesson, kept: Ids, out: Path) -> None:
        """Write a draft's folder."""
        weights = {name: value.detach().float().numpy() for name, value in lesson.model.state_dict().items()}
        head, size, start = isinstance(lesson, HeadLesson), self.network.shape.vocabulary, lesson.learnt()
        model = (export.head_model if head else export.draft_model)(start, weights, kept, size)
        settings = _read(self.folder / "config.json")
        described = export.config(self.network, settings, len(start.layers), eagle3=head)
        export.save(out, model, described, self.folder, tokenizer=not head)

    def describe(self, made: Path, material: Material, judgement: Judgement, measured: str) -> None:
        """Write the draft's card into its folder."""
        request, text = self.request, material.conversations
        size = sum(file.stat().st_size for file in made.iterdir())
        facts = {
            "target": request.target,
            "text": f"{len(text)} conversations, {text.answer_tokens} tokens of answers",
            "budget": f"{request.minutes:g} minutes" if request.minutes else f"{EPOCHS} times the text",
            **({"began as": Path(request.begin).name} if request.begin else {}),
            "seed": str(request.seed),
            "vocabulary": f"{len(material.kept)} tokens, those that the target's answers use most often",
            "size": f"{in_units(size)}, matrices in int8",
        }
        (made / "README.md").write_text(card(request, facts, judgement, measured), encoding="utf-8")


def _figures(judgement: Judgement, costs: Costs | None) -> str:
    """What was found, and what it would be worth on this machine."""
    lookahead, speedup = best_lookahead(judgement, costs)
    worth = f"; predicted speedup {speedup:.2f} at lookahead {lookahead}" if speedup else ""
    return f"{judgement}{worth}"


class _Clock:
    """Seconds of a stage, counted over all starts."""

    def __init__(self, file: Path, budget: float) -> None:
        self.file, self.budget = file, budget
        self.before = float(file.read_text()) if file.exists() else 0.0
        self.began = time.monotonic()

    def share(self) -> float:
        """Of the budget that is spent."""
        spent = self.before + time.monotonic() - self.began
        self.file.write_text(f"{spent:.1f}")
        return spent / self.budget


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
