"""Joining and leaving the process group of an attempt.

NCCL where there are GPUs, gloo elsewhere, by the environment torchrun made the custom. Leaving is
bounded in time: a peer that is gone or stopped must not keep this process from ending.
"""

import atexit
import contextlib
import os
import threading

import torch
import torch.distributed as dist

from holdfast.train.placement import Placement

_LEAVE_S = 2.0


def pick_device(placement: Placement) -> torch.device:
    """The accelerator of this local rank, made current; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", placement.local_rank)
    torch.cuda.set_device(device)
    return device


def join_group(placement: Placement, device: torch.device) -> None:
    """Make the default process group, unless the script already has."""
    if not placement.distributed or dist.is_initialized():
        return
    if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
        # everybody is on this machine: gloo need not look up its own host name
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    _leave_at_exit()


def side_group() -> dist.ProcessGroup:
    """A second group on CPU memory, whose traffic cannot be mixed up with the script's own."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group


def join_alone(device: torch.device) -> None:
    """A process group of one, for scripts that want a mesh without any launcher."""
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        _leave_at_exit()


def _leave_at_exit() -> None:
    leaving, gone = threading.Event(), threading.Event()
    # started now, because a thread cannot be started any more while the interpreter ends
    threading.Thread(target=_destroy, args=(leaving, gone), daemon=True).start()

    def leave() -> None:
        leaving.set()
        gone.wait(_LEAVE_S)

    atexit.register(leave)


def _destroy(leaving: threading.Event, gone: threading.Event) -> None:
    leaving.wait()
    with contextlib.suppress(Exception):  # peers may be gone: nothing left to say about it
        if dist.is_initialized():
            dist.destroy_process_group()
    gone.set()
