"""`join()`: the line in a training script above which no rank is needed.

On a warm worker everything above it runs ahead of time and `join()` waits for a rank. With a rank
it makes the process group and returns a `Run`, through which the script reaches the rest. The same
call works under torchrun (rank from the environment, nothing to restore) and in a plain process.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from holdfast.datasets import place
from holdfast.errors import Error
from holdfast.events import Milestone
from holdfast.optimizer_steps import leave_to_the_script
from holdfast.page import WorkerPhase
from holdfast.rank import await_rank
from holdfast.train import gradients, memory_ahead, survival
from holdfast.train.attempt_parts import AttemptParts
from holdfast.train.data import Loader
from holdfast.train.early_end import EarlyEnd
from holdfast.train.elastic import Elastic, OnResize, policy_in
from holdfast.train.flops import peak_flops
from holdfast.train.group import (
    check_wishes,
    computes_on_cpu,
    join_group,
    load_driver,
    pick_device,
    require_choice,
    side_group,
)
from holdfast.train.layout import Ranks
from holdfast.train.layouts import trace_ahead
from holdfast.train.layouts.asked import ModelRequirements, asked_layout
from holdfast.train.layouts.run_layout import RunLayout, StepCall
from holdfast.train.layouts.stepping import LossFunction, StepResult
from holdfast.train.layouts.tensor import Plan
from holdfast.train.outer_steps import TRACKED
from holdfast.train.parking import MOVES, ParkingPlace, declaration
from holdfast.train.placement import Placement, find_placement
from holdfast.train.progress import ProgressReporter, open_progress
from holdfast.train.repetition import after_each_step
from holdfast.train.state import State
from holdfast.train.tracked import Tracked

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # of a checkpoint

_joined = False


class Run:
    """This worker's part in an attempt. Made by `join()`."""

    dataset = staticmethod(place.dataset)

    def __init__(
        self,
        placement: Placement,
        device: torch.device,
        progress: ProgressReporter,
        timeout: timedelta | None = None,
    ) -> None:
        """`timeout` is that of collectives, if the script has one."""
        self._ranks = Ranks(placement.rank, placement.world_size, placement.local_world_size)
        self._progress = progress
        self._survival = survival.of_this_process()
        asked = asked_layout(placement.world_size)
        alone = placement.world_size == 1 and not (self._survival and self._survival.moves)
        self._layout = RunLayout(asked, placement, device, alone=alone)
        progress.in_stages_s = self._layout.in_stages_s
        self._tracked: Tracked | None = None
        self._settled = False  # rank 0's parameters were not sent: a snapshot is expected
        self.device = device
        """Where this worker computes."""
        others = placement.world_size > 1
        group = side_group(timeout) if others or self._survival is not None else None
        self._parts = AttemptParts(placement, device, group)
        self._ending = EarlyEnd(group if others and self._parts.exchange is None else None)
        self._elastic = Elastic(policy_in(placement.world_size), self._layout.syncs)

    @property
    def rank(self) -> int:
        """Number of this worker among all, from 0."""
        return self._parts.placement.rank

    @property
    def local_rank(self) -> int:
        """Number of this worker on its node, from 0."""
        return self._parts.placement.local_rank

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return self._parts.placement.world_size

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1; 0 outside Holdfast."""
        return self._parts.placement.attempt

    @property
    def is_main(self) -> bool:
        """Whether this is the worker that prints and saves for all."""
        return self.rank == 0

    @property
    def stopping(self) -> bool:
        """Whether this attempt is about to be stopped: `holdfast stop`, or a node that goes.

        Known to all ranks from the same step on, because they tell each other when they meet; so a
        script may leave out an evaluation for it, also one with collectives. It need not end the
        loop: the state is saved and the workers are stopped anyway, and a loop that ends counts as
        finished. False outside Holdfast.
        """
        return self._parts.snapshots is not None and self._parts.snapshots.loop.stopping

    @property
    def accumulation(self) -> int:
        """Into how many parts a rank divides its share of an optimizer step, so that the step has
        as many samples as on `nodes.count` nodes: 1, unless the job has shrunk."""
        return self._elastic.policy.accumulation

    @property
    def lr_scale(self) -> float:
        """By what the learning rate of this step is to be multiplied: 1.0, unless the job has
        another size than `nodes.count` and `elasticity.batch` is `scale_lr`."""
        return self._elastic.lr_scale

    @property
    def mesh(self) -> DeviceMesh:
        """The ranks along the dimensions of the layout: `pp`, `dp_replicate`, `dp_shard`, `cp`,
        `tp`, the last being neighbours. Without `parallel` in the job all in one, `dp_replicate`.
        """
        return self._layout.mesh

    def parallelize(
        self,
        model: torch.nn.Module,
        *,
        blocks: str | None = None,
        plan: Plan | None = None,
        places: Sequence[str] | None = None,
        **options: Any,
    ) -> torch.nn.Module:
        """`model` on this worker's device, in the layout that the job asks for; without `parallel`
        in the job, averaging gradients over all ranks (DDP).

        `blocks` names the container of its repeated blocks, where it is not the largest one of
        equal modules. `plan` says how `tp` divides modules (`{"layers.*.up": "colwise"}`) and
        which have experts (`"experts"`), where the model declares none. `places` names buffers
        whose first dimension is the place in the sequence, for `cp`. `options` are those of
        DistributedDataParallel.

        Raises `Error` (layout-invalid) for a model that does not fit the layout.
        """
        if self._layout.staged and self._survival is not None:
            self._survival.refuse("a pipeline finds out its shapes in its first step")

        def settled() -> bool:
            self._settled = self._survival is not None or (
                self._tracked is None and self._parts.snapshot_waits(self._ranks)
            )
            return self._settled

        wishes = ModelRequirements(blocks, plan, places)
        return self._layout.parallelize(model, wishes, options, settled)

    def train_step(
        self,
        optimizer: Optimizer | Sequence[Optimizer],
        *inputs: torch.Tensor,
        targets: torch.Tensor | None = None,
        loss: LossFunction | None = None,
        clip: float | None = None,
    ) -> StepResult:
        """A step of the optimizer in any layout: forward and backward of each micro-batch, clipping
        to the norm `clip`, update, `zero_grad()`. Returns `(loss, grad_norm)`.

        `loss(model(*inputs), targets)` is a mean over samples; without `loss` the model returns it.
        The first dimension of inputs and targets are the samples, with `cp` the second one is the
        place in the sequence. Needed with `pp`, `cp` and fp16; elsewhere a loop may do all this.

        Raises `Error` (layout-invalid, run-unavailable).
        """
        several = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
        dealt = self._elastic.loader.dealt if self._elastic.loader is not None else None
        call = StepCall(several, inputs, targets, loss, clip)
        return self._layout.step(call, dealt, self.accumulation)

    def clip_grad_norm_(
        self, parameters: torch.nn.Module | Iterable[torch.Tensor], max_norm: float
    ) -> torch.Tensor:
        """Scale gradients so that their norm over all ranks is at most `max_norm`, whatever the
        layout; returns the norm before."""
        given = parameters
        listed = given.parameters() if isinstance(given, torch.nn.Module) else given
        return self._layout.clip([*listed], max_norm)

    def track(self, *, loader: Any = None, **objects: Any) -> State:
        """Keep these objects through faults; returns the loop.

        Every object needs `state_dict()` and `load_state_dict()`. Modules, optimizers and
        schedulers of a data-parallel run are the same on all ranks; anything else belongs to this
        rank. `loader` gives the batches of `steps()`.

        Raises `Error` (not-tracked, after which it can be called again; run-unavailable when
        called twice).
        """
        if self._tracked is not None:
            raise _unavailable("run.track() was called twice", "pass all objects in one call")
        self._progress.phase(WorkerPhase.SETUP)
        everything = objects if loader is None else {**objects, "loader": loader}
        everything |= self._elastic.tracked | self._layout.tracked
        outer = self._layout.outer_steps(everything)
        if outer is not None:
            everything[TRACKED] = outer.optimizer
        replicas, kept_equal = self._layout.replicas, self._layout.replicas + self._layout.apart
        gather = self._parts.gather
        tracked = Tracked(everything, self.device, kept_equal, self._ranks, gather)
        tracked.random_loaded = self._layout.draw_alike  # of another layout they may differ
        self._tracked = tracked
        if self._survival is not None and getattr(loader, "reread", False):
            self._survival.refuse("its data is read again from the beginning, as in a new process")
        if self._survival is not None and not tracked.movable:
            self._survival.stay("it keeps state that is not the same on all ranks")
        apart = replicas if self._settled or outer is not None else []
        state = State(loader, self._progress, self._parts.watch(tracked), self._ending, apart)
        self._elastic.step = lambda: state.completed
        self._elastic.loader = loader if isinstance(loader, Loader) else None
        state.elastic, state.outer = self._elastic, outer
        state.after_step = _after_each_step(tracked, self._parts, self._progress, self._layout)
        if self._survival is not None:
            state.survival = self._survival
            state.next_attempt = partial(_go_on, self._survival, self._parts, self._progress)
            self._survival.again(lambda: self._meet_again(tracked, state))
        return state

    def _meet_again(self, tracked: Tracked, state: State) -> None:
        """What `track` does, with the objects as they are."""
        now = self._parts.placement
        self._ranks = Ranks(now.rank, now.world_size, now.local_world_size)
        self._layout.begin_again(asked_layout(now.world_size), now.world_size)
        self._elastic.begin_again(policy_in(now.world_size))
        gradients.forget(tracked)
        tracked.same_on(self._ranks)
        tracked.meet(self._parts.gather)
        state.begin_again(self._parts.watch(tracked))
        state.after_step = _after_each_step(tracked, self._parts, self._progress, self._layout)

    def on_resize(self, callback: OnResize) -> None:
        """Have `callback(before, now)` called when training goes on with another number of ranks
        than its state was left by: after it is restored, before the next step."""
        self._elastic.on_resize(callback)

    def micro_batches(self, batch: Any) -> Iterator[tuple[Any, float]]:
        """Divide this rank's share of a step: yields `(part, weight)` with at most `batch_size`
        samples each.

        `(loss(part) * weight).backward()` for each part, where `loss` is a mean over samples,
        gives the gradient of the mean over all samples of all ranks, however many there are and
        however they were dealt out. Modules of `parallelize()` average with the last part. Where
        the job has the size it was written for, that is the batch itself, with weight 1.0.

        Raises `Error` (run-unavailable) without a loader of `holdfast.train` in `track()`.
        """
        if self._elastic.loader is None:
            raise _unavailable(
                "run.micro_batches() has no loader", "pass holdfast.train.loader to run.track()"
            )
        return self._elastic.parts(batch)

    def log(
        self, *, loss: Any = None, grad_norm: Any = None, tokens: int = 0, **metrics: Any
    ) -> None:
        """Report numbers of the step under way; tensors are not waited for.

        `tokens` counts what this rank consumed and adds up when called more than once a step; of
        all others the last value counts. `metrics` are numbers or tensors of one number under
        names of your own, up to 32 names in an attempt; of these `lr`, `samples`, `flops` (of
        this rank in this step; `count_flops` counts them) and `update_ratio` are known by name.
        What rank 0 reports is one line a step in `metrics.jsonl`.

        Raises `ValueError` for a name or a value that cannot be kept.
        """
        self._progress.log(loss, grad_norm, tokens, metrics)

    def section(self, name: str) -> AbstractContextManager[None]:
        """A stretch of the script that may take longer than a step, such as an evaluation:
        `with run.section("eval"): ...`.

        Within it, standing still counts as a hang only after a minute or 1.5 times the longest
        section so far, whichever is longer, and steps outside are not given longer because of it.
        Sections may be nested; the name (letters, digits, `._/-`) is shown.

        Raises `ValueError` for an invalid name.
        """
        return self._progress.section(name)

    def checkpoint(self, name: str) -> None:
        """End this step with a snapshot that is saved to the tier which survives most.

        Called on every rank in the same step of the loop. `name` (letters, digits, `._-`) keeps
        the checkpoint from being thinned out. Saving continues in the background. Where gradients
        are carried over to the next step, the snapshot waits for the step that uses them.

        Raises `Error` (no-durable-tier, run-unavailable).
        """
        if re.fullmatch(NAME_PATTERN, name) is None:
            raise ValueError(f"invalid name of a checkpoint: {name!r}; use letters, digits and ._-")
        snapshots = self._parts.snapshots
        if snapshots is not None and self._parts.settings.tiers:
            snapshots.requests.ask(name)
            return
        raise Error(
            "no-durable-tier",
            f"the checkpoint {name} cannot be saved",
            why="run.track() must be called first"
            if snapshots is None and self._parts.arena is not None
            else "the job has no tier under `checkpoints`, or does not run under Holdfast",
            help="set checkpoints.shared.path in the job file and start the job with `holdfast "
            "run`",
        )


def join(
    *,
    backend: str | None = None,
    timeout: float | timedelta | None = None,
    device: torch.device | str | None = None,
    in_process: bool = False,
) -> Run:
    """Return once this worker has a rank, a device and a process group.

    `backend` is that of `init_process_group` (default: NCCL with a GPU, else gloo), `timeout` how
    long collectives wait, in seconds (default: PyTorch's), `device` where this worker computes
    (default: the GPU with the number of the local rank, which `"cuda"` also means; else the CPU).

    `in_process=True` declares, on all ranks alike, that this process may go on when another one
    fails: everything that steps change, and that has to be put back with them, is in `run.track()`,
    and the loop is that of `state.steps()`. Jobs with `recovery.mode: auto`, the default, then keep
    it, where its process groups allow that; nothing else can tell whether it is true.

    Raises `Error` (run-unavailable) when called twice in one process, (join-invalid) for arguments
    that PyTorch cannot use; after those it can be called again; (declared-differently) where ranks
    give different values of `in_process`.
    """
    global _joined
    if _joined:
        raise _unavailable("join() was called twice", "call it once and pass on its result")
    wait, wanted = check_wishes(backend, timeout, device)
    load_driver()
    trace_ahead.offer()
    if computes_on_cpu(wanted):
        memory_ahead.offer()
    await_rank()
    placement = find_placement()
    asked_layout(placement.world_size)
    chosen = pick_device(placement, wanted)
    if placement.distributed:
        require_choice(backend, wait)
    _joined = True
    leave_to_the_script()
    progress = open_progress(placement, peak_flops(chosen))
    progress.reach(Milestone.STARTED)
    progress.reach(Milestone.ARRIVED)
    progress.phase(WorkerPhase.RENDEZVOUS)
    moves = MOVES in os.environ
    others = placement.world_size > 1 or moves
    parking = ParkingPlace.of(os.environ, declared=in_process) if others else None
    kept = survival.install(parking, chosen, moves=moves) if parking is not None else None
    told = declaration(os.environ, declared=in_process)
    join_group(placement, chosen, backend, wait, declared=told)
    run = Run(placement, chosen, progress, wait)
    _joined_with_others(progress)
    if kept is not None:
        kept.again(lambda: _joined_with_others(progress))
    return run


def joined() -> bool:
    """Whether this process has its run."""
    return _joined


def _after_each_step(
    tracked: Tracked, parts: AttemptParts, progress: ProgressReporter, layout: RunLayout
) -> Callable[[int], None]:
    look = after_each_step(tracked, parts.placement, progress, parts.exchange)

    def done(step: int) -> None:
        layout.require_scaled()
        look(step)

    return done


def _go_on(survived: survival.Survival, parts: AttemptParts, progress: ProgressReporter) -> None:
    """This attempt is broken, and the process is kept for the next."""
    parts.leave_off()
    survived.await_next()
    parts.begin_again()
    progress.begin_again(parts.placement.redo_until)
    progress.reach(Milestone.STARTED)
    progress.reach(Milestone.ARRIVED)
    progress.phase(WorkerPhase.RENDEZVOUS)
    survived.do_again()


def _joined_with_others(progress: ProgressReporter) -> None:
    progress.reach(Milestone.JOINED)
    progress.phase(WorkerPhase.SETUP)


def _unavailable(what: str, help_: str) -> Error:
    return Error("run-unavailable", what, why="a process has one run", help=help_)
