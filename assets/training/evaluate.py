"""What a target and its drafts are worth, on texts held out: losses, agreement, samples."""

from collections.abc import Sequence
from itertools import takewhile
from statistics import mean

import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from fit import DEVICE, from_text, logits
from own_text import continued

LENGTH, MOST = 384, 64  # tokens of a window, and windows of a domain
PROMPTS, PROMPT, WRITTEN = 64, 16, 128  # prompts, their tokens, and tokens written after each
LOOKAHEAD = 4
SAMPLES = 10


def loss(model: LlamaForCausalLM, text: np.ndarray) -> float:
    """Nats a token on a text, in windows next to each other."""
    length = min(LENGTH, len(text) - 1)
    starts = range(0, len(text) - length, max(length, len(text) // MOST))
    losses = []
    with torch.inference_mode():
        for start in starts:
            ids = torch.from_numpy(text[start : start + length + 1].astype(np.int64))[None].to(DEVICE)
            losses.append(from_text(model, ids).item())
    return mean(losses)


def prompts_of(text: np.ndarray, bos: int) -> torch.Tensor:
    """Beginnings of pieces of a text, [prompts, tokens]."""
    starts = np.flatnonzero(text == bos)
    starts = starts[starts < len(text) - PROMPT][:PROMPTS]
    return torch.from_numpy(np.stack([text[start : start + PROMPT] for start in starts]).astype(np.int64)).to(DEVICE)


def agreements(draft: LlamaForCausalLM, written: torch.Tensor) -> list[list[bool]]:
    """For each text and each token after its prompt, whether the draft would have proposed it."""
    with torch.inference_mode():
        proposed = logits(draft, written[:, :-1]).argmax(-1).view(len(written), -1)
    same = proposed == written[:, 1:]
    return same[:, PROMPT - 1 :].tolist()


def accepted_length(agrees: Sequence[bool], lookahead: int) -> float:
    """Committed tokens a target pass, τ, of greedy decoding with a constant lookahead."""
    position = rounds = 0
    while position < len(agrees):
        position += len(list(takewhile(bool, agrees[position : position + lookahead]))) + 1
        rounds += 1
    return len(agrees) / rounds


def report(
    models: dict[str, LlamaForCausalLM],
    tokenizer: PreTrainedTokenizerFast,
    held_out: dict[str, np.ndarray],
    domains: Sequence[str],
) -> str:
    """Markdown: every model's loss on every text held out; drafts on what the target writes; unselected samples.

    `domains` are those that the pair was made for: their texts give the prompts.
    """
    target, drafts = models["target"], {name: model for name, model in models.items() if name != "target"}
    lines = ["| nats a token, held out | " + " | ".join(held_out) + " |", "|---" * (len(held_out) + 1) + "|"]
    for name, model in models.items():
        lines.append(f"| {name} | " + " | ".join(f"{loss(model, text):.2f}" for text in held_out.values()) + " |")
    prompts = torch.cat([prompts_of(held_out[name], target.config.bos_token_id) for name in domains])
    lines += ["", f"| {len(prompts)} held-out prompts, {WRITTEN} tokens | agreement | τ at lookahead {LOOKAHEAD} |"]
    lines.append("|---|---|---|")
    for way, temperature in (("greedy", None), ("sampled at 0.8", 0.8)):
        torch.manual_seed(0)
        written = continued(target, prompts, PROMPT + WRITTEN, temperature)
        for name, draft in drafts.items():
            agrees = agreements(draft, written)
            agreement = mean(mean(map(float, each)) for each in agrees)
            shown = f"{mean(accepted_length(each, LOOKAHEAD) for each in agrees):.2f}" if not temperature else ""
            lines.append(f"| {name}, {way} | {agreement:.1%} | {shown} |")
    lines += ["", f"The first {SAMPLES} of them, sampled at 0.8, unselected:", ""]
    for ids in written[:SAMPLES]:
        beginning, rest = (tokenizer.decode(part) for part in (ids[1:PROMPT], ids[PROMPT : PROMPT + 64]))
        lines.append("> **" + beginning.replace("\n", " ").strip() + "**" + rest.replace("\n", " ") + "\n")
    return "\n".join(lines)
