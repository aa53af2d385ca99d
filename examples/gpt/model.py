"""A small GPT over bytes: the usual decoder, nothing left out and nothing added.

Pre-norm blocks of causal attention and a GELU network, learned positions, and the embedding used
again as the output layer. The vocabulary is the 256 byte values, so there is no tokenizer to load.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256


@dataclass(frozen=True)
class Shape:
    """The size of the model; the defaults make 1.8 million parameters."""

    context: int = 128
    layers: int = 4
    heads: int = 6
    width: int = 192


class Attention(nn.Module):
    """Causal self-attention: (batch, time, width) in and out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        parts = self.query_key_value(x).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return joined


class Block(nn.Module):
    """Attention, then a network of four times the width; both added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.network_norm = nn.LayerNorm(shape.width)
        self.network = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        grown: Tensor = x + self.network(self.network_norm(x))
        return grown


class GPT(nn.Module):
    """Bytes in, a score for each possible next byte out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.apply(_initialise)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy (nats per byte) of `targets` after `tokens`, both (batch, time)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.embedding(tokens) + self.positions(places))
        scores = functional.linear(self.norm(x), self.embedding.weight)
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
