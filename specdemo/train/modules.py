"""The two kinds of draft as PyTorch modules, in the shape of the target's layers.

A draft of its own reads tokens. An EAGLE-3 head reads, with each token, the target's hidden states at the position
before: three of them, or, for tokens that the target has not read yet, the head's own output. Both write only
the most frequent tokens; rows of others would cost time at every step and are seldom right.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdemo.models.machine import instruction_sets
from specdemo.train.network import Array, Shape

PRODUCTS = torch.bfloat16 if {"AVX-512 BF16", "AMX BF16"} & {*instruction_sets()} else torch.float32
"""Of factors of large products: processors with bfloat16 multiply ten times as fast in it, others more slowly."""
DROPOUT = 0.1  # of what a layer adds: a short text is passed over often, and would be memorised


def products() -> torch.autocast:
    """Within it, modules multiply in `PRODUCTS`."""
    return torch.autocast("cpu", torch.bfloat16, enabled=PRODUCTS is torch.bfloat16)


class Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] in, the same out."""
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Layer(nn.Module):
    """A Llama layer."""

    def __init__(self, shape: Shape, frequencies: Array) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        inner, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.input_norm = Norm(shape.hidden, shape.eps)
        self.q = nn.Linear(shape.hidden, inner, bias=False)
        self.k = nn.Linear(shape.hidden, kv, bias=False)
        self.v = nn.Linear(shape.hidden, kv, bias=False)
        self.o = nn.Linear(inner, shape.hidden, bias=False)
        self.post_norm = Norm(shape.hidden, shape.eps)
        self.gate = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)
        self.drop = nn.Dropout(DROPOUT)
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.from_numpy(frequencies.copy()), persistent=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, tokens, head_dim] of what attention reads; keys for every head."""
        batch, tokens, _ = x.shape
        angles = torch.arange(tokens)[:, None] * self.frequencies
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

        def split(product: Tensor, heads: int) -> Tensor:
            return product.view(batch, tokens, heads, self.head_dim).transpose(1, 2)

        def turned(each: Tensor) -> Tensor:
            first, second = each.float().chunk(2, dim=-1)
            return (each * cos + torch.cat([-second, first], dim=-1) * sin).to(each.dtype)

        share = self.heads // self.kv_heads
        queries = turned(split(self.q(x), self.heads))
        keys = turned(split(self.k(x), self.kv_heads)).repeat_interleave(share, dim=1)
        return queries, keys, split(self.v(x), self.kv_heads).repeat_interleave(share, dim=1)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The residual stream after the layer; `attended` is [batch, heads, tokens, head_dim]."""
        batch, _, tokens, _ = attended.shape
        x = residual + self.drop(self.o(attended.transpose(1, 2).reshape(batch, tokens, -1)))
        read = self.post_norm(x)
        added: Tensor = x + self.drop(self.down(functional.silu(self.gate(read)) * self.up(read)))
        return added

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream, [batch, tokens, hidden]."""
        queries, keys, values = self.project(self.input_norm(x))
        return self.finish(x, attention(queries, keys, values))


def attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """What each token finds in those up to itself, [batch, heads, tokens, head_dim].

    On a CPU PyTorch's own attention takes two to five times as long with its gradient, for texts of this length.
    """
    batch, heads, tokens, width = queries.shape
    future = torch.full((tokens, tokens), float("-inf"), dtype=queries.dtype).triu(1)
    flat = (queries.flatten(0, 1), keys.flatten(0, 1).transpose(1, 2))
    weights = torch.baddbmm(future.expand(batch * heads, -1, -1), *flat, alpha=width**-0.5).softmax(-1)
    return (weights.to(values.dtype) @ values.flatten(0, 1)).view(batch, heads, tokens, width)


class Draft(nn.Module):
    """A decoder of few layers."""

    def __init__(self, shape: Shape, frequencies: Array, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(shape, frequencies) for _ in range(layers))
        self.norm = Norm(shape.hidden, shape.eps)

    def forward(self, embedded: Tensor) -> Tensor:
        """Last hidden states of embedded tokens, [batch, tokens, hidden]."""
        x = embedded
        for layer in self.layers:
            x = layer(x)
        normed: Tensor = self.norm(x)
        return normed


class Head(nn.Module):
    """An EAGLE-3 head: a draft whose layers also read the target's hidden states at the token before.

    A few units of the target's residual stream are thousands of times as large as the others, so states are scaled
    before `fc`; an export multiplies the scales into it. `fc` predicts the target's last state from three others;
    further along a chain, where there is none yet, the head's own output stands for it. What each layer gets of it is
    as large as the residual stream there: added to the embeddings at the size of the last one, it would drown them.
    """

    def __init__(self, shape: Shape, frequencies: Array, layers: int) -> None:
        super().__init__()
        self.scales: Tensor
        self.register_buffer("scales", torch.ones(3 * shape.hidden))
        self.fc = nn.Linear(3 * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.layers = nn.ModuleList(Layer(shape, frequencies) for _ in range(layers))
        self.joins = nn.ModuleList(nn.Linear(shape.hidden, shape.hidden, bias=False) for _ in range(layers))
        self.sizes: Tensor
        self.register_buffer("sizes", torch.ones(layers))
        self.norm = Norm(shape.hidden, shape.eps)

    def forward(self, embedded: Tensor, states: Tensor, steps: int) -> list[Tensor]:
        """Outputs of `steps` steps of a chain at once, each [batch, tokens, hidden], before the last norm.

        At index i the head reads the token i + 1 and the state at i. In step k the last k - 1 states are its own
        outputs, as when it proposes its k-th token.

        Args:
            embedded: the tokens 1, 2, ..., [batch, tokens, hidden].
            states: of the target at 0, 1, ..., [batch, tokens, 3 * hidden].
        """
        state, caches, outputs = self.fc(states * self.scales), [_Cache() for _ in self.layers], list[Tensor]()
        for _ in range(steps):
            x, given = embedded, self.hidden_norm(state)
            for layer, join, size, cache in zip(self.layers, self.joins, self.sizes, caches, strict=True):
                x = x + size * join(given)
                x = layer.finish(x, cache.attended(*layer.project(layer.input_norm(x))))
            outputs.append(x)
            state = _moved(x, 1)
        return outputs


class _Cache:
    """Keys and values of a layer in the steps of a chain: those from true states, and those of each later step.

    In step k, index i attends to true ones up to i - k + 1, and to one of each later step.
    """

    def __init__(self) -> None:
        self.keys, self.values = list[Tensor](), list[Tensor]()

    def attended(self, queries: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """What the next step finds; all are [batch, heads, tokens, head_dim]."""
        self.keys.append(key)
        self.values.append(value)
        step, tokens = len(self.keys) - 1, queries.shape[2]
        if not step:
            return attention(queries, key, value)
        scale, order = queries.shape[-1] ** -0.5, torch.arange(tokens)
        future = torch.where(order[None, :] > order[:, None] - step, float("-inf"), 0.0)
        true = (queries @ self.keys[0].transpose(2, 3)) * scale + future
        later = zip(self.keys[1:], self.values[1:], range(step - 1, -1, -1), strict=True)
        moved = [(_moved(keys, places), _moved(values, places)) for keys, values, places in later]
        own = [(queries * keys).float().sum(-1, keepdim=True) * scale for keys, _ in moved]
        weights = torch.cat([true, *own], dim=-1).softmax(-1)
        attended = weights[..., :tokens].to(value.dtype) @ self.values[0]
        for place, (_, values) in enumerate(moved):
            attended = attended + weights[..., tokens + place, None] * values
        return attended.to(value.dtype)


def _moved(x: Tensor, places: int) -> Tensor:
    """Along the tokens (second to last dimension) by some places to the right; zeros come in."""
    return functional.pad(x, (0, 0, places, 0))[..., : x.shape[-2], :] if places else x
