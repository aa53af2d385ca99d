"""The network of the restart benchmark in DeepSpeed's engine (ZeRO 1), which saves every 20 steps
and resumes from what it has saved; with `--kept` Holdfast keeps the engine, and nothing is saved.

Collectives of DeepSpeed's own on shared memory, which it would compile first, are left out.
"""

import os
import sys
from typing import Any

import deepspeed
import deepspeed.ops
import torch
from torch.nn.functional import cross_entropy

from network import BATCH, StepLog, batch_of, mark, network

EVERY = 20
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
KEPT = "--kept" in sys.argv
if KEPT:
    from holdfast.integrations.deepspeed import EngineState
    from holdfast.train import join
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
if not KEPT:
    mark("imported")


def main() -> None:
    total = int(os.environ["BENCHMARK_TOTAL"])
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    run: Any = join() if KEPT else torch.distributed.init_process_group("gloo")
    if KEPT:  # all that is above join() was done ahead
        mark("imported")
    mark("built")
    rank = torch.distributed.get_rank()
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    log = StepLog()

    def train(step: int) -> None:
        inputs, targets = batch_of(step, rank)
        engine.backward(cross_entropy(engine(inputs), targets))
        engine.step()
        log.done(step + 1)

    if KEPT:
        state = run.track(engine=EngineState(engine))
        state.restore()
        mark("training")
        for step, _ in state.steps(total):
            train(step)
        return
    out = os.environ["BENCHMARK_CHECKPOINT"]
    if os.path.exists(os.path.join(out, "latest")):
        engine.load_checkpoint(out)
    mark("training")
    for step in range(engine.global_steps, total):
        train(step)
        if (step + 1) % EVERY == 0:
            engine.save_checkpoint(out, tag=f"step-{(step + 1) // EVERY % 2}")


if __name__ == "__main__":
    main()
