"""The network of the restart benchmark in a loop over Accelerate, which saves every 20 steps and
resumes from what it has saved; with `--kept` Holdfast keeps the loop, and nothing is saved."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from network import BATCH, Inputs, StepLog, mark, network

EVERY = 20
KEPT = "--kept" in sys.argv
if KEPT:
    from holdfast.integrations.accelerate import keep
else:
    mark("imported")


def main() -> None:
    total = int(os.environ["BENCHMARK_TOTAL"])
    model: Any = network()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if not KEPT:
        mark("built")
    accelerator = Accelerator(cpu=True)
    if KEPT:  # all that is above was done ahead
        mark("imported")
        mark("built")
    loader: Any = DataLoader(Inputs(), BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    log = StepLog()

    def train(batch: Any, step: int) -> None:
        inputs, targets = batch
        accelerator.backward(cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        log.done(step + 1)

    if KEPT:
        kept = keep(accelerator, model=model, optimizer=optimizer, loader=loader)
        mark("training")
        for step, batch in kept.steps(total):
            train(batch, step)
        return
    out = Path(os.environ["BENCHMARK_CHECKPOINT"])
    done = _resume(accelerator, out)
    mark("training")
    for step, batch in enumerate(skip_first_batches(loader, done), done):
        train(batch, step)
        if (step + 1) % EVERY == 0:
            _save(accelerator, out, step + 1)


def _save(accelerator: Accelerator, out: Path, done: int) -> None:
    """Into one of two folders; the file beside them says which one is whole."""
    folder = out / str(done // EVERY % 2)
    accelerator.save_state(str(folder))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        fresh = out / "fresh"
        fresh.write_text(f"{done} {folder.name}")
        fresh.rename(out / "newest")


def _resume(accelerator: Accelerator, out: Path) -> int:
    """After how many steps it goes on."""
    newest = out / "newest"
    if not newest.exists():
        return 0
    done, name = newest.read_text().split()
    accelerator.load_state(str(out / name))
    return int(done)


if __name__ == "__main__":
    main()
