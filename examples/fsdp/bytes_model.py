"""A small transformer that guesses the next byte, and windows of a text to train it on."""

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

CONTEXT = 64


def windows() -> TensorDataset:
    """Of some source files of Python's standard library, which every machine has."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py"))
    text = torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)
    return TensorDataset(text.long().unfold(0, CONTEXT + 1, CONTEXT))


class NextByte(nn.Module):
    """`blocks` are what FSDP gathers and frees one after the other."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.place = nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 256)
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, in nats per byte."""
        x = self.embed(inputs) + self.place
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())
