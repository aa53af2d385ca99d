"""A Llama whose blocks are compiled, with a snapshot at every step."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/llm"))

from holdfast.train import join
from llama import Llama, Shape, mean_loss
from network import StepLog, mark

SHAPE = Shape(layers=4, width=128, hidden=256, context=64)


def main() -> None:
    torch.manual_seed(0)
    llama = Llama(SHAPE)
    run = join()
    model = run.parallelize(llama)
    optimizer = torch.optim.AdamW(model.parameters())
    state = run.track(model=model, optimizer=optimizer)
    log = StepLog()
    mark("imported")  # no sooner: which attempt it is for is known from `join()` on
    mark("built")
    started = False
    for step, _ in state.steps(total=int(os.environ["BENCHMARK_TOTAL"])):
        if not started:
            mark("training")
            started = True
        drawn = torch.Generator().manual_seed(step * 100 + run.rank)
        tokens = torch.randint(SHAPE.vocabulary, (4, SHAPE.context + 1), generator=drawn)
        run.train_step(optimizer, tokens[:, :-1], targets=tokens[:, 1:], loss=mean_loss)
        log.done(step + 1)


if __name__ == "__main__":
    main()
