"""The model that both restart scripts train: a few big layers, 40 million parameters.

Small batches keep a step short while everything that a restart has to move (parameters, optimizer
state) is big, so the figures show restarts and not arithmetic. `BENCHMARK_WIDTH` and
`BENCHMARK_BATCH` make it another model: narrow with large batches is one whose state moves in no
time, as that of most does where memory is as fast as on a GPU.
"""

import os
import time

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

WIDTH = int(os.environ.get("BENCHMARK_WIDTH", "2048"))
LAYERS = 9
OUTPUTS = 1024
BATCH = int(os.environ.get("BENCHMARK_BATCH", "4"))


def network() -> nn.Sequential:
    """Nine square layers and one to the outputs: 39.9 million parameters of 2048 wide ones."""
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, OUTPUTS))


def batch_of(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets that depend on step and rank only, so a resumed run sees the same."""
    generator = torch.Generator().manual_seed(1_000_003 * rank + step)
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    return inputs, torch.randint(OUTPUTS, (BATCH,), generator=generator)


class Inputs(Dataset[tuple[Tensor, int]]):
    """Inputs and targets for loaders: as many as anybody wants."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(number)
        return torch.randn(WIDTH, generator=generator), number % OUTPUTS


class StepLog:
    """The measuring device, the same for every contestant: one appended line per finished step.

    `time attempt rank step pid`; a line is one write to a file opened with O_APPEND, so lines of
    different processes never mix and a killed process has left all of its own.
    """

    def __init__(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(os.environ["BENCHMARK_STEPS"], flags, 0o644)

    def done(self, step: int) -> None:
        """Step number `step` (counting from 1) is complete."""
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # a kept process has several
        line = f"{time.time():.6f} {attempt} {os.environ['RANK']} {step} {os.getpid()}\n"
        os.write(self._file, line.encode())


def mark(name: str) -> None:
    """This rank has come so far on its way to the first step: a line `time attempt rank name` in a
    file beside the step log."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with open(os.environ["BENCHMARK_STEPS"] + ".marks", "a") as file:
        file.write(f"{time.time():.6f} {attempt} {os.environ['RANK']} {name}\n")
