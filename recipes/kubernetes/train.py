"""Train a small byte-level model with plain PyTorch, and lose little when machines go away.

Nothing of Holdfast is imported, so that the same file runs under torchrun, mpirun and Holdfast's
agents. Checkpoints go to the tiers that the job file mounts: often to the disk of each node, seldom
to shared storage. SIGTERM to any rank makes all ranks agree on a last step, which is then written
to shared storage before they exit with status 143.

With DDP every rank holds the whole state, so one rank per node writes and one rank reads for all.
"""

import argparse
import os
import signal
import sys
import sysconfig
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CONTEXT = 32  # bytes that the next one is guessed from
KEPT = 2  # checkpoints in each folder
TERMINATED = 128 + signal.SIGTERM
LAUNCHERS = (  # names of rank, number of ranks and rank on the node: torchrun, Open MPI, MPICH
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
State = dict[str, Any]
leaving = False  # whether this process was asked to go


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per rank and step")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--local-every", type=int, default=20, help="steps, to the node's disk")
    parser.add_argument("--shared-every", type=int, default=200, help="steps, to shared storage")
    parser.add_argument("--print-every", type=int, default=50)
    return parser.parse_args()


def place() -> tuple[int, int, int]:
    """Rank, number of ranks, rank on this node, whoever started us."""
    for names in LAUNCHERS:
        if names[0] in os.environ:
            rank, ranks, local = (int(os.environ.get(name, "0")) for name in names)
            return rank, ranks, local
    return 0, 1, 0


def join() -> tuple[int, int, torch.device]:
    """Form the process group; rank, rank on this node, device."""
    rank, ranks, local = place()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29400")
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if gpu else "gloo"
    wait = timedelta(minutes=10)
    dist.init_process_group(backend, rank=rank, world_size=ranks, timeout=wait)
    return rank, local, device


def standard_library() -> Tensor:
    """Some megabytes of text that every machine has."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def batch(text: Tensor, size: int, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Samples of this step and rank, the same ones whenever it is done again."""
    chosen = torch.Generator().manual_seed(step * 1_000_003 + rank)
    starts = torch.randint(len(text) - CONTEXT - 1, (size, 1), generator=chosen)
    windows = text[starts + torch.arange(CONTEXT + 1)].long()
    return windows[:, :-1], windows[:, -1]


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(256, width // 8),
        nn.Flatten(),
        nn.Linear(CONTEXT * (width // 8), width),
        nn.GELU(),
        nn.Linear(width, 256),
    )


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────


def tier(name: str) -> Path | None:
    """Folder of a tier, if the job file mounts it."""
    folder = os.environ.get(f"HOLDFAST_CHECKPOINT_{name}")
    return Path(folder) if folder else None


def save(folder: Path | None, step: int, state: State) -> None:
    """Write a checkpoint whole or not at all, and forget the oldest."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{os.getpid()}.unfinished"
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / f"step-{step:09d}.pt")
    for old in sorted(folder.glob("step-*.pt"))[:-KEPT]:
        old.unlink(missing_ok=True)


def newest(*folders: Path | None) -> tuple[int, str]:
    """Step and path of the newest checkpoint that this rank can read; step 0 if there is none."""
    found = [path for folder in folders if folder for path in folder.glob("step-*.pt")]
    return max(((int(path.stem[5:]), str(path)) for path in found), default=(0, ""))


def load(rank: int) -> State | None:
    """The newest state that any rank has, sent to all by the first one that has it."""
    here = newest(tier("LOCAL"), tier("SHARED"))
    everywhere: list[tuple[int, str]] = [here] * dist.get_world_size()
    dist.all_gather_object(everywhere, here)
    steps = [step for step, _ in everywhere]
    owner = steps.index(max(steps))
    if not steps[owner]:
        return None
    box: list[Any] = [None]
    if rank == owner:
        box = [torch.load(here[1], map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(box, src=owner)
    return dict(box[0])


# ── training ──────────────────────────────────────────────────────────────────────────────────


def ask_to_leave(_signal: int, _frame: object) -> None:
    global leaving
    leaving = True


def somebody_leaves(device: torch.device) -> bool:
    """Whether any rank was asked to go: all ranks get the same answer at the same step."""
    asked = torch.tensor([float(leaving)], device=device)
    dist.all_reduce(asked, dist.ReduceOp.MAX)
    return bool(asked.item())


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGTERM, ask_to_leave)
    torch.manual_seed(0)
    text = standard_library()
    rank, local, device = join()
    inner = network(args.width).to(device)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    state = load(rank)
    first = 0
    if state is not None:
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = int(state["step"])
    if rank == 0:
        print(f"{dist.get_world_size()} ranks on {device.type}, from step {first}", flush=True)

    def checkpoint(step: int, folder: Path | None) -> None:
        now = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        save(folder, step, now)

    for step in range(first + 1, args.steps + 1):
        inputs, targets = (part.to(device) for part in batch(text, args.batch_size, step, rank))
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % args.print_every == 0:
            print(f"step {step:6d}  loss {loss.item():.4f}", flush=True)
        if local == 0 and step % args.local_every == 0:
            checkpoint(step, tier("LOCAL"))
        last = somebody_leaves(device) or step == args.steps
        if rank == 0 and (last or step % args.shared_every == 0):
            checkpoint(step, tier("SHARED"))
        if last and step < args.steps:
            dist.barrier()  # nobody goes before it is written: the others would be restarted
            print(f"rank {rank}: leaving after step {step}", flush=True)
            sys.exit(TERMINATED)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
