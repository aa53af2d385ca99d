"""Stages of a pipeline, cut out of a model without a change of its code.

On each stage the model's own `forward` runs; modules of other stages are replaced by `PassedOn`,
which returns its first argument. What comes before the repeated blocks belongs to the first stage,
what comes after them to the last; modules without parameters are on all. That is only right if the
model is a chain: embeddings, blocks one after the other, head. So it is checked while it runs: what
reaches a module that passes on must be what came from the stage before or from the last block here,
as the same object, and so must be what the model returns. Otherwise an error says at which module.

The schedules are those of `torch.distributed.pipelining`. Modules keep their names, so a stage has
parameters of the whole model, and a state can be read by any other layout.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules

from holdfast.dimensions import ScheduleName
from holdfast.errors import Error
from holdfast.train.layouts.asked import called_alone
from holdfast.train.layouts.blocks import Blocks, has_parameters, require_blocks
from holdfast.train.layouts.stage_work import StageWork

Loss = Callable[..., torch.Tensor]

_SCHEDULES: dict[ScheduleName, Any] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zero_bubble": schedules.ScheduleInterleavedZeroBubble,
}
STAGES_EACH: dict[ScheduleName, int] = {"interleaved": 2, "zero_bubble": 2}


class _Flow:
    """What a stage passes through the model: the newest activation."""

    def __init__(self) -> None:
        self.now: Any = None

    def require(self, what: object, where: str) -> None:
        """Raise `Error` (layout-invalid) if this is another one."""
        if what is not self.now:
            raise Error(
                "layout-invalid",
                f"the model cannot be cut into stages at {where}",
                why="its forward() is not a chain: something changes activations outside the "
                "modules with parameters, or keeps them past a block",
                help="move that into a block, the embedding or the head",
            )


class PassedOn(nn.Module):
    """Stands for a module of another stage."""

    def __init__(self, flow: _Flow, name: str) -> None:
        super().__init__()
        self._flow, self._name = flow, name

    def forward(self, first: Any, *_: Any, **__: Any) -> Any:
        """Return the activation."""
        self._flow.require(first, self._name)
        return first


class StageChain(NamedTuple):
    """The modules of a model that have parameters, in the order in which they are called."""

    before: list[str]
    blocks: list[str]
    after: list[str]

    def of_stage(self, stage: int, count: int) -> list[str]:
        """The modules on one of `count` stages."""
        sizes = blocks_by_stage(len(self.blocks), count)
        first = sum(sizes[:stage])
        names = self.blocks[first : first + sizes[stage]]
        return [*(self.before * (stage == 0)), *names, *(self.after * (stage == count - 1))]


def blocks_by_stage(blocks: int, count: int) -> list[int]:
    """How many blocks each stage has; none where they cannot be divided. Two less than a multiple
    leaves the first and the last stage, which have embedding and head, one block less (Llama 3,
    arXiv 2407.21783, section 3.3.2)."""
    each, rest = divmod(blocks, count)
    if not rest:
        return [each] * count
    each, rest = divmod(blocks + 2, count)
    return [each - 1, *[each] * (count - 2), each - 1] if each > 1 and not rest else []


def chain_of(model: nn.Module, blocks: Blocks) -> StageChain:
    """Raises `Error` (layout-invalid) for a model that cannot be cut."""
    require_blocks(blocks, "a pipeline")
    before: list[str] = []
    after: list[str] = []
    owner, path = model, ""
    for part in blocks.path.split(".") if blocks.path else ():
        _require_no_parameters(owner, path)
        names = [*owner._modules]
        cut = names.index(part)
        found = [path + name for name in names if has_parameters(owner._modules[name])]
        here = path + part
        at = {path + name: number for number, name in enumerate(names)}
        before += [name for name in found if at[name] < cut]
        after = [name for name in found if at[name] > cut] + after
        owner, path = owner.get_submodule(part), f"{here}."
    _require_untied(model)
    return StageChain(before, [path + name for name in owner._modules], after)


def _require_no_parameters(owner: nn.Module, path: str) -> None:
    own = [path + name for name, _ in owner.named_parameters(recurse=False)]
    if own:
        raise Error(
            "layout-invalid",
            f"the parameter {own[0]} belongs to no stage of a pipeline",
            why="it is not in a module of its own, so it cannot be assigned to one stage",
            help="put it into a module, such as nn.Embedding, or into the blocks",
        )


def _require_untied(model: nn.Module) -> None:
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = names.setdefault(id(parameter), name)
        if other != name:
            raise Error(
                "layout-invalid",
                f"{other} and {name} are one parameter, which a pipeline would have on two stages",
                why="each stage would update a copy of its own",
                help="do not tie them (tie_word_embeddings: false), or use parallel.pp: 1",
            )


def stage_numbers(rank: int, pp: int, schedule: ScheduleName) -> list[int]:
    """The stages of one rank: every `pp`-th."""
    return [rank + pp * turn for turn in range(STAGES_EACH.get(schedule, 1))]


def require_stages(chain: StageChain, pp: int, schedule: ScheduleName) -> int:
    """The number of stages. Raises `Error` (layout-invalid) if blocks cannot be divided."""
    each = STAGES_EACH.get(schedule, 1)
    blocks = len(chain.blocks)
    if not blocks_by_stage(blocks, pp * each):
        fits = [n for n in range(1, blocks + 1) if blocks_by_stage(blocks, n * each)]
        raise Error(
            "layout-invalid",
            f"{blocks} blocks cannot be divided among {pp * each} stages",
            why=f"parallel.pp is {pp}, and {schedule} gives each rank {each}",
            help=f"parallel.pp can be {' or '.join(map(str, fits))}"
            if fits
            else "use schedule: 1f1b",
        )
    return pp * each


class StageModule(NamedTuple):
    """One stage as a module, and the modules in it that are here."""

    module: nn.Module
    parts: list[nn.Module]


def cut(model: nn.Module, names: Sequence[str], others: Sequence[str], flow: _Flow) -> nn.Module:
    """A copy of the skeleton of `model` with only the modules `names`; nothing in them is copied.

    `others` are the modules with parameters that are elsewhere.
    """
    skeleton = _Skeleton(model)
    for name in others:
        skeleton.replace(name, PassedOn(flow, name))
    for name in names:
        skeleton.replace(name, model.get_submodule(name))
    return skeleton.root


class _Skeleton:
    """A copy of those modules that contain others which are to be replaced."""

    def __init__(self, model: nn.Module) -> None:
        self.root = _copied(model)
        self._copies = {"": self.root}

    def replace(self, name: str, module: nn.Module) -> None:
        owner, _, last = name.rpartition(".")
        self._copy(owner)._modules[last] = module

    def _copy(self, path: str) -> nn.Module:
        if path not in self._copies:
            owner, _, last = path.rpartition(".")
            above = self._copy(owner)
            inner = above._modules[last]
            assert inner is not None
            above._modules[last] = self._copies[path] = _copied(inner)
        return self._copies[path]


def _copied(module: nn.Module) -> nn.Module:
    shallow = copy.copy(module)
    for table in ("_modules", "_parameters", "_buffers"):
        shallow.__dict__[table] = dict(module.__dict__[table])
    return shallow


def stage_of(model: nn.Module, chain: StageChain, number: int, count: int) -> StageModule:
    """One of `count` stages of a model, or of what of it is on this rank."""
    names = chain.of_stage(number, count)
    flow = _Flow()
    everything = [*chain.before, *chain.blocks, *chain.after]
    module = cut(model, names, [name for name in everything if name not in names], flow)
    parts = [module.get_submodule(name) for name in names]
    last = number == count - 1
    forward = module.forward

    def on_stage(*inputs: Any) -> Any:
        flow.now = inputs[0]
        hooks = [part.register_forward_hook(_note(flow)) for part in parts]
        try:
            out = forward(*inputs)
        finally:
            for hook in hooks:
                hook.remove()
        if not last:
            flow.require(out, "what the model returns")
        return out

    module.forward = on_stage
    return StageModule(module, parts)


class Pipeline:
    """The stages of this rank, and one step through all."""

    def __init__(self, model: nn.Module, chain: StageChain, mesh: DeviceMesh, how: Any) -> None:
        """`mesh` is the dimension `pp`; `how` is the layout of the job.

        Raises `Error` (layout-invalid).
        """
        self._mesh, self._schedule_name = mesh, how.schedule
        self.count = require_stages(chain, mesh.size(), how.schedule)
        self.numbers = stage_numbers(mesh.get_local_rank(), mesh.size(), how.schedule)
        everything = [*chain.before, *chain.blocks, *chain.after]
        held = [name for n in self.numbers for name in chain.of_stage(n, self.count)]
        self.model = cut(model, held, [n for n in everything if n not in held], _Flow())
        """What of the model is on this rank, with its names."""
        self.blocks = [model.get_submodule(name) for name in held if name in chain.blocks]
        self.stages = [stage_of(self.model, chain, n, self.count) for n in self.numbers]
        self.model.forward = _called_alone
        self.work: StageWork | None = None
        """How long this rank computes in its stages, since its first step."""
        self._schedule: Any = None
        self._loss: Loss = lambda *_: torch.zeros(())

    def step(
        self, inputs: tuple[torch.Tensor, ...], targets: torch.Tensor, loss: Loss, parts: int
    ) -> torch.Tensor:
        """Forward and backward of all micro-batches; the sum of their losses, on all stages."""
        self._loss = loss
        if self._schedule is None:
            self._schedule = self._make(parts, targets.device)
        losses: list[torch.Tensor] = []
        given = inputs if 0 in self.numbers else ()
        is_last = self.count - 1 in self.numbers
        self._schedule.step(*given, target=targets if is_last else None, losses=losses)
        total = torch.zeros((), device=targets.device)
        if is_last:
            total = torch.stack([one.detach().float() for one in losses]).sum()
        last = dist.get_global_rank(self._mesh.get_group(), (self.count - 1) % self._mesh.size())
        dist.broadcast(total, src=last, group=self._mesh.get_group())
        return total

    def _make(self, parts: int, device: torch.device) -> Any:
        group = self._mesh.get_group()
        stages = [
            PipelineStage(stage.module, number, self.count, device, group=group)
            for number, stage in zip(self.numbers, self.stages, strict=True)
        ]
        self.work = StageWork(device)
        for stage in stages:
            self.work.watch(stage)
        loss_fn = self.work.timed(lambda *given: self._loss(*given))
        several = self._schedule_name in STAGES_EACH
        made = _SCHEDULES[self._schedule_name](
            stages if several else stages[0],
            parts,
            loss_fn=loss_fn,
            scale_grads=False,
        )
        # shapes are found out by a forward pass on top, which must leave no trace
        find_out = made._initialize_pp_stages
        made._initialize_pp_stages = lambda *a, **k: self._without_a_trace(find_out, *a, **k)
        return made

    def _without_a_trace(self, act: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        try:
            return act(*args, **kwargs)
        finally:
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)


def _called_alone(*_: Any, **__: Any) -> Any:
    raise called_alone("pp")


def _note(flow: _Flow) -> Any:
    def note(_module: nn.Module, _given: Any, out: Any) -> None:
        flow.now = out

    return note
