"""DeepSpeed's engine in a loop of ours. Its own collectives on shared memory, which it would
compile first, are left out: gloo has the same."""

import json
import os
import sys
from pathlib import Path

import deepspeed
import deepspeed.ops
import torch

from holdfast.integrations.deepspeed import EngineState
from holdfast.train import join

OUT = Path(sys.argv[1])


def main() -> None:
    OUT.mkdir(exist_ok=True)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    run = join()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    bf16 = bool(os.environ["BF16"])
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": int(os.environ["STAGE"])},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": bf16},
    }
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, 20)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, lr_scheduler=schedule
    )
    torch.manual_seed(run.rank)
    state = run.track(engine=EngineState(engine))
    for step, _ in state.steps(total=10):
        for _ in range(2):
            inputs = torch.randn(4, 8).to(torch.bfloat16 if bf16 else torch.float32)
            loss = engine(inputs).square().mean()
            engine.backward(loss)
            engine.step()
        with (OUT / f"rank-{run.rank}.jsonl").open("a") as file:
            line = {"step": step, "loss": loss.item().hex(), "lr": engine.get_lr()}
            file.write(json.dumps(line) + "\n")
        run.log(loss=loss)
        killed = OUT / f"killed-{step}"
        due = str(step) in os.environ["KILL"].split(",") and run.rank == 1
        if due and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), 9)


main()
