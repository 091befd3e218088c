"""The stages from a target to a draft: text, labels, training, export, report. Each goes on where it was stopped.

Everything gathers in a hidden folder beside the draft's place and stays until it is deleted: to train longer, raise
the budget in a new run under another name, or start over.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specdemo.train import export
from specdemo.train.card import card
from specdemo.train.conversations import Conversations
from specdemo.train.fit import Plan, endless, fit
from specdemo.train.judge import Judgement, judge
from specdemo.train.labels import Labeller, seen_layers, write_labels
from specdemo.train.lessons import DraftLesson, HeadLesson, Lesson, Start, from_target
from specdemo.train.material import Material
from specdemo.train.network import Network
from specdemo.train.plan import PlanError, Request, keep
from specdemo.train.text import Way, Writer, write_text

EPOCHS = 6  # times that a text is learnt from, where its size is the budget
BATCH = 1280  # tokens; small, since on a CPU the number of steps is what is scarce
LEARNING_RATE = 1e-3
SHARES = {"text": 0.3, "labels": 0.15}  # of the minutes; learning has the rest
LEAST_LAYERS = 10  # of a target that GenAI takes a head for

Say = Callable[[str], None]


class Run:
    """A run of the stages for one request."""

    def __init__(self, request: Request, folder: Path, out: Path, threads: int = 0, say: Say = print) -> None:
        """Prepare, or go on; `folder` is the target's and `out` where the draft will stand.

        Raises:
            PlanError: another request was begun under this name, or no head can be made for this target.
            NetworkError: the target is built in a way that training does not know.
        """
        self.request, self.folder, self.out, self.threads, self.say = request, folder, out, threads, say
        self.work = out.with_name(f".{out.name}.training")
        keep(request, self.work)
        if threads:
            torch.set_num_threads(threads)
        torch.manual_seed(request.seed)
        self.network = Network(folder)
        layers = self.network.shape.layers
        if request.kind == "eagle3" and layers < LEAST_LAYERS:
            raise PlanError(
                f"An EAGLE-3 head needs a target of ten layers, this one has {layers}; choose --kind draft."
            )
        self.seen = seen_layers(layers) if request.kind == "eagle3" else ()

    def everything(self, prompts: Sequence[str] = ()) -> Judgement:
        """All stages, one after the other."""
        conversations = self.text(prompts)
        self.labels(conversations)
        lesson, start, kept, judgement = self.training()
        self.export(lesson, start, kept)
        self.describe(conversations, judgement, "")
        self.say(f"{self.out} is ready")
        return judgement

    def text(self, prompts: Sequence[str] = ()) -> Conversations:
        """The target writes, unless it has written enough."""
        conversations = Conversations(self.work / "text")
        done = self.work / "text.done"
        if not done.exists():
            writer = Writer(self.folder, Way(penalty=self.request.penalty), self.threads)
            clock = _Clock(self.work / "text.seconds", self.request.minutes * 60 * SHARES["text"])

            def enough(written: Conversations) -> bool:
                return written.answer_tokens >= self.request.tokens if self.request.tokens else clock.over()

            write_text(writer, conversations, self.request.seed, enough, prompts, self.say)
            done.touch()
        return conversations

    def labels(self, conversations: Conversations) -> None:
        """The target reads what it wrote, and its states are kept."""
        file = self.work / "text" / "states.f16"
        states = len(self.seen) + 1
        row = states * self.network.shape.hidden * 2
        labeller = Labeller(self.network, self.seen, self.threads)
        write_labels(labeller, row, conversations, file, self.say)

    def training(self) -> tuple[Lesson, Start, npt.NDArray[np.int64], Judgement]:
        """Learn, with early figures."""
        request = self.request
        material = Material([self.work / "text"], self.network, len(self.seen) + 1, request.kept)
        if not material.learnt:
            raise PlanError("The target wrote too little to learn from; raise --tokens or --minutes.")
        lesson, start = self.lesson(material)
        steps = EPOCHS * len(material.epoch(request.seed, 0, BATCH)) if request.tokens else 0
        seconds = 0 if steps else request.minutes * 60 * (1 - sum(SHARES.values()))
        plan = Plan(steps=steps, seconds=seconds, learning_rate=LEARNING_RATE)
        batches = endless(lambda epoch: material.epoch(request.seed, epoch, BATCH), material.batch)

        def figures() -> str:
            return str(judge(lesson, material, request.penalty))

        fit(lesson, lesson.loss, batches, plan, self.work / "training.pt", self.say, figures)
        judgement = judge(lesson, material, request.penalty, answers=400)
        self.say(f"training is done: {judgement}")
        return lesson, start, material.kept, judgement

    def lesson(self, material: Material) -> tuple[Lesson, Start]:
        """A draft that has learnt nothing yet, made of parts of its target."""
        last = self.network.shape.layers - 1
        wanted = 2 if self.request.kind == "eagle3" else self.request.layers
        chosen = sorted({round(last * index / max(1, wanted - 1)) for index in range(wanted)})
        start = from_target(self.network, material.kept, chosen)
        if self.request.kind == "eagle3":
            return HeadLesson(material, start, self.request.penalty, self.network.norm), start
        return DraftLesson(material, start, self.request.penalty), start

    def export(self, lesson: Lesson, start: Start, kept: npt.NDArray[np.int64]) -> None:
        """Write the draft's folder."""
        weights = {name: value.detach().float().numpy() for name, value in lesson.model.state_dict().items()}
        head, size = isinstance(lesson, HeadLesson), self.network.shape.vocabulary
        model = (export.head_model if head else export.draft_model)(start, weights, kept, size)
        settings = _read(self.folder / "config.json")
        described = export.config(self.network, settings, len(start.layers), len(kept), eagle3=head)
        export.save(self.out, model, described, self.folder, tokenizer=not head)

    def describe(self, conversations: Conversations, judgement: Judgement, measured: str) -> None:
        """Write the draft's card."""
        request = self.request
        size = sum(file.stat().st_size for file in self.out.iterdir())
        facts = {
            "target": request.target,
            "text": f"{len(conversations)} conversations, {conversations.answer_tokens} tokens of answers",
            "budget": f"{request.minutes:g} minutes" if request.minutes else f"{EPOCHS} times the text",
            "seed": str(request.seed),
            "size": f"{size / 1e6:.1f} MB, matrices in int8",
        }
        (self.out / "README.md").write_text(card(request, facts, judgement, measured), encoding="utf-8")


class _Clock:
    """Seconds of a stage, counted over all starts."""

    def __init__(self, file: Path, budget: float) -> None:
        self.file, self.budget = file, budget
        self.before = float(file.read_text()) if file.exists() else 0.0
        self.began = time.monotonic()

    def over(self) -> bool:
        spent = self.before + time.monotonic() - self.began
        self.file.write_text(f"{spent:.1f}")
        return spent >= self.budget


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
