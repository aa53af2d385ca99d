"""A small training of replicas, which writes down what each rank has after each of its steps.

`rank-R.jsonl` has a line for each step that this rank has come to the end of, also of one that it
then had to give up: what counts is the newest attempt of a step. It ends after `--steps`, or soon
after the step in which it finds OUT/enough.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch

from holdfast.checkpoint.tensors import local_part
from holdfast.train import join
from holdfast.train.data import loader
from tests.end_to_end.local.replica_steps import (
    BATCH,
    SEED,
    data,
    digest,
    mean_loss,
    model_and_optimizer,
)

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--pause", type=float, default=0.15)
args = parser.parse_args()

plain, _ = model_and_optimizer()
samples = data()
(args.out / f"built-{os.getpid()}").touch()
run = join()
model = run.parallelize(plain)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = run.track(model=model, optimizer=optimizer, loader=loader(samples, BATCH, seed=SEED))
for step, batch in state.steps(total=args.steps):
    optimizer.zero_grad()
    for part, weight in run.micro_batches(batch):
        torch.autograd.backward(mean_loss(model, part) * weight)
    optimizer.step()
    time.sleep(args.pause)
    has = digest(map(local_part, plain.parameters()))
    told = {"pid": os.getpid(), "attempt": run.attempt, "world_size": run.world_size}
    with (args.out / f"rank-{run.rank}.jsonl").open("a") as file:
        file.write(json.dumps({**told, "step": step, "has": has}) + "\n")
    if (args.out / "enough").exists():
        state.stop()
