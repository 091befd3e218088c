"""Text for a draft to learn from, written by the target: answers to human prompts, then to prompts of four sources.

A draft has to predict what this target says, not what is right, so no corpus serves as well as the target's own text,
written under the settings that the pair is used with. A target with 135M parameters writes 64 conversations at once
fifty times as fast as one: a step's cost is reading the weights, and a batch shares it. Each conversation is a
coroutine that asks for one continuation after another; where one ends another begins, so that the batch stays full.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice, takewhile
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import numpy as np
import openvino as ov
import openvino_genai as genai

from specdemo.train.corpus import Conversation, Corpus, Label, unpacked
from specdemo.train.prompts import BEGINNINGS, FOLLOW_UPS, Prompt, beginning, from_pattern, kind_of, with_passage
from specdemo.train.request import FULL, Clock, Effort, Request

QUESTION, TURNS = 96, 3  # maximum tokens of a question, and turns of a chat
SHORTEST_QUESTION = 4  # tokens
LONGEST_PROMPT, LONGEST_CHAT = 700, 700  # tokens; longer prompts are cut on the left, longer chats end
ATTEMPTS = 2  # at a question of the target's own, before another source takes its place
LATEST = 256  # answers of the target's own that serve as passages
ALIKE = 12  # maximum questions with the same three words after the given beginning
TEXT_SHARE = 0.4  # of the minutes
SHARES = {"passages": 0.4, "patterns": 0.1}
"""Shares of the prompts, once all human ones are answered; the target writes the others itself."""
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


class _Ask(NamedTuple):
    """A text for the target to continue."""

    ids: list[int]
    config: genai.GenerationConfig


_Result = TypeVar("_Result")
_Written = Generator[_Ask, list[int], _Result]
"""Yields what the target is to continue, is sent the new tokens, and returns what came of them."""


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
        self.numbers = count()  # of requests
        self.answers = answers
        self.tokenizer = self.pipeline.get_tokenizer()
        self.ends = {self.tokenizer.get_eos_token_id()} | set(self.pipeline.get_config().stop_token_ids)
        self.chat = bool(self.tokenizer.chat_template)
        self.openings: Counter[str] = Counter()  # of prompts that the target wrote
        self.latest: deque[str] = deque(maxlen=LATEST)  # answers
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

    def begun(self, seed: str, sources: Sources, done: Container[int] = ()) -> Iterator[_Written[Conversation]]:
        """Return conversations to write, without end; first a human prompt's each, unless its digest is in `done`."""
        for number, prompt in enumerate(Random(f"{seed} prompts").sample(sources.prompts, len(sources.prompts))):
            random = Random(f"{seed} prompts {number}")
            chat = self._chat(prompt, random)
            if chat.conversation().digest not in done:
                yield self._converse(chat, random)
        for number in count():
            yield self._made_up(sources, Random(f"{seed} {number}"))

    def write(self, begun: Iterator[_Written[Conversation]]) -> Iterator[Conversation]:
        """Yield conversations as they end, `answers.batch` at once; one for which the cache has no room is empty."""
        going: list[tuple[_Written[Conversation], genai.GenerationHandle]] = []
        ready: list[tuple[_Written[Conversation], list[int] | None]] = []
        while True:
            ready += [(one, None) for one in islice(begun, self.answers.batch - len(going) - len(ready))]
            if not ready and not going:
                return
            for one, ids in ready:
                try:
                    ask = next(one) if ids is None else one.send(ids)
                except StopIteration as end:
                    yield end.value
                else:
                    start = ov.Tensor(np.array([ask.ids], np.int64))
                    going.append((one, self.pipeline.add_request(next(self.numbers), start, ask.config)))
            self.pipeline.step()
            running = genai.GenerationStatus.RUNNING
            ended = {one: handle for one, handle in going if handle.get_status() != running}
            ready = [
                (one, [token for part in handle.read_all() for token in part.generated_ids])
                for one, handle in ended.items()
            ]
            going = [(one, handle) for one, handle in going if one not in ended]

    def _made_up(self, sources: Sources, random: Random) -> _Written[Conversation]:
        prompt = (yield from self._prompt(sources, random)) if self.chat else self._beginning(sources, random)
        return (yield from self._converse(self._chat(prompt, random), random))

    def _chat(self, prompt: Prompt, random: Random) -> _Chat:
        ids = self.encode(self.before + prompt.text + self.after)[-LONGEST_PROMPT:]
        return _Chat(prompt.label, random.random() >= self.answers.greedy, ids)

    def _converse(self, chat: _Chat, random: Random) -> _Written[Conversation]:
        yield from self._answer(chat, random)
        for _ in range(TURNS - 1 if self.between else 0):
            if chat.ids[-1] not in self.ends or len(chat.ids) >= LONGEST_CHAT or random.random() >= CHATS:
                break
            text = yield from self._follow_up(chat, random)
            if not text:
                break
            chat.add(self.between + self.encode(text + self.after), answered=False)
            yield from self._answer(chat, random)
        return chat.conversation()

    def _answer(self, chat: _Chat, random: Random) -> _Written[None]:
        temperature = self.answers.temperature if chat.sampled else 0.0
        config = self._config(self.answers.tokens, random, temperature, self.answers.penalty)
        chat.add((yield _Ask(chat.ids, config)), answered=True)

    def _follow_up(self, chat: _Chat, random: Random) -> _Written[str]:
        """Return the user's next words, from the list or the target's own; "" if it provides none."""
        if random.random() < 0.4:
            return random.choice(FOLLOW_UPS)
        return (yield from self._question(chat.ids + self.between, random, QUESTION // 2))

    def _prompt(self, sources: Sources, random: Random) -> _Written[Prompt]:
        """Return a task about a passage, a filled pattern, or a less common question of its own."""
        drawn = random.random()
        if drawn < SHARES["patterns"]:
            return from_pattern(random, self.latest)
        passages = [*sources.passages, *self.latest]
        if not passages or drawn >= SHARES["patterns"] + SHARES["passages"]:
            for _ in range(ATTEMPTS):
                start = beginning(random)
                text = yield from self._question(self.encode(self.before + start), random, QUESTION)
                asked = (start + text).strip()
                if text and self.openings[_opening(asked)] < ALIKE:
                    self.openings[_opening(asked)] += 1
                    return Prompt(asked, Label(kind_of(asked), "target"))
        return with_passage(random, passages) if passages else from_pattern(random, self.latest)

    def _question(self, ids: list[int], random: Random, tokens: int) -> _Written[str]:
        """Sample a user's words after `ids` at temperature 1; "" if they do not end."""
        written = yield _Ask(ids, self._config(tokens, random, 1.0, 1.0))
        if len(written) < SHORTEST_QUESTION or written[-1] not in self.ends:
            return ""
        return self.decode([one for one in written if one not in self.ends])

    def _beginning(self, sources: Sources, random: Random) -> Prompt:
        """Return a prompt for a model without chat: the first words of a given text or of its own."""
        pool = [*(one.text for one in sources.prompts), *sources.passages, *self.latest]
        pool = pool or ["The", "A", "In", "Once upon a time", "It was", "This", "When"]
        return Prompt(" ".join(random.choice(pool).split()[: random.randint(1, 24)]), Label("text", "beginnings"))

    def _config(self, tokens: int, random: Random, temperature: float, penalty: float) -> genai.GenerationConfig:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.apply_chat_template = tokens, False
        config.stop_token_ids, config.repetition_penalty = self.ends, penalty
        config.eos_token_id = self.tokenizer.get_eos_token_id()
        if temperature:
            config.do_sample, config.temperature = True, temperature
            config.top_p, config.top_k, config.rng_seed = 0.95, 50, random.randrange(2**31)
        return config

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
    """Write conversations until `share` of the budget is 1, resuming where it stopped."""
    writer.openings.update(_opening(_prompt(writer, one)) for one in corpus if one.label.source == "target")
    writer.latest.extend(_answer(writer, corpus[at]) for at in range(max(0, len(corpus) - LATEST), len(corpus)))
    done = {one.digest for one in corpus} if sources.prompts else set[int]()
    began, first, before = time.monotonic(), corpus.answer_tokens, share(corpus)
    begun = writer.begun(f"{seed} {len(corpus)}", sources, done)
    afforded = takewhile(lambda _: share(corpus) < 1, begun)  # once begun, they are written to their end
    for conversation in writer.write(afforded):
        if conversation.answered.any():
            corpus.append([conversation])
            writer.latest.append(_answer(writer, conversation))
        if len(corpus) % max(1, writer.answers.batch // 4) == 0:
            seconds, spent = time.monotonic() - began, share(corpus)
            left = max(0.0, seconds * (1 - spent) / max(1e-9, spent - before))
            say(
                f"text: {len(corpus)} conversations, {corpus.answer_tokens} tokens of answers, "
                f"{(corpus.answer_tokens - first) / seconds:.0f} a second, {left / 60:.0f} minutes left"
            )


def _opening(question: str) -> str:
    """Return the given beginning and three more words."""
    given = max((start for start in BEGINNINGS if question.startswith(start.strip())), key=len)
    return " ".join(question.lower().split()[: len(given.split()) + 3])


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
    clock = Clock(work / "text.seconds", request.minutes * 60 * TEXT_SHARE)

    def share(written: Corpus) -> float:
        return written.answer_tokens / request.tokens if request.tokens else clock.share()

    if share(corpus) < 1:
        answers = AnswerSettings(penalty=request.penalty, tokens=effort.answer, batch=effort.batch)
        writer = Writer(folder, answers, threads)
        write_text(writer, corpus, request.seed, share, sources, say)
    done.touch()
    return corpus
