"""DeepSpeed's engine, ZeRO 0 to 3, as state that a run keeps.

    from holdfast.integrations.deepspeed import EngineState

    run = join()
    engine, *_ = deepspeed.initialize(model=model, config=config, ...)
    state = run.track(engine=EngineState(engine), loader=loader)

What each rank has (its part of the optimizer, with ZeRO 3 of the parameters) is its private state,
taken from DeepSpeed's own state dicts; a rank whose node is lost gets it from the copy on another
node. The number of ranks must stay the same.

A step must be one of the optimizer: gradients that DeepSpeed accumulates are in no state dict.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from holdfast.errors import Error
from holdfast.integrations import drive
from holdfast.integrations.plain import filled, plain

LEAST, BELOW = (0, 16), (1, 0)
_MASTERS = "single_partition_of_fp32_groups"
_COUNTED = ("global_steps", "global_samples", "micro_steps", "skipped_steps")


class EngineState:
    """The state of a DeepSpeed engine. Raises `Error` (trainer-unsupported) for a version of
    DeepSpeed, or settings, that it does not know."""

    def __init__(self, engine: Any) -> None:
        drive.require_version("deepspeed", LEAST, BELOW)
        self._engine = engine
        self._stage = int(engine.zero_optimization_stage())
        offload = getattr(engine, "zero_offload_optimizer", lambda: None)()
        device = str(getattr(offload, "device", "none")).rpartition(".")[2]
        if device == "nvme":
            raise drive.unsupported_setting("deepspeed", "its optimizer is offloaded to NVMe")

    def state_dict(self) -> dict[str, Any]:
        """All of it, for this rank."""
        engine = self._engine
        if engine.micro_steps % engine.gradient_accumulation_steps():
            raise Error(
                "trainer-unsupported",
                "a step of the loop ends while DeepSpeed accumulates gradients",
                why=f"{engine.micro_steps} micro-batches are done, and "
                f"{engine.gradient_accumulation_steps()} make a step of the optimizer",
                help="do all micro-batches of a step in one iteration of the loop",
            )
        scheduler = engine.lr_scheduler
        return {
            "weights": [one.detach() for one in self._weights()],
            "buffers": [one.detach() for one in engine.module.buffers()],
            "optimizer": plain(engine.optimizer.state_dict()),
            "scheduler": plain(scheduler.state_dict()) if scheduler is not None else None,
            "counted": {name: int(getattr(engine, name)) for name in _COUNTED},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put it back."""
        engine = self._engine
        optimizer = filled(state["optimizer"], engine.optimizer.state_dict())
        _copy(self._weights(), state["weights"])
        _copy(engine.module.buffers(), state["buffers"])
        if self._stage:
            everybody = [optimizer] * dist.get_world_size()  # it takes that of its own rank
            engine.optimizer.load_state_dict(everybody)
            # ZeRO 1 and 2 have made theirs from the weights, which may have fewer bits
            masters = optimizer.get(_MASTERS, ())
            with_padding = getattr(engine.optimizer, _MASTERS, ())
            unpadded = (m.data[: len(k)] for m, k in zip(with_padding, masters, strict=False))
            _copy(unpadded, masters)
        else:
            engine.optimizer.load_state_dict(optimizer)
        if engine.lr_scheduler is not None:
            before = engine.lr_scheduler.state_dict()
            engine.lr_scheduler.load_state_dict(filled(state["scheduler"], before))
        for name, number in state["counted"].items():
            setattr(engine, name, number)

    def _weights(self) -> list[torch.Tensor]:
        """The parameters, or this rank's parts of them."""
        parameters = self._engine.module.parameters()
        return [getattr(one, "ds_tensor", one).data for one in parameters]


def _copy(now: Iterable[torch.Tensor], kept: Iterable[torch.Tensor]) -> None:
    with torch.no_grad():
        for here, there in zip(now, kept, strict=True):
            here.data.copy_(there.data)
