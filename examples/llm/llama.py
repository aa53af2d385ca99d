"""A small Llama: RMSNorm, rotary positions, SwiGLU, grouped-query attention; no bias anywhere.

With `experts` the network of each block is a mixture of them (Mixtral): a router chooses some for
each token. Nothing keeps them equally busy: what is usual, a second loss, would be the mean over
a rank's tokens, and another one with other ranks.

Written as one would without Holdfast, but for what a layout has to know: attention counts the heads
that it finds (`-1` in `view`), because with tensor parallelism a rank has only some; the rotary
table is a buffer with the place in its first dimension, for context parallelism (`PLACES`); and
`tp_plan` and `ep_plan` say how layers are divided.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

PLACES = ("rope",)
TP_PLAN = {
    "embedding": "rowwise_rep",
    "layers.*.attention_norm": "sequence_parallel",
    "layers.*.attention.query": "colwise",
    "layers.*.attention.key": "colwise",
    "layers.*.attention.value": "colwise",
    "layers.*.attention.out": "rowwise",
    "layers.*.network_norm": "sequence_parallel",
    "layers.*.network.gate": "colwise",
    "layers.*.network.up": "colwise",
    "layers.*.network.down": "rowwise",
    "norm": "sequence_parallel",
    "head": "colwise_rep",
}
EP_PLAN = {"layers.*.network.experts": "experts"}


@dataclass(frozen=True)
class Shape:
    """The size of the model; the defaults make 1.7 million parameters."""

    vocabulary: int = 256
    context: int = 128
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    width: int = 192
    hidden: int = 512
    experts: int = 0
    active_experts: int = 2
    rope_base: float = 10_000.0


def rotary(context: int, width: int, base: float) -> Tensor:
    """Cosines and sines by place: (context, 2, width / 2)."""
    rates = base ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(context), rates)
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def rotated(x: Tensor, rope: Tensor) -> Tensor:
    """Queries or keys, (batch, heads, time, width), turned by their places."""
    cos, sin = rope[: x.shape[2]].unbind(1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    """Causal self-attention with fewer keys than queries: (batch, time, width) in and out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = shape.heads, shape.kv_heads
        self.head_width = shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.heads * self.head_width, bias=False)
        self.key = nn.Linear(shape.width, shape.kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(shape.width, shape.kv_heads * self.head_width, bias=False)
        self.out = nn.Linear(shape.heads * self.head_width, shape.width, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        query, key = rotated(query, rope), rotated(key, rope)
        repeated = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(repeated, dim=1) for part in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined


class SwiGLU(nn.Module):
    """The network of a block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


class Experts(nn.Module):
    """Networks of that kind, stacked; each token goes through those that were chosen for it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(shape.experts, shape.width, shape.hidden))
        self.up = nn.Parameter(torch.empty(shape.experts, shape.width, shape.hidden))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.hidden, shape.width))

    def forward(self, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Tokens (count, width) with the numbers of their experts and the weights of these."""
        out = torch.zeros_like(tokens)
        for expert, (gate, up, down) in enumerate(zip(self.gate, self.up, self.down, strict=True)):
            rows, choice = (chosen == expert).nonzero(as_tuple=True)
            x = tokens[rows]
            x = (functional.silu(x @ gate) * (x @ up)) @ down
            out = out.index_add(0, rows, x * weights[rows, choice, None])
        return out


class Mixture(nn.Module):
    """The network of a block with experts."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.active = shape.active_experts
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.experts = Experts(shape)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.active)
        weights = weights / weights.sum(-1, keepdim=True)
        out: Tensor = self.experts(tokens, chosen, weights).view_as(x)
        return out


class Block(nn.Module):
    """Attention, then the network; both added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.network_norm = nn.RMSNorm(shape.width)
        self.network = Mixture(shape) if shape.experts else SwiGLU(shape)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        out: Tensor = x + self.network(self.network_norm(x))
        return out


class Llama(nn.Module):
    """Tokens (batch, time) in, scores (batch, time, vocabulary) out."""

    tp_plan: Mapping[str, str] = TP_PLAN
    ep_plan: Mapping[str, str] = EP_PLAN

    rope: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        table = rotary(shape.context, shape.width // shape.heads, shape.rope_base)
        self.register_buffer("rope", table, persistent=False)
        self.apply(_initialise)
        if shape.experts:
            self.tp_plan = {  # which leaves networks whole, so a sequence cannot be divided
                name: word
                for name, word in TP_PLAN.items()
                if ".network" not in name and word != "sequence_parallel"
            }

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.rope)
        scores: Tensor = self.head(self.norm(x))
        return scores


def mean_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy, nats per token."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def _initialise(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
