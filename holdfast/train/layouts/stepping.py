"""A step of the optimizer, the same call in every layout: forward, backward, clip, update.

A batch is divided into micro-batches, whose gradients are added up and reduced with the last one;
in a pipeline they are what its schedule moves. The weight of a micro-batch is its share of the
samples of all ranks, so the gradient is that of the mean over all samples in any layout, also where
an elastic job has dealt them out unevenly.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from holdfast.counts import count
from holdfast.dimensions import Dimensions
from holdfast.errors import Error
from holdfast.train.layouts.agreement import require_same_gradients
from holdfast.train.layouts.build import Built
from holdfast.train.layouts.clipping import clip, gradients_of, scale, total_norm
from holdfast.train.layouts.loss_scale import LossScale

LossFunction = Callable[..., torch.Tensor]


class StepResult(NamedTuple):
    """Of one step. `loss` is the mean over the samples of this rank, as a tensor that is not
    waited for; `grad_norm` is that of all gradients, before they were clipped, or None."""

    loss: torch.Tensor
    grad_norm: torch.Tensor | None


class Share(NamedTuple):
    """How many samples of the step are this rank's, how many there are, and who averages: ranks
    with samples of their own; and into how many parts a rank divides its samples."""

    here: int
    everywhere: int
    ranks: int
    parts: int

    @property
    def weight(self) -> float:
        """Of the mean over the samples here, in the mean over all that the ranks average."""
        return self.here * self.ranks / self.everywhere


class GivenBatch(NamedTuple):
    """What a step is made of. `factor` is what the gradient of the mean here is multiplied with."""

    inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor | None
    loss: LossFunction | None
    share: Share
    factor: float


class Stepper:
    """Takes steps with one model in its layout."""

    def __init__(
        self, built: Built, dimensions: Dimensions, mesh: DeviceMesh | None, scale: LossScale | None
    ) -> None:
        """`mesh` is None where there is one rank."""
        self._built, self._scale = built, scale
        self._pp = mesh["pp"] if mesh is not None and dimensions.pp > 1 else None
        self._cp = mesh["cp"] if mesh is not None and dimensions.cp > 1 else None
        self._tp = mesh["tp"] if mesh is not None and dimensions.tp > 1 else None
        self._fewest = dimensions.pp if dimensions.pp > 1 else 1
        self.begin_again()

    def begin_again(self) -> None:
        """An attempt begins: whoever is new in it compares gradients in its first step, which takes
        all ranks."""
        self._compares = self._tp is not None

    def step(
        self,
        optimizers: Sequence[Optimizer],
        inputs: tuple[torch.Tensor, ...],
        targets: torch.Tensor | None,
        loss: LossFunction | None,
        share: Share,
        highest: float | None,
    ) -> StepResult:
        """One step. `highest` is the norm to which gradients are clipped; None: they are not.

        Raises `Error` (layout-invalid) for a batch or a call that the layout cannot use.
        """
        factor = share.weight * (self._scale.factor if self._scale else 1.0)
        mean = self._gradients(GivenBatch(inputs, targets, loss, share, factor))
        gradients = gradients_of(self._built.model.parameters())
        if self._tp is not None and self._compares:
            require_same_gradients(self._built.model.named_parameters(), self._tp)
            self._compares = False
        norm, take = None, True
        if self._scale is not None:
            scale(gradients, torch.tensor(1 / self._scale.factor))
        if highest is not None or self._scale is not None:
            norm = total_norm(gradients, self._pp)
        if self._scale is not None and norm is not None:
            take = self._scale.accepts(float(norm))
        if take and highest is not None and norm is not None:
            clip(gradients, norm, highest)
        for optimizer in optimizers:
            if take:
                optimizer.step()
            optimizer.zero_grad()
        return StepResult(mean, norm)

    def in_stages_s(self) -> float:
        """How long this rank has computed in its stages of a pipeline."""
        work = self._built.pipeline.work if self._built.pipeline is not None else None
        return work.seconds() if work is not None else 0.0

    # ── forward and backward ──

    def _gradients(self, batch: GivenBatch) -> torch.Tensor:
        """Of all micro-batches; the mean loss."""
        context = self._built.context
        divided = self._pp is not None or context is not None
        if divided and (batch.targets is None or batch.loss is None):
            raise Error(
                "layout-invalid",
                "run.train_step() was called without targets= or loss=",
                why="with pp or cp the loss is computed from the output of the model: in the last "
                "stage of the pipeline, for this rank's part of the sequences",
                help="run.train_step(optimizer, tokens, targets=targets, loss=cross_entropy)",
            )
        if context is None:
            return self._passes(batch)
        assert batch.targets is not None
        with context.step(batch.targets.shape[1]):
            inputs, targets = tuple(map(context.part, batch.inputs)), context.part(batch.targets)
            mean = self._passes(batch._replace(inputs=inputs, targets=targets))
        assert self._cp is not None
        dist.all_reduce(mean, group=self._cp.get_group())
        return mean / self._cp.size()

    def _passes(self, batch: GivenBatch) -> torch.Tensor:
        if self._built.pipeline is None:
            return self._one_after_the_other(batch)
        inputs, targets, loss, share, factor = batch
        assert targets is not None and loss is not None
        parts = max(share.parts, self._fewest)
        if len(targets) % parts:
            batch_size = count(len(targets), "sample")
            raise Error(
                "layout-invalid",
                f"a batch of {batch_size} cannot be divided into {parts} micro-batches",
                why="a pipeline needs micro-batches of the same size, at least as many as "
                "parallel.pp, and as many as parallel.accumulate",
                help=f"use a batch size that is a multiple of {parts}",
            )
        weight = factor / parts

        def weighted(out: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return loss(_full_precision(out), wanted) * weight

        total: torch.Tensor = self._built.pipeline.step(inputs, targets, weighted, parts)
        return total / factor

    def _one_after_the_other(self, batch: GivenBatch) -> torch.Tensor:
        inputs, targets, loss, share, factor = batch
        means = []
        for *given, wanted, weight, last in _micro_batches(inputs, targets, share.parts):
            for sync in self._built.syncs:
                sync.require_backward_grad_sync = last
            out = self._built.model(*given)
            one = out
            if loss is not None:
                one = loss(_full_precision(out), *(() if wanted is None else (wanted,)))
            (one * (weight * factor)).backward()
            means.append(one.detach() * weight)
        return torch.stack(means).sum()


def _micro_batches(
    inputs: tuple[torch.Tensor, ...], targets: torch.Tensor | None, parts: int
) -> Iterator[tuple[Any, ...]]:
    """The inputs and targets of each, its share of the samples, and whether it is the last."""
    count = len(inputs[0])
    parts = min(parts, count)
    given = [tensor.tensor_split(parts) for tensor in inputs]
    wanted = targets.tensor_split(parts) if targets is not None else [None] * parts
    for number, batch in enumerate(zip(*given, wanted, strict=True)):
        yield (*batch, len(batch[0]) / count, number == parts - 1)


def _full_precision(out: Any) -> Any:
    floating = isinstance(out, torch.Tensor) and out.is_floating_point()
    return out.float() if floating else out
