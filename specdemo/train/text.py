"""Text for a draft to learn from, written by the target: answers to human prompts, then to prompts of four sources.

A draft has to predict what this target says, not what is right, so no corpus serves as well as the target's own text,
written under the settings that the pair is used with. In batches of 64 a target with 135M parameters writes fifty
times as fast as alone: a step's cost is reading the weights, and a batch shares it.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from specdemo.train.corpus import Conversation, Corpus, Label, unpacked
from specdemo.train.prompts import FOLLOW_UPS, Prompt, beginning, from_pattern, kind_of, with_passage
from specdemo.train.request import FULL, Effort, Request

QUESTION, TURNS = 96, 3  # maximum tokens of a question, and turns of a chat
SHORTEST_QUESTION = 4  # tokens
LONGEST_PROMPT, LONGEST_CHAT = 700, 700  # tokens; longer prompts are cut on the left, longer chats end
ALIKE = 12  # maximum questions with the same first three words
TEXT_SHARE = 0.4  # of the minutes
SHARES = {"passages": 0.4, "patterns": 0.1}
"""Shares of a batch, once all human prompts are answered; the target writes the other prompts itself."""
CHATS = 0.35
"""Share of the conversations that continue for another turn."""
_MARKS = ("\u2063one\u2063", "\u2063two\u2063", "\u2063three\u2063")  # placeholder turns, to split the chat template


@dataclass(frozen=True)
class AnswerSettings:
    """Generation settings for answers, the same as the pair will use."""

    penalty: float = 1.1
    temperature: float = 0.7
    greedy: float = 0.8
    """Share of greedy answers."""

    tokens: int = FULL.answer
    """Maximum tokens of an answer."""

    batch: int = FULL.batch
    """Conversations written at once."""


@dataclass(frozen=True)
class Sources:
    """Sources of prompts, besides patterns and the target itself."""

    prompts: Sequence[Prompt] = ()
    """Human prompts; each is answered once, greedily or not, before anything else is written."""

    passages: Sequence[str] = ()
    """Texts for tasks about passages; without any, the target's own answers are used."""

    def given(self, index: int, seed: int, batch: int) -> list[Prompt]:
        """Return the human prompts of a batch; none once all are answered."""
        order = Random(f"{seed} prompts").sample(range(len(self.prompts)), len(self.prompts))
        return [self.prompts[place] for place in order[index * batch : (index + 1) * batch]]


NO_SOURCES = Sources()


@dataclass(eq=False)
class _Chat:
    """A conversation being written."""

    label: Label
    sampled: bool
    ids: list[int]
    answered: list[bool] = field(default_factory=list)

    def add(self, ids: list[int], answered: bool) -> None:
        self.answered += [False] * (len(self.ids) - len(self.answered)) + [answered] * len(ids)
        self.ids = self.ids + ids

    def conversation(self) -> Conversation:
        return Conversation(np.array(self.ids, np.int64), np.array(self.answered, bool), self.label, self.sampled)


class Writer:
    """A target in GenAI's batching pipeline, with its chat template split into parts."""

    def __init__(self, folder: Path, answers: AnswerSettings, threads: int = 0, cache: int = 3) -> None:
        """Load the target; `threads` 0 is OpenVINO's default, `cache` is in GB."""
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = cache, answers.batch
        scheduler.enable_prefix_caching = True
        properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if threads:
            properties["INFERENCE_NUM_THREADS"] = threads
        self.pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
        self.answers = answers
        self.tokenizer = self.pipeline.get_tokenizer()
        self.ends = {self.tokenizer.get_eos_token_id()} | set(self.pipeline.get_config().stop_token_ids)
        self.chat = bool(self.tokenizer.chat_template)
        self.openings: Counter[str] = Counter()  # of prompts that the target wrote
        self.before, self.after = self._turn()
        self.between = self._between()

    def _turn(self) -> tuple[str, str]:
        """Return the chat template's text before a user's words, including the system turn, and after them."""
        if not self.chat:
            return "", ""
        before, _, after = self._filled(_MARKS[:1]).partition(_MARKS[0])
        return before, after

    def _between(self) -> list[int]:
        """Return the tokens between an answer and the user's next words; none if a chat cannot continue."""
        if not self.chat:
            return []
        _, _, rest = self._filled(_MARKS).partition(_MARKS[1])
        between, found, _ = rest.partition(_MARKS[2])
        ids = self.encode(between) if found else []
        return ids[1:] if ids and ids[0] in self.ends else []  # otherwise the template ends answers differently

    def _filled(self, turns: Sequence[str]) -> str:
        history = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(turns)]
        return str(self.tokenizer.apply_chat_template(history, add_generation_prompt=True))

    def batch(self, index: int, seed: int, texts: Sequence[str], sources: Sources) -> list[Conversation]:
        """Return the conversations of a batch; deterministic in its arguments."""
        random = Random(f"{seed} {index}")
        mixed = self._mixed if self.chat else self._beginnings
        prompts = sources.given(index, seed, self.answers.batch) or mixed(random, texts, sources)
        chats = [self._chat(prompt, random) for prompt in prompts]
        self._answer(chats, random)
        for _ in range(TURNS - 1 if self.between else 0):
            going = [one for one in chats if self._goes_on(one) and random.random() < CHATS]
            chats = [one for one in chats if one not in going] + self._followed(going, random)
        return [one.conversation() for one in chats if any(one.answered)]

    def _chat(self, prompt: Prompt, random: Random) -> _Chat:
        ids = self.encode(self.before + prompt.text + self.after)[-LONGEST_PROMPT:]
        return _Chat(prompt.label, random.random() >= self.answers.greedy, ids)

    def _answer(self, chats: Sequence[_Chat], random: Random) -> None:
        configs = [
            self._config(self.answers.tokens, random, self._temperature(one), self.answers.penalty) for one in chats
        ]
        for chat, ids in zip(chats, self._write([one.ids for one in chats], configs), strict=True):
            chat.add(ids, answered=True)

    def _temperature(self, chat: _Chat) -> float:
        return self.answers.temperature if chat.sampled else 0.0

    def _goes_on(self, chat: _Chat) -> bool:
        return chat.ids[-1] in self.ends and len(chat.ids) < LONGEST_CHAT

    def _followed(self, chats: list[_Chat], random: Random) -> list[_Chat]:
        """Add a turn to each chat for which the target or the list provides a follow-up."""
        words = [random.choice(FOLLOW_UPS) if random.random() < 0.4 else "" for _ in chats]
        made = self._questions([one.ids + self.between for one in chats], random, QUESTION // 2)
        going = [(chat, given or own) for chat, given, own in zip(chats, words, made, strict=True) if given or own]
        for chat, text in going:
            chat.add(self.between + self.encode(text + self.after), answered=False)
        self._answer([chat for chat, _ in going], random)
        return chats

    def _mixed(self, random: Random, texts: Sequence[str], sources: Sources) -> list[Prompt]:
        """Return tasks about passages, patterns, and sufficiently varied questions that the target writes."""
        size, passages = self.answers.batch, [*sources.passages, *texts]
        found = [with_passage(random, passages) for _ in range(round(size * SHARES["passages"]) if passages else 0)]
        found += [from_pattern(random, texts) for _ in range(round(size * SHARES["patterns"]))]
        begun = [beginning(random) for _ in range(size)]
        heads = [self.encode(self.before + start) for start in begun]
        for start, text in zip(begun, self._questions(heads, random, QUESTION), strict=True):
            asked = (start + text).strip()
            if text and len(found) < size and self.openings[_opening(asked)] < ALIKE:
                self.openings[_opening(asked)] += 1
                found.append(Prompt(asked, Label(kind_of(asked), "target")))
        # replace questions that begin too much alike; patterns keep to their share
        rest = range(size - len(found))
        return found + [with_passage(random, passages) if passages else from_pattern(random, texts) for _ in rest]

    def _questions(self, heads: Sequence[list[int]], random: Random, tokens: int) -> list[str]:
        """Sample a user's words after each head at temperature 1; "" if they do not end."""
        written = self._write(heads, [self._config(tokens, random, 1.0, 1.0) for _ in heads])
        whole = [ids if len(ids) >= SHORTEST_QUESTION and ids[-1] in self.ends else [] for ids in written]
        return [self.decode([one for one in ids if one not in self.ends]) for ids in whole]

    def _beginnings(self, random: Random, texts: Sequence[str], sources: Sources) -> list[Prompt]:
        """Return prompts for a model without chat: the first words of given texts and of its own."""
        pool = [*(one.text for one in sources.prompts), *sources.passages, *texts]
        pool = pool or ["The", "A", "In", "Once upon a time", "It was", "This", "When"]
        label, size = Label("text", "beginnings"), self.answers.batch
        return [Prompt(" ".join(random.choice(pool).split()[: random.randint(1, 24)]), label) for _ in range(size)]

    def _config(self, tokens: int, random: Random, temperature: float, penalty: float) -> genai.GenerationConfig:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.apply_chat_template = tokens, False
        config.stop_token_ids, config.repetition_penalty = self.ends, penalty
        config.eos_token_id = self.tokenizer.get_eos_token_id()
        if temperature:
            config.do_sample, config.temperature = True, temperature
            config.top_p, config.top_k, config.rng_seed = 0.95, 50, random.randrange(2**31)
        return config

    def _write(self, starts: Sequence[list[int]], configs: list[genai.GenerationConfig]) -> list[list[int]]:
        """Return the new tokens after each start, including the one that ended it."""
        tensors = [ov.Tensor(np.array([start], np.int64)) for start in starts]
        results = self.pipeline.generate(tensors, configs) if tensors else []
        return [list(result.m_generation_ids[0]) for result in results]

    def encode(self, text: str) -> list[int]:
        return [int(one) for one in self.tokenizer.encode(text, add_special_tokens=not self.chat).input_ids.data[0]]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids)))


def write_text(
    writer: Writer,
    corpus: Corpus,
    seed: int,
    share: Callable[[Corpus], float],
    sources: Sources = NO_SOURCES,
    say: Callable[[str], None] = print,
) -> None:
    """Write batches until `share` of the budget is 1, resuming where it stopped."""
    began, first, before = time.monotonic(), corpus.answer_tokens, share(corpus)
    writer.openings.update(_opening(_prompt(writer, one)) for one in corpus if one.label.source == "target")
    kept = 4 * writer.answers.batch
    texts = [_answer(writer, corpus[index]) for index in range(max(0, len(corpus) - kept), len(corpus))]
    while share(corpus) < 1:
        batch = writer.batch(corpus.batches, seed, texts, sources)
        corpus.append(batch)
        texts = (texts + [_answer(writer, one) for one in batch])[-kept:]
        tokens = corpus.answer_tokens
        seconds, done = time.monotonic() - began, share(corpus)
        left = max(0.0, seconds * (1 - done) / max(1e-9, done - before))
        rate = (tokens - first) / seconds
        say(
            f"text: {len(corpus)} conversations, {tokens} tokens of answers, {rate:.0f} a second, "
            f"{left / 60:.0f} minutes left"
        )


def _opening(text: str) -> str:
    return " ".join(text.lower().split()[:3])


def _prompt(writer: Writer, conversation: Conversation) -> str:
    """Return the first user turn."""
    whole = writer.tokenizer.decode(conversation.ids[: conversation.prompt].tolist(), skip_special_tokens=False)
    return str(whole).removeprefix(writer.before).removesuffix(writer.after)


def _answer(writer: Writer, conversation: Conversation) -> str:
    return writer.decode(conversation.ids[conversation.answered].tolist())


def write_corpus(
    request: Request,
    folder: Path,
    work: Path,
    sources: Sources,
    threads: int,
    say: Callable[[str], None],
    effort: Effort = FULL,
) -> Corpus:
    """Let the target, loaded from `folder`, write into `work` until the budget is spent; return the corpus."""
    corpus, done = Corpus(work / "text"), work / "text.done"
    if done.exists():
        return corpus
    if request.text and not len(corpus):
        with TemporaryDirectory(dir=work) as scratch:
            corpus.take(unpacked(Path(request.text), Path(scratch)), request.tokens)
    clock = _Clock(work / "text.seconds", request.minutes * 60 * TEXT_SHARE)

    def share(written: Corpus) -> float:
        return written.answer_tokens / request.tokens if request.tokens else clock.share()

    if share(corpus) < 1:
        answers = AnswerSettings(penalty=request.penalty, tokens=effort.answer, batch=effort.batch)
        writer = Writer(folder, answers, threads)
        write_text(writer, corpus, request.seed, share, sources, say)
    done.touch()
    return corpus


class _Clock:
    """Seconds of a stage, added up over all starts."""

    def __init__(self, file: Path, budget: float) -> None:
        self.file, self.budget = file, budget
        self.before = float(file.read_text()) if file.exists() else 0.0
        self.began = time.monotonic()

    def share(self) -> float:
        """Return the share of the budget that is spent."""
        spent = self.before + time.monotonic() - self.began
        self.file.write_text(f"{spent:.1f}")
        return spent / self.budget
