"""Sending gradients of DDP in fewer bytes, by its communication hooks.

`bf16` halves them; the hook is our own, because DDP allows PyTorch's with NCCL only, and gloo can
do it, too. `powersgd` sends products of small matrices (rank 1) and adds what was lost to
the gradients of the next step; that error and the matrices are state of the rank, which is tracked,
so that a restart goes on with them. PowerSGD keeps it by the number of a bucket; the buckets of
`SteadyBuckets` never change.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from holdfast.dimensions import Compression

FIRST_STEPS = 10  # sent as they are: what PowerSGD approximates has to settle


class CompressionState:
    """What PowerSGD remembers on this rank."""

    def __init__(self, hook_state: PowerSGDState) -> None:
        self._hook = hook_state

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        hook = self._hook
        return {
            "iter": hook.iter,
            "rng": list(hook.rng.get_state()),
            **{name: _by_text(getattr(hook, name)) for name in _MEMORIES},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with it."""
        self._hook.iter = state["iter"]
        self._hook.rng.set_state(tuple(state["rng"]))
        for name in _MEMORIES:
            setattr(self._hook, name, {int(key): value for key, value in state[name].items()})


_MEMORIES = ("error_dict", "p_memory_dict", "q_memory_dict")


def _by_text(memory: dict[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {str(bucket): tensor for bucket, tensor in memory.items()}


def _as_bf16(
    _state: None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    sent = bucket.buffer().div(dist.get_world_size()).to(torch.bfloat16)
    work: Any = dist.all_reduce(sent, async_op=True)

    def arrived(_: Any) -> torch.Tensor:
        buffer: torch.Tensor = bucket.buffer()
        return buffer.copy_(sent)

    found: torch.futures.Future[torch.Tensor] = work.get_future().then(arrived)
    return found


def compress(model: DistributedDataParallel, wish: Compression) -> CompressionState | None:
    """Have `model` send gradients that way; returns what is to be tracked."""
    if wish == "bf16":
        model.register_comm_hook(None, _as_bf16)
    if wish != "powersgd":
        return None
    state = PowerSGDState(None, start_powerSGD_iter=FIRST_STEPS, warm_start=True)
    model.register_comm_hook(state, powerSGD_hook)
    return CompressionState(state)
