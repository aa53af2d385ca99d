"""Joining and leaving the process group of an attempt.

The backend is that of the device (`holdfast.devices`), the environment that which torchrun made the
custom. Leaving is bounded in time: a peer that is gone or stopped must not keep this process from
ending.
"""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from holdfast.devices import DEVICES, VARIABLE, DeviceTraits, backend_of, seen_by
from holdfast.errors import Error
from holdfast.group_end import leave_at_exit
from holdfast.train.alike import store_of_all
from holdfast.train.placement import Placement
from holdfast.train.surviving_group import SurvivingGroup

ACCELERATORS = frozenset(
    traits.torch_type for traits in DEVICES.values() if traits.kind != "cpu" and traits.torch_type
)
_LONGEST_S = 10 * 365 * 86400.0  # of a timeout: more is a mistake


def load_driver() -> None:
    """Have PyTorch look for devices, which loads their driver: a warm worker does while it waits
    what takes a tenth of a second. No memory of a device is taken."""
    if os.environ.get(VARIABLE) != "cpu":
        seen_by(torch)


def computes_on_cpu(wanted: torch.device | None) -> bool:
    """Whether this worker will, for all that is known before its rank."""
    if wanted is not None:
        return wanted.type not in ACCELERATORS
    return os.environ.get(VARIABLE) == "cpu" or seen_by(torch)[0].kind == "cpu"


def pick_device(placement: Placement, wanted: torch.device | None = None) -> torch.device:
    """The accelerator of this local rank, and the CPU where there is none; or the one that is
    wanted, that of the local rank if it has no number.

    Raises `Error` (join-invalid) where there is none such.
    """
    traits, count = _seen()
    device = wanted or torch.device(traits.torch_type or "cpu")
    if device.type not in ACCELERATORS:
        return device
    if str(device) == device.type:
        device = torch.device(device.type, placement.local_rank)
    if device.type != traits.torch_type or device.index >= count:
        count = count if device.type == traits.torch_type else 0
        raise Error(
            "join-invalid",
            f"there is no device {device}",
            why=f"GPUs that PyTorch sees in this worker: {count}; its local rank: "
            f"{placement.local_rank}",
            help="omit device, or start at most one worker per GPU of the node",
        )
    return device


def _seen() -> tuple[DeviceTraits, int]:
    """What PyTorch has here; nothing but the CPU, where the job wants that.

    Raises `Error` (join-invalid) where the job names a kind that it has not."""
    asked = os.environ.get(VARIABLE)
    if asked == "cpu":
        return DEVICES["cpu"], 0
    traits, count = seen_by(torch)
    if asked is not None and asked != traits.kind:
        raise Error(
            "join-invalid",
            f"there is no device of kind {asked}",
            why=f"the job names it as its `device`, and PyTorch {torch.__version__} has "
            f"{traits.kind} here",
            help="install PyTorch for this device, or change `device` in the job file",
        )
    return traits, count


def require_choice(backend: str | None, timeout: timedelta | None) -> None:
    """Raise `Error` (join-invalid) if the script has made the process group and wants another."""
    if dist.is_initialized() and (backend is not None or timeout is not None):
        raise Error(
            "join-invalid",
            "join() was given a backend or a timeout, but the process group already exists",
            why="the script has already called init_process_group()",
            help="remove that call, or the arguments of join()",
        )


def join_group(
    placement: Placement,
    device: torch.device,
    backend: str | None,
    timeout: timedelta | None,
    *,
    declared: bool | None = None,
) -> None:
    """Make `device` current and the default process group, unless the script already has.

    `declared` is what this rank declares with `join(in_process=...)`; None: that changes nothing.
    Raises `Error` (declared-differently) where others declare something else.
    """
    if device.type in ACCELERATORS:
        torch.accelerator.set_device_index(device)
    if not placement.distributed or dist.is_initialized():
        return
    if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
        # everybody is on this machine: gloo need not look up its own host name
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    chosen = backend or backend_of(device.type)
    bound = device if device.type == "cuda" and "nccl" in chosen else None
    met: dict[str, Any] = {}
    if declared is not None:
        store = store_of_all(placement.rank, chosen, timeout, declared=declared)
        met = {"store": store, "rank": placement.rank, "world_size": placement.world_size}
    dist.init_process_group(chosen, timeout=timeout, device_id=bound, **met)
    leave_at_exit()


def side_group(timeout: timedelta | None) -> dist.ProcessGroup:
    """A second group on CPU memory, whose traffic cannot be mixed up with the script's own. It
    waits as long as the script wants to, but not less than gloo does by itself."""
    longest = timeout if timeout is not None and timeout > default_pg_timeout else None
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=longest)
    if isinstance(group, SurvivingGroup):
        group.private = True
    return group


def check_wishes(
    backend: str | None, timeout: float | timedelta | None, device: torch.device | str | None
) -> tuple[timedelta | None, torch.device | None]:
    """`timeout` and `device` as PyTorch takes them.

    Raises `Error` (join-invalid) for what it would not take, and for such a `backend`.
    """
    if backend is not None and not isinstance(backend, str):
        raise _invalid(f"backend={backend!r}", "it is not a string", "'nccl' or 'gloo'")
    for part in backend.split(",") if backend is not None else ():
        name = part.rpartition(":")[2].strip()
        if not name or not dist.is_backend_available(name):
            raise _invalid(
                f"backend={backend!r}", f"PyTorch has no backend {name!r} here", "nccl or gloo"
            )
    if timeout is not None and not isinstance(timeout, timedelta):
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not number or not 0 < timeout < _LONGEST_S:
            raise _invalid(f"timeout={timeout!r}", "it is not a positive number of seconds", "600")
        timeout = timedelta(seconds=timeout)
    if timeout is not None and timeout <= timedelta(0):
        raise _invalid(f"timeout={timeout!r}", "it is not positive", "600")
    if isinstance(device, bool):  # PyTorch takes it for the number of a GPU
        raise _invalid(f"device={device!r}", "it is not a device", "'cuda'")
    try:
        return timeout, None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _invalid(f"device={device!r}", str(error).splitlines()[0], "'cuda'") from None


def _invalid(what: str, why: str, example: str) -> Error:
    return Error(
        "join-invalid", f"join() cannot use {what}", why=why, help=f"for example: {example}"
    )


def join_alone(device: torch.device) -> None:
    """A process group of one, for scripts that want a mesh without any launcher."""
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend_of(device.type), store=store, rank=0, world_size=1)
        leave_at_exit()
