"""A loop of its own over Accelerate, with a collator that draws and gradients that accumulate."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from holdfast.integrations.accelerate import keep

OUT = Path(sys.argv[1])


def collate(items: list[int]) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor(items).float().unsqueeze(1) + torch.rand(len(items), 1)}


def main() -> None:
    OUT.mkdir(exist_ok=True)
    torch.manual_seed(0)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision="fp16" if "HALF" in os.environ else None,
        gradient_accumulation_steps=2,
    )
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, 20)
    data: Any = list(range(42))
    loader: Any = DataLoader(data, 4, shuffle=True, collate_fn=collate)
    prepared = accelerator.prepare(model, optimizer, loader, schedule)
    model, optimizer, loader, schedule = prepared
    kept = keep(accelerator, model=model, optimizer=optimizer, loader=loader, scheduler=schedule)
    rank = kept.run.rank
    for step, batch in kept.steps(total=20):
        with accelerator.accumulate(model):
            loss = model(batch["x"]).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        kept.run.log(loss=loss)
        with (OUT / f"rank-{rank}.jsonl").open("a") as file:
            line = {"step": step, "loss": loss.item().hex(), "epoch": kept.epoch}
            file.write(json.dumps(line) + "\n")
        killed = OUT / f"killed-{step}"
        if (
            str(rank) == os.environ.get("KILLED", "1")
            and str(step) in os.environ["KILL"].split(",")
            and not killed.exists()
        ):
            killed.touch()
            os.kill(os.getpid(), 9)


main()
