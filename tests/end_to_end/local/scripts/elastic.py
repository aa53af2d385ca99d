"""A small DDP training on any number of ranks, which writes down who has used which samples.

Run with `--out FOLDER`; ends after a step once FOLDER/enough exists.
"""

import argparse
import os
import time
from pathlib import Path

import torch

from holdfast.train import join
from holdfast.train.data import loader

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--width", type=int, default=1, help="of what the model gives")
args = parser.parse_args()

torch.manual_seed(7)
model = torch.nn.Linear(1, args.width)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = [(i, torch.tensor([i / 100])) for i in range(100)]

(args.out / f"built-{os.getpid()}").touch()
run = join()
run.on_resize(lambda before, now: print(f"from {before} to {now} ranks", flush=True))
wrapped = run.parallelize(model)
state = run.track(model=wrapped, optimizer=optimizer, loader=loader(data, batch_size=2, seed=5))
used = (args.out / f"used-{run.attempt}-{run.rank}").open("w")
for step, (numbers, inputs) in state.steps(total=1_000_000):
    for part, weight in run.micro_batches(inputs):
        (wrapped(part).square().mean() * weight).backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, *numbers.tolist(), file=used, flush=True)
    run.log(loss=0.0)
    time.sleep(0.1)
    if (args.out / "enough").exists():
        state.stop()
