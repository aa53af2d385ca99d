"""Checks between two processes of this machine: the same model step, all-reduce, send and receive.

    python -m holdfast.checks.ranks '{"bytes": 33554432}'

NCCL between the first two GPUs, gloo where there are fewer. The first process forks the second
before it has touched a GPU or started a thread, and tells what both have found; what arrives has to
be what was sent.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta

from holdfast.checks.devices import HAS_TORCH, REPLACE, trained, without_torch
from holdfast.checks.host import order
from holdfast.checks.outcome import CheckFinding, tell
from holdfast.devices import seen_by

if HAS_TORCH:
    import torch
    import torch.distributed as dist

TURNS = 5
GROUP_S = 60.0
NETWORK = "check the loopback interface, NCCL_* and GLOO_* variables; NCCL_DEBUG=INFO says more"


def main() -> None:
    """Check as the first of two processes."""
    told = order()
    if not HAS_TORCH:
        for name in ("model step of 2 ranks", "all-reduce", "neighbour"):
            tell(name, without_torch)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-check-") as folder:
        meet = os.path.join(folder, "meet")
        second = multiprocessing.get_context("fork").Process(
            target=_second, args=(meet, told.bytes)
        )
        second.start()
        _take_part(0, meet, told.bytes)
        second.join()


def _second(meet: str, size: int) -> None:
    os.dup2(2, 1)  # what it prints is no finding
    _take_part(1, meet, size)


def _take_part(rank: int, meet: str, size: int) -> None:
    traits, gpus = seen_by(torch)
    backend = traits.backend if gpus > 1 else "gloo"
    device = torch.device(traits.torch_type or "cpu", rank) if gpus > 1 else torch.device("cpu")
    torch.set_num_threads(1)
    dist.init_process_group(
        backend, init_method=f"file://{meet}", rank=rank, world_size=2,
        timeout=timedelta(seconds=GROUP_S),
    )  # fmt: skip
    checks: dict[str, Callable[[], CheckFinding]] = {
        "model step of 2 ranks": lambda: _same_steps(device),
        "all-reduce": lambda: _all_reduce(device, backend, size),
        "neighbour": lambda: _neighbour(rank, device, backend, size),
    }
    for name, check in checks.items():
        if rank == 0:
            tell(name, check)
        else:
            check()
    dist.destroy_process_group()


def _same_steps(device: "torch.device") -> CheckFinding:
    here = torch.frombuffer(bytearray(trained(device)), dtype=torch.uint8).to(device)
    both = [torch.empty_like(here) for _ in range(2)]
    dist.all_gather(both, here)
    if not torch.equal(both[0], both[1]):
        return CheckFinding("failed", "parameters differ after three steps", help=REPLACE)
    return CheckFinding("ok", "the same bits after three steps")


def _all_reduce(device: "torch.device", backend: str, size: int) -> CheckFinding:
    """Whole numbers, whose sum is known. Bandwidth as nccl-tests count it: 2(n-1)/n is 1 for 2."""
    numbers = torch.arange(size // 8, device=device, dtype=torch.float64)
    expected, took = numbers * 2, []
    for _ in range(TURNS):
        mine = numbers.clone()
        began = _now(device)
        dist.all_reduce(mine)
        took.append(_now(device) - began)
        if not torch.equal(mine, expected):
            return CheckFinding("failed", "the sum of two ranks is wrong", help=NETWORK)
    return CheckFinding("ok", f"{_speed(size, took)} between 2 processes ({backend})")


def _neighbour(rank: int, device: "torch.device", backend: str, size: int) -> CheckFinding:
    """To the other one and back."""
    numbers = torch.arange(size // 8, device=device, dtype=torch.int64)
    back, took = torch.empty_like(numbers), []
    for _ in range(TURNS):
        began = _now(device)
        if rank == 0:
            dist.send(numbers, 1)
            dist.recv(back, 1)
        else:
            dist.recv(back, 0)
            dist.send(back, 0)
        took.append((_now(device) - began) / 2)
        if not torch.equal(back, numbers):
            return CheckFinding("failed", "received data differ from sent data", help=NETWORK)
    return CheckFinding("ok", f"{_speed(size, took)} one way ({backend})")


def _now(device: "torch.device") -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.monotonic()


def _speed(size: int, took: list[float]) -> str:
    """Of the fastest turn: the first ones open connections."""
    return f"{size / min(took) / 1e9:.2f} GB/s"


if __name__ == "__main__":
    main()
