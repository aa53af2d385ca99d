"""Megatron Core's optimizer and schedule, as state that a run keeps.

    from holdfast.integrations.megatron import OptimizerState, ScheduleState

    state = run.track(
        **{f"chunk_{n}": chunk for n, chunk in enumerate(model)},  # what get_model() returned
        optimizer=OptimizerState(optimizer),
        schedule=ScheduleState(opt_param_scheduler, counters),
    )

Each rank's part is its private state: of the distributed optimizer the shards that lie here, which
its own `state_dict()` leaves out. The number of ranks must stay the same. `counters` is whatever
has `iteration` and the `consumed_*_samples`, in Megatron-LM `args`; data goes on by these.
"""

from collections.abc import Iterator
from typing import Any

import torch

from holdfast.integrations.plain import filled, plain

_COUNTED = ("iteration", "consumed_train_samples", "consumed_valid_samples")
_MASTERS = ("shard_fp32_from_float16_groups", "fp32_from_float16_groups")


class OptimizerState:
    """The state of a MegatronOptimizer: masters, moments and gradient scaler of this rank."""

    def __init__(self, optimizer: Any) -> None:
        parts = list(getattr(optimizer, "chained_optimizers", [optimizer]))
        # where nothing is trained on a rank, Megatron has a stub without an optimizer of PyTorch
        self._parts = [part for part in parts if part.optimizer is not None]

    def state_dict(self) -> list[dict[str, Any]]:
        """All of it, for this rank."""
        return [
            {
                "inner": plain(part.optimizer.state_dict()),
                "masters": [one.detach() for one in _masters(part)],
                "scaler": plain(part.grad_scaler.state_dict()) if _scaler(part) else None,
            }
            for part in self._parts
        ]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Put it back."""
        for part, kept in zip(self._parts, state, strict=True):
            part.optimizer.load_state_dict(filled(kept["inner"], part.optimizer.state_dict()))
            with torch.no_grad():
                for here, there in zip(_masters(part), kept["masters"], strict=True):
                    here.data.copy_(there)
            if _scaler(part):
                part.grad_scaler.load_state_dict(kept["scaler"])


class ScheduleState:
    """How far the schedule is, and how much data was used."""

    def __init__(self, scheduler: Any, counters: Any) -> None:
        self._scheduler, self._counters = scheduler, counters

    def state_dict(self) -> dict[str, Any]:
        """Both."""
        known = (name for name in _COUNTED if hasattr(self._counters, name))
        counted = {name: int(getattr(self._counters, name)) for name in known}
        return {"scheduler": plain(self._scheduler.state_dict()), "counted": counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put both back."""
        before = self._scheduler.state_dict()
        self._scheduler.load_state_dict(filled(state["scheduler"], before))
        for name, number in state["counted"].items():
            setattr(self._counters, name, number)


def _masters(part: Any) -> Iterator[torch.Tensor]:
    """The parameters in full precision that lie here, where the model has fewer bits."""
    for name in _MASTERS:
        for group in getattr(part, name, ()):
            yield from (one for one in group if one is not None)


def _scaler(part: Any) -> bool:
    return getattr(part, "grad_scaler", None) is not None
