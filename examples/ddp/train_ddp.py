"""DistributedDataParallel with plain PyTorch: nothing of Holdfast is imported.

    python examples/ddp/train_ddp.py                                    # one process
    torchrun --standalone --nproc-per-node 2 examples/ddp/train_ddp.py
    holdfast run examples/ddp/job.yaml

The script saves after each epoch and goes on from there. `train_ddp_library.py` beside it is the
same training with `holdfast.train`, which loses no epoch and needs no code for saving.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from spirals import network, spirals


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    args = parser.parse_args()

    # The launcher sets RANK and the like. Without a launcher this is the only process.
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    main_rank = dist.get_rank() == 0

    torch.manual_seed(0)  # the same parameters and data on every rank
    model = network().to(device)
    data = spirals(args.samples)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, seed=0)
    loader = DataLoader(data, args.batch_size, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    first = load(args.checkpoint, model, optimizer, device)
    parallel = DistributedDataParallel(model)

    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)  # another order in each epoch
        torch.manual_seed(epoch * dist.get_world_size() + dist.get_rank())  # of dropout
        total = torch.zeros(2, device=device)  # sum of the losses, correct answers
        for batch in loader:
            points, arms = (part.to(device) for part in batch)
            answers = parallel(points)
            loss = cross_entropy(answers, arms)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.stack([loss.detach() * len(arms), (answers.argmax(1) == arms).sum()])
        dist.all_reduce(total)
        loss_mean, accuracy = (total / sampler.total_size).tolist()
        if main_rank:
            print(f"epoch {epoch + 1} loss {loss_mean:.4f} accuracy {accuracy:.4f}", flush=True)
            save(args.checkpoint, epoch + 1, model, optimizer)


def save(path: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint whole or not at all: a worker may be killed at any moment."""
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(path)


def load(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> int:
    """The number of epochs that are done. The file has to be where every node can read it."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # below main(): what DDP holds of the group is gone by then
