"""One training loop for targets and drafts, which goes on where it was stopped."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

SAVE_EVERY = 500  # steps
WARM_UP = 100
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Batches = Callable[[int], torch.Tensor]  # step -> token ids [batch, length + 1]


def llama(shape: dict[str, int], vocabulary: int) -> LlamaForCausalLM:
    """A Llama of random weights, the same ones every time, with shared embeddings."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **shape,
    )
    return LlamaForCausalLM(config).to(DEVICE)


def logits(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Logits [tokens, vocabulary] of the token after each of `ids` [batch, length]; products are in bfloat16."""
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        return model(input_ids=ids, use_cache=False).logits.flatten(0, 1)


def windows(
    texts: dict[str, np.ndarray], weights: dict[str, float], batch: int, length: int, stride: int = 1
) -> Batches:
    """Random windows of texts, which begin at multiples of `stride`.

    A text's share is its weight times its size. A step's windows are always the same.
    """
    names = list(weights)
    sizes = np.array([weights[name] * len(texts[name]) for name in names], float)

    def at(step: int) -> torch.Tensor:
        random = np.random.default_rng((0, step))
        chosen = [texts[names[index]] for index in random.choice(len(names), batch, p=sizes / sizes.sum())]
        starts = [stride * random.integers(0, (len(text) - length - 1) // stride + 1) for text in chosen]
        rows = [text[start : start + length + 1] for text, start in zip(chosen, starts, strict=True)]
        return torch.from_numpy(np.stack(rows).astype(np.int64)).to(DEVICE)

    return at


def from_text(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Loss of a target, in nats a token: the next token's cross-entropy."""
    return functional.cross_entropy(logits(model, ids[:, :-1]).float(), ids[:, 1:].flatten())


def from_teacher(teacher: LlamaForCausalLM) -> Callable[[LlamaForCausalLM, torch.Tensor], torch.Tensor]:
    """Loss of a draft: cross-entropy with a teacher that half follows its distribution and half is greedy.

    The first raises acceptance where the target samples, the second where it does not.
    """

    def loss(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            taught = logits(teacher, ids[:, :-1]).float().softmax(-1).div_(2)
            likeliest = taught.argmax(-1, keepdim=True)
            taught.scatter_add_(1, likeliest, torch.full_like(likeliest, 0.5, dtype=taught.dtype))
        return functional.cross_entropy(logits(model, ids[:, :-1]).float(), taught)

    return loss


def fit(
    model: LlamaForCausalLM,
    loss: Callable[[LlamaForCausalLM, torch.Tensor], torch.Tensor],
    batches: Batches,
    steps: int,
    learning_rate: float,
    checkpoint: Path,
) -> None:
    """Train in place with AdamW, a short rise and a cosine's fall of the learning rate; resume from `checkpoint`."""
    matrices = [weights for weights in model.parameters() if weights.dim() > 1]
    vectors = [weights for weights in model.parameters() if weights.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)
    first = _restore(model, optimizer, checkpoint)
    model.train()
    began, mean = time.monotonic(), 0.0
    for step in range(first, steps):
        for group in optimizer.param_groups:
            fall = 0.02 + 0.49 * (1 + math.cos(math.pi * step / steps))
            group["lr"] = learning_rate * fall * min(1, (step + 1) / min(WARM_UP, steps))
        value = loss(model, batches(step))
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean += value.item()
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            _save(model, optimizer, step + 1, checkpoint)
        if (step + 1) % 100 == 0 or step + 1 == steps:
            done = (step - first) % 100 + 1
            print(f"{checkpoint.stem}: step {step + 1} of {steps}, loss {mean / done:.3f}", end=", ")
            print(f"{(time.monotonic() - began) / (step + 1 - first):.2f} s a step", flush=True)
            mean = 0.0
    model.eval()


def _save(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, step: int, checkpoint: Path) -> None:
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    partial = checkpoint.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(checkpoint)  # whole or not at all


def _restore(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, checkpoint: Path) -> int:
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, map_location=DEVICE, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step: int = state["step"]
    return step
