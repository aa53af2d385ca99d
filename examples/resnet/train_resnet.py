"""ResNet-50 on ImageNet as everybody trains it: DDP, mixed precision, linear scaling, top-1/top-5.

    holdfast run examples/resnet/job.yaml                          # generated images
    torchrun --standalone --nproc-per-node 8 examples/resnet/train_resnet.py --data /data/imagenet

`--data` has `train` and `val`, each with a folder per class. The learning rate of a batch of 256 is
scaled by the size of the real one, after five epochs of warm-up ("Accurate, Large Minibatch SGD").
"""

import argparse
import math
import os
import random
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler

from images import Generated, ImageFolder, Sample
from resnet50 import ResNet50

WARMUP = 5  # epochs


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of ImageNet; default: generated images")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank")
    parser.add_argument("--lr", type=float, default=0.1, help="of a batch of 256")
    parser.add_argument("--size", type=int, default=224, help="pixels on each side")
    parser.add_argument("--images", type=int, default=1024, help="generated ones")
    parser.add_argument("--classes", type=int, default=10, help="of generated images")
    parser.add_argument("--workers", type=int, default=4, help="processes that read images")
    parser.add_argument("--checkpoint", type=Path, default=Path("resnet.pt"))
    return parser.parse_args()


def main() -> None:
    args = arguments()
    device = join()
    torch.manual_seed(0)  # the same parameters on every rank
    training, validation = datasets(args)
    sampler: DistributedSampler[Sample] = DistributedSampler(training, seed=0)
    options = {"batch_size": args.batch_size, "num_workers": args.workers}
    options |= {"pin_memory": device.type == "cuda", "worker_init_fn": seed_reader}
    loader = DataLoader(training, sampler=sampler, drop_last=True, **options)
    mine = range(dist.get_rank(), len(validation), dist.get_world_size())  # each image once
    held_out = DataLoader(torch.utils.data.Subset(validation, mine), **options)

    network: nn.Module = ResNet50(len(training.classes)).to(device)
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    decayed = [p for p in network.parameters() if p.ndim > 1]
    rest = [p for p in network.parameters() if p.ndim <= 1]  # biases and batch norms
    groups = [{"params": decayed, "weight_decay": 1e-4}, {"params": rest, "weight_decay": 0.0}]
    lr = args.lr * args.batch_size * dist.get_world_size() / 256
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9)
    schedule = LambdaLR(optimizer, lambda step: rate(step / len(loader), args.epochs))
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    kept = {"model": network, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    first = load(args.checkpoint, kept, device)
    model = DistributedDataParallel(network)

    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)  # another order in each epoch
        torch.manual_seed(epoch * dist.get_world_size() + dist.get_rank())  # of the crops
        model.train()
        for step, (images, labels) in enumerate(loader):
            with torch.autocast(device.type, half_of(device)):
                answers = model(images.to(device, memory_format=torch.channels_last))
                loss = nn.functional.cross_entropy(answers, labels.to(device), label_smoothing=0.1)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            if dist.get_rank() == 0 and step % 10 == 0:
                done = epoch * len(loader) + step + 1
                print(f"step {done} loss {loss.item():.4f}", flush=True)
        top1, top5 = evaluate(network, held_out, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1} top-1 {top1:.2%} top-5 {top5:.2%}", flush=True)
            save(args.checkpoint, epoch + 1, kept)


def join() -> torch.device:
    """Form the process group; the device of this rank."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def datasets(args: argparse.Namespace) -> tuple[ImageFolder | Generated, ImageFolder | Generated]:
    """To train on, and to see how well that went."""
    if args.data is None:
        made = Generated(args.images, args.size, args.classes)
        return made, Generated(max(args.images // 8, args.classes), args.size, args.classes)
    training = ImageFolder(args.data / "train", args.size, training=True)
    return training, ImageFolder(args.data / "val", args.size, training=False)


def half_of(device: torch.device) -> torch.dtype:
    """fp16 on GPUs, with a scaled loss; CPUs compute in bf16, which needs none."""
    return torch.float16 if device.type == "cuda" else torch.bfloat16


def rate(epoch: float, epochs: int) -> float:
    """Share of the learning rate: a linear rise, then a cosine."""
    if epoch < WARMUP:
        return (epoch + 0.01) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (epoch - WARMUP) / max(epochs - WARMUP, 1)))


def seed_reader(_: int) -> None:
    """Crops are drawn with Python's random numbers."""
    random.seed(torch.initial_seed())


@torch.inference_mode()
def evaluate(network: nn.Module, loader: "DataLoader[Sample]", device: torch.device) -> list[float]:
    """Shares of images whose class is the best answer, and among the five best, over all ranks."""
    network.eval()
    right = torch.zeros(3, device=device)  # top-1, top-5, images
    for images, labels in loader:
        with torch.autocast(device.type, half_of(device)):
            answers: Tensor = network(images.to(device, memory_format=torch.channels_last))
        best = answers.topk(5).indices == labels.to(device)[:, None]
        right += torch.stack([best[:, 0].sum(), best.sum(), torch.tensor(len(labels)).to(device)])
    dist.all_reduce(right)
    found: list[float] = (right[:2] / right[2]).tolist()
    return found


def save(path: Path, epoch: int, kept: dict[str, Any]) -> None:
    """Write the checkpoint whole or not at all: a worker may be killed at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    torch.save({"epoch": epoch} | {n: one.state_dict() for n, one in kept.items()}, unfinished)
    unfinished.replace(path)


def load(path: Path, kept: dict[str, Any], device: torch.device) -> int:
    """The number of epochs that are done. The file has to be where every node can read it."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location=device, weights_only=True)
    for name, one in kept.items():
        one.load_state_dict(state[name])
    return int(state["epoch"])


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # below main(): what DDP holds of the group is gone by then
