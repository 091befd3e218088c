"""Text that the target writes: what a draft has to predict in the end."""

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from fit import DEVICE

TEMPERATURES = (None, None, 0.8, 1.0)  # of one batch after the other; None is greedy
PROMPT = (4, 32)  # tokens of a prompt, at least and at most


def continued(model: LlamaForCausalLM, prompts: torch.Tensor, length: int, temperature: float | None) -> torch.Tensor:
    """Prompts [batch, tokens] and what the model goes on with, [batch, length]; it goes on after an end as well."""
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    with torch.inference_mode():
        return model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=length - prompts.shape[1],
            eos_token_id=None,
            pad_token_id=0,
            **sampling,
        )


def write_own_text(
    model: LlamaForCausalLM, text: np.ndarray, sequences: int, length: int, batch: int, file: Path
) -> np.ndarray:
    """Sequences [sequences, length + 1] after pieces of `text`, half of them beginnings; resumed from `file`."""
    beginnings = np.flatnonzero(text == model.config.bos_token_id)
    beginnings = beginnings[beginnings < len(text) - PROMPT[1]]
    row = (length + 1) * 2  # bytes
    done = file.stat().st_size // row if file.exists() else 0
    with file.open("ab") as sink:
        sink.truncate(done // batch * batch * row)
        for index in range(done // batch, -(-sequences // batch)):
            random = np.random.default_rng((1, index))
            torch.manual_seed(index)
            starts = random.choice(beginnings, batch)
            starts[::2] = random.integers(0, len(text) - PROMPT[1], len(starts[::2]))
            tokens = int(random.integers(*PROMPT, endpoint=True))
            prompts = torch.from_numpy(np.stack([text[at : at + tokens] for at in starts]).astype(np.int64))
            temperature = TEMPERATURES[index % len(TEMPERATURES)]
            written = continued(model, prompts.to(DEVICE), length + 1, temperature)
            sink.write(written.cpu().numpy().astype(np.uint16).tobytes())
            sink.flush()
            print(f"own text: {(index + 1) * batch} of {sequences} sequences", flush=True)
    return np.memmap(file, np.uint16, "r").reshape(-1, length + 1)
