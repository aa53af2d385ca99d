"""Fully sharded training (FSDP2) with plain PyTorch: nothing of Holdfast is imported.

    torchrun --standalone --nproc-per-node 2 examples/fsdp/train_fsdp.py
    holdfast run examples/fsdp/job.yaml

Parameters, gradients and the optimizer's state are divided among the ranks, and so is the
checkpoint: each rank writes its part, and any number of ranks can read it. `train_fsdp_library.py`
beside it is the same training with `holdfast.train`, which keeps the state in memory.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from bytes_model import NextByte, windows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=8, help="windows per rank")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    args = parser.parse_args()

    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    main_rank = dist.get_rank() == 0

    torch.manual_seed(0)  # the same parameters on every rank
    model = NextByte().to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)  # what is left: embedding and head
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)  # after sharding
    done = load(args.checkpoints, model, optimizer)

    data = windows()
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    for epoch in range(done // len(loader), -(-args.steps // len(loader))):
        sampler.set_epoch(epoch)  # another order in each epoch
        for step, (batch,) in enumerate(loader, start=epoch * len(loader)):
            if step < done:
                continue  # before the restart
            if step == args.steps:
                break
            torch.manual_seed(step * dist.get_world_size() + dist.get_rank())  # of dropout
            text = batch.to(device)
            loss = model(text[:, :-1], text[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if (step + 1) % args.print_every == 0:
                mean = loss.detach() / dist.get_world_size()
                dist.all_reduce(mean)
                if main_rank:
                    print(f"step {step + 1} loss {mean.item():.4f}", flush=True)
            if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
                save(args.checkpoints, step + 1, model, optimizer)
    dist.destroy_process_group()


def save(folder: Path, step: int, model: Any, optimizer: Any) -> None:
    """Each rank writes its part. `.metadata` comes last: without it a checkpoint is not whole."""
    parts, optimizer_parts = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": parts, "optimizer": optimizer_parts}
    dcp.save(state, checkpoint_id=folder / f"step-{step:09d}")


def load(folder: Path, model: Any, optimizer: Any) -> int:
    """The number of steps that are done. The folder has to be where every node can read it."""
    whole = sorted(path.parent for path in folder.glob("step-*/.metadata"))
    if not whole:
        return 0
    parts, optimizer_parts = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": parts, "optimizer": optimizer_parts}
    dcp.load(state, checkpoint_id=whole[-1])  # into the tensors that are there
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    return int(whole[-1].name.removeprefix("step-"))


if __name__ == "__main__":
    main()
