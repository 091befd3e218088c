"""The target writes what its draft will learn from: questions in part, and all answers, under the settings of use.

A draft has to foretell what this target says, not what is right, so no corpus serves as well as the target's own
text. In batches of 64 a target of 135M parameters writes fifty times as fast as alone: a step's cost is reading the
weights, and a batch shares it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

from specdemo.train.conversations import Conversation, Conversations
from specdemo.train.questions import beginning, filled

BATCH = 64  # conversations
QUESTION, ANSWER = 96, 256  # tokens at most
SHORTEST_QUESTION = 3  # tokens
MARK = "\u2063question\u2063"  # stands for the user's words while the chat template is taken apart


@dataclass(frozen=True)
class AnswerSettings:
    """How answers are written: as the pair will be used."""

    penalty: float = 1.1
    temperature: float = 0.7
    greedy: float = 0.65
    """Share of the answers."""


class Writer:
    """A target in GenAI's batching pipeline, and its chat template taken apart."""

    def __init__(self, folder: Path, answers: AnswerSettings, threads: int = 0, cache: int = 2) -> None:
        """Load the target; `threads` 0 leaves their number to OpenVINO, `cache` is in GB."""
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = cache, BATCH
        scheduler.enable_prefix_caching = True
        properties: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if threads:
            properties["INFERENCE_NUM_THREADS"] = threads
        self.pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
        self.answers = answers
        self.tokenizer = self.pipeline.get_tokenizer()
        self.ends = {self.tokenizer.get_eos_token_id()} | set(self.pipeline.get_config().stop_token_ids)
        self.chat = bool(self.tokenizer.chat_template)
        self.before, self.after = self._turn()

    def _turn(self) -> tuple[str, str]:
        """What the chat template puts before a user's words, system turn included, and after them."""
        if not self.chat:
            return "", ""
        history = [{"role": "user", "content": MARK}]
        before, _, after = self.tokenizer.apply_chat_template(history, add_generation_prompt=True).partition(MARK)
        return before, after

    def batch(self, index: int, seed: int, texts: list[str], prompts: Sequence[str]) -> list[Conversation]:
        """Conversations of a batch; the same ones for the same arguments."""
        random = Random(f"{seed} {index}")
        asked = self._questions(random, texts, prompts) if self.chat else self._openings(random, texts, prompts)
        starts = [self._encode(self.before + question + self.after) for question in asked]
        sampled = [random.random() >= self.answers.greedy for _ in starts]
        answers = self._write(starts, [self._config(ANSWER, random, one, self.answers.penalty) for one in sampled])
        rows = zip(starts, answers, sampled, strict=True)
        return [
            Conversation(np.array(start + answer, np.int64), len(start), drawn)
            for start, answer, drawn in rows
            if answer
        ]

    def _questions(self, random: Random, texts: list[str], prompts: Sequence[str]) -> list[str]:
        """Half from patterns, or a third where the user gave prompts; the others by the target itself."""
        given = [random.choice(prompts) for _ in range(BATCH // 3 if prompts else 0)]
        made = [filled(random, texts) for _ in range((BATCH - len(given)) // 2)]
        begun = [beginning(random) for _ in range(BATCH - len(given) - len(made))]
        heads = [self._encode(self.before + start) for start in begun]
        written = self._write(heads, [self._config(QUESTION, random, True, 1.0) for _ in heads])
        own = []
        for start, ids in zip(begun, written, strict=True):
            if len(ids) >= SHORTEST_QUESTION:
                own.append((start + self.decode([one for one in ids if one not in self.ends])).strip())
        return given + made + own

    def _openings(self, random: Random, texts: list[str], prompts: Sequence[str]) -> list[str]:
        """Beginnings of texts, for a model that only continues: given ones, and words from what it wrote."""
        pool = [*prompts, *texts] or ["The", "A", "In", "Once upon a time", "It was", "This", "When"]
        return [" ".join(random.choice(pool).split()[: random.randint(1, 24)]) for _ in range(BATCH)]

    def _config(self, tokens: int, random: Random, sampled: bool, penalty: float) -> genai.GenerationConfig:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.apply_chat_template = tokens, False
        config.stop_token_ids, config.repetition_penalty = self.ends, penalty
        config.eos_token_id = self.tokenizer.get_eos_token_id()
        if sampled:
            config.do_sample, config.temperature = True, self.answers.temperature
            config.top_p, config.top_k, config.rng_seed = 0.95, 50, random.randrange(2**31)
        return config

    def _write(self, starts: list[list[int]], configs: list[genai.GenerationConfig]) -> list[list[int]]:
        """New tokens after each start, the one that ended it included."""
        tensors = [ov.Tensor(np.array([start], np.int64)) for start in starts]
        results = self.pipeline.generate(tensors, configs) if tensors else []
        return [list(result.m_generation_ids[0]) for result in results]

    def _encode(self, text: str) -> list[int]:
        return [int(one) for one in self.tokenizer.encode(text, add_special_tokens=not self.chat).input_ids.data[0]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special ones left out."""
        return str(self.tokenizer.decode(list(ids)))


def write_text(
    writer: Writer,
    conversations: Conversations,
    seed: int,
    share: Callable[[Conversations], float],
    prompts: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Write batches until the budget is spent, of which `share` tells how much is; continues where it was stopped."""
    began, first, before = time.monotonic(), conversations.answer_tokens, share(conversations)
    recent = max(0, len(conversations) - 4 * BATCH)
    texts = [_answer(writer, conversations[index]) for index in range(recent, len(conversations))]
    while share(conversations) < 1:
        batch = writer.batch(conversations.batches, seed, texts, prompts)
        conversations.append(batch)
        texts = (texts + [_answer(writer, one) for one in batch])[-4 * BATCH :]
        tokens = conversations.answer_tokens
        seconds, done = time.monotonic() - began, share(conversations)
        left = max(0.0, seconds * (1 - done) / max(1e-9, done - before))
        rate = (tokens - first) / seconds
        say(
            f"text: {len(conversations)} conversations, {tokens} tokens of answers, {rate:.0f} a second, "
            f"{left / 60:.0f} minutes left"
        )


def _answer(writer: Writer, conversation: Conversation) -> str:
    return writer.decode(conversation.ids[conversation.prompt :].tolist())
