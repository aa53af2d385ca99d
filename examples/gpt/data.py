"""Real text that every machine has: the source files of Python's standard library, as bytes.

The files are put one after the other in the order of their names, so every rank and every restart
sees the same text; the third-party packages and the tests beside them are left out. A sample is
one window of the text, so its number is its place and the dataset needs no index.
"""

import os
import sysconfig
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}


def standard_library_text() -> bytes:
    """About 12 MB of Python, the same bytes each time on one machine."""
    root, kept = Path(sysconfig.get_path("stdlib")), list[str]()
    for folder, folders, files in os.walk(root):
        folders[:] = (name for name in folders if name not in LEFT_OUT)  # nor what is below them
        here = Path(folder).relative_to(root)
        kept += ((here / name).as_posix() for name in files if name.endswith(".py"))
    return b"\n".join((root / path).read_bytes() for path in sorted(kept))


class ByteDataset(Dataset[Tensor]):
    """Windows of `context + 1` bytes, one beginning where the last one's targets end."""

    def __init__(self, text: bytes, context: int) -> None:
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.context = context

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.context
        return self.bytes[start : start + self.context + 1].long()
