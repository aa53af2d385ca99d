"""A Llama of examples/llm, its blocks compiled by `parallel.compile`, on one device.

Each worker leaves a line in `workers.jsonl` when it has done some steps: how long the first one and
a later one took, and how many graphs had to be compiled because no cache had them.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch._dynamo.utils import compilation_time_metrics

sys.path.insert(0, str(Path(__file__).parents[3] / "examples/llm"))

from holdfast.train import join
from llama import Llama, Shape, mean_loss

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--steps", type=int, default=240)
parser.add_argument("--told-after", type=int, default=5)
args = parser.parse_args()
SHAPE = Shape(layers=4, width=128, hidden=256, context=64)


def compiled() -> int:
    """Graphs for which code was generated in this process. The counters of the cache say nothing
    where it is turned off."""
    return len(compilation_time_metrics.get("GraphLowering.codegen", ()))


torch.manual_seed(0)
llama = Llama(SHAPE)
run = join(device=args.device)
model = run.parallelize(llama)
optimizer = torch.optim.AdamW(model.parameters())
state = run.track(model=model, optimizer=optimizer)
took: list[float] = []
began = time.monotonic()
for step, _ in state.steps(total=args.steps):
    drawn = torch.Generator().manual_seed(step)
    tokens = torch.randint(SHAPE.vocabulary, (4, SHAPE.context + 1), generator=drawn)
    tokens = tokens.to(run.device)
    done = run.train_step(optimizer, tokens[:, :-1], targets=tokens[:, 1:], loss=mean_loss)
    run.log(loss=done.loss.item())
    took.append(time.monotonic() - began)
    if len(took) == args.told_after:
        line = {
            "attempt": run.attempt,
            "first_step_s": took[0],
            "step_s": took[-1],
            "compiled": compiled(),
        }
        with (args.out / "workers.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
    began = time.monotonic()
