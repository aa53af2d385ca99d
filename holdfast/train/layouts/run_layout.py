"""The layout of a run: its mesh, the model that was put into it, and what of it is state."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer

from holdfast.dimensions import NAMES
from holdfast.errors import Error
from holdfast.train import random_state
from holdfast.train.elastic import policy_in
from holdfast.train.group import join_alone
from holdfast.train.layouts.asked import (
    AskedLayout,
    ModelRequirements,
    require_plain_options,
    unsupported,
)
from holdfast.train.layouts.build import build, warn_of_slow_links
from holdfast.train.layouts.clipping import clip, gradients_of, total_norm
from holdfast.train.layouts.compression import compress
from holdfast.train.layouts.loss_scale import LossScale
from holdfast.train.layouts.stepping import LossFunction, Share, Stepper, StepResult
from holdfast.train.outer_steps import OuterSteps, ranks_each, wish_in
from holdfast.train.parallel import data_parallel
from holdfast.train.placement import Placement


class StepCall(NamedTuple):
    """What the script has asked `run.train_step()` for."""

    optimizers: Sequence[Optimizer]
    inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor | None
    loss: LossFunction | None
    clip: float | None


class RunLayout:
    """What a run knows about its layout."""

    def __init__(
        self, asked: AskedLayout, placement: Placement, device: torch.device, *, alone: bool
    ) -> None:
        """`alone`: there is one rank, and no other will join it in this process."""
        self._asked, self._device, self._alone = asked, device, alone
        self._world_size = placement.world_size
        self._replica_ranks = ranks_each(placement.world_size)
        self._mesh: DeviceMesh | None = None
        self._stepper: Stepper | None = None
        self._outer: OuterSteps | None = None
        self._stepped = False
        self.replicas: list[nn.Module] = []
        """Models whose gradients DDP averages over all ranks."""
        self.apart: list[nn.Module] = []
        """Models that only outer steps bring together."""
        self.syncs: list[Any] = []
        """What is told, by `require_backward_grad_sync`, whether to reduce gradients."""
        self.tracked: dict[str, Any] = {}
        """What is to be kept through restarts besides what the script keeps."""
        warn_of_slow_links(asked, placement.rank, placement.local_world_size)

    def begin_again(self, asked: AskedLayout, world_size: int) -> None:
        """Another attempt begins in this process. Its number of ranks is another one only where all
        of them do the same."""
        self._asked, self._world_size = asked, world_size
        if self._stepper is not None:
            self._stepper.begin_again()
        if self._outer is not None:
            self._outer.group = self._across()

    @property
    def staged(self) -> bool:
        """Whether there is a pipeline."""
        return self._asked.dimensions.pp > 1

    @property
    def mesh(self) -> DeviceMesh:
        """All dimensions that the job names, outermost first; one where it names none."""
        if self._mesh is None:
            join_alone(self._device)
            given = self._asked.given
            names = NAMES if given else ("dp_replicate",)
            shape = tuple(self._asked.dimensions) if given else (self._world_size,)
            self._mesh = init_device_mesh(self._device.type, shape, mesh_dim_names=names)
        return self._mesh

    def parallelize(
        self,
        model: nn.Module,
        wishes: ModelRequirements,
        options: Mapping[str, Any],
        settled: Callable[[], bool],
    ) -> nn.Module:
        """`model` in this layout, on its device. `settled` tells whether all ranks will load the
        same snapshot anyway. Raises `Error` (layout-invalid)."""
        layout, dimensions = self._asked.layout, self._asked.dimensions
        require_plain_options(options, dimensions)
        if layout.gradient_compression != "none" and not dimensions.replicates_only:
            raise unsupported(
                f"gradient_compression: {layout.gradient_compression} is for DDP",
                "gradients of sharded parameters are not sent whole",
                "use a layout with dp_replicate only, or precision: bf16",
            )
        by_itself = wish_in() is not None
        asked = self._asked
        if by_itself:  # what is averaged in each step is within a replica
            asked = asked._replace(dimensions=dimensions._replace(dp_replicate=1))
        built = build(model.to(self._device), asked, lambda: self.mesh, wishes)
        self.syncs += built.syncs
        if layout.precision == "fp16":
            self.tracked["holdfast_loss_scale"] = LossScale()
        if dimensions.replicates_only and not self._alone:
            built = built._replace(model=self._replicated(built.model, options, settled))
        mesh = self.mesh if not (self._alone or dimensions.replicates_only) else None
        if by_itself:
            self.apart.append(built.model)
        scale = self.tracked.get("holdfast_loss_scale")
        self._stepper = Stepper(built, dimensions, mesh, scale)
        self.draw_alike()
        return built.model

    def draw_alike(self) -> None:
        """Have the ranks along `tp` go on with the random numbers of the first of them.

        What lies between divided layers is whole on each, so dropout has to leave out the same of
        it; else parameters that all have, such as those of norms, drift apart. With
        `sequence_parallel` each has another part of it.
        """
        if self._asked.dimensions.tp == 1 or self._asked.layout.sequence_parallel:
            return
        group = self.mesh["tp"].get_group()
        numbers = [random_state.capture(self._device)]
        dist.broadcast_object_list(numbers, src=dist.get_global_rank(group, 0), group=group)
        random_state.restore(numbers[0], self._device)

    def _replicated(
        self, model: nn.Module, options: Mapping[str, Any], settled: Callable[[], bool]
    ) -> nn.Module:
        self.replicas.append(model)
        if wish_in() is not None:
            if self._replica_ranks == 1:
                return model
            options = {**options, "process_group": self._own_group()}
        wrapped = data_parallel(model, self._device, settled=settled(), options={**options})
        self.syncs.append(wrapped)
        state = compress(wrapped, self._asked.layout.gradient_compression)
        if state is not None:
            self.tracked["holdfast_compression"] = state
        return wrapped

    def _own_group(self) -> dist.ProcessGroup:
        """Of the ranks of this replica. All ranks make all groups."""
        each = self._replica_ranks
        firsts = range(0, self._world_size, each)
        groups = [dist.new_group([*range(first, first + each)]) for first in firsts]
        own: dist.ProcessGroup = groups[dist.get_rank() // each]
        return own

    def outer_steps(self, tracked: Mapping[str, Any]) -> OuterSteps | None:
        """What brings the models together that are given to no other rank in each step; None where
        the job asks for none. Raises `Error` (layout-invalid)."""
        wish = wish_in()
        if wish is not None:
            self._outer = OuterSteps(wish, self.apart, tracked)
            self._outer.group = self._across()
        return self._outer

    def _across(self) -> dist.ProcessGroup | None:
        """Of all ranks that hold the same part of the model; None where there is one replica."""
        if self._world_size == self._replica_ranks:
            return None
        if self._asked.dimensions.replicates_only:
            return dist.group.WORLD
        return self.mesh["dp_replicate"].get_group()

    def step(self, call: StepCall, dealt: tuple[int, int] | None, accumulation: int) -> StepResult:
        """One step. `dealt` are the samples of this rank and of all that average their gradients,
        where the loader knows."""
        if self._stepper is None:
            raise Error(
                "run-unavailable",
                "run.train_step() was called before run.parallelize()",
                why="it takes a step with the model that parallelize() was given",
                help="model = run.parallelize(model)",
            )
        self._stepped = True
        ranks = policy_in(self._world_size).averages
        here = len(call.inputs[0])
        _, everywhere = dealt or (here, here * ranks)
        share = Share(here, everywhere, ranks, self._asked.layout.accumulate * accumulation)
        return self._stepper.step(
            call.optimizers, call.inputs, call.targets, call.loss, share, call.clip
        )

    def in_stages_s(self) -> float:
        """How long this rank has computed in its stages of a pipeline."""
        return self._stepper.in_stages_s() if self._stepper is not None else 0.0

    def require_scaled(self) -> None:
        """After a step of the loop. Raises `Error` (layout-invalid) where gradients of fp16 were
        computed without a scaled loss."""
        wanted = self._stepper is not None and self._asked.layout.precision == "fp16"
        if wanted and not self._stepped:
            raise unsupported(
                "precision: fp16, and the loop did a step without run.train_step()",
                "small gradients are zero in fp16 unless the loss is scaled, which train_step does",
                "use run.train_step(), or precision: bf16",
            )

    def clip(self, parameters: Sequence[torch.Tensor], highest: float) -> torch.Tensor:
        """Clip gradients to this norm over all ranks; the norm before."""
        gradients = gradients_of(parameters)
        norm = total_norm(gradients, self.mesh["pp"] if self.staged else None)
        clip(gradients, norm, highest)
        return norm
