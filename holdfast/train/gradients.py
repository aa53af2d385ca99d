"""Gradients that a script carries over from one turn of its loop to the next.

A snapshot is best taken where there are none: right after an optimizer has used them, or where they
have been zeroed. Whether that is so is looked at when a snapshot is due. A gradient counts as used
when an optimizer (any, tracked or not) has taken a step with it and nothing was written to it
since; torch counts the writes. What is left is *pending*, unless it is zero everywhere.

A snapshot that is due waits for the end of a turn without pending gradients, on all ranks. Some
scripts have none (a second loss that leaves gradients behind, a hand-made optimizer): after
`PATIENCE_S`, or `URGENT_PATIENCE_S` before a node goes, and at the end of the loop, gradients are
kept with the snapshot, as state of each rank. Those that FSDP2 holds back unreduced cannot be kept:
then there is no snapshot, and a warning says so.
"""

import logging
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from holdfast.checkpoint.tensors import is_distributed, is_leaf, local_part
from holdfast.train.exchange import Agreed
from holdfast.train.tracked import Tracked

logger = logging.getLogger(__name__)

PATIENCE_S = 60.0  # for a turn without pending gradients, before a snapshot keeps them
URGENT_PATIENCE_S = 5.0  # the same before a node goes
CARRIED, LOST = 1, 2  # `Agreed.carried`: there are pending gradients; some that cannot be kept


class PendingGradients(NamedTuple):
    """The gradients at the end of a turn: `tree` is what a snapshot has to keep of them, by the
    paths of their parameters, None for one that is zero everywhere."""

    tree: dict[str, torch.Tensor | None]
    lost: str = ""  # why some cannot be kept

    @property
    def bytes(self) -> int:
        """Of what has to be kept on this rank."""
        return sum(local_part(grad).nbytes for grad in self.tree.values() if grad is not None)

    @property
    def pending(self) -> bool:
        """Whether a snapshot without them would go on to something else."""
        return bool(self.lost) or any(kept is not None for kept in self.tree.values())


class Gradients:
    """Those of all tracked parameters."""

    def __init__(self, tracked: Tracked) -> None:
        listed = {id(p): (path, p) for path, p in reversed(tracked.names.now().items())}
        self._parameters = [*reversed(listed.values())]
        self._sharded = [*_sharded_groups(tracked)]
        self._probe: Any = None  # of the first used gradient: is it zeroed before it is added to?
        self._runs_on = False  # it is not: used gradients are pending, too
        self._stepped = False  # an optimizer has taken a step in this turn
        self.room: Callable[[int], bool] = lambda _: True
        """Whether there is memory for so many bytes more in a snapshot."""
        self.discard: Callable[[], None] = lambda: None
        """Throws away here what there is of the newest snapshot; ranks agree on it later."""
        self.spoiled = False
        """Whether the newest snapshot lacks a gradient that turned out to be pending."""
        self.clean_after_step = False
        """Whether nothing was pending at the end of the last turn with a step."""
        self._since: float | None = None  # when a snapshot began to wait
        self._impatient = False  # one has waited for too long, and nothing has changed since
        self._warned = False
        stepped = weakref.WeakMethod(self._note)
        handle = register_optimizer_step_post_hook(lambda o, *_: (f := stepped()) and f(o))
        weakref.finalize(self, handle.remove)

    def _note(self, optimizer: torch.optim.Optimizer) -> None:
        """This optimizer has used the gradients that it has now.

        The mark is on the tensor itself: another one in its place has none.
        """
        self._stepped = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                grad = parameter.grad
                if grad is not None:
                    grad._holdfast_used = local_part(grad)._version

    # ── what there is at the end of a turn ──

    def find(self) -> PendingGradients:
        """What is pending now."""
        left: dict[str, torch.Tensor] = {}
        for path, parameter in self._parameters:
            grad = parameter.grad
            if grad is None:
                continue
            if _is_used(grad) and not self._runs_on:
                self._watch(parameter)
            else:
                left[path] = grad
        kept: dict[str, torch.Tensor | None] = {**left}
        if left and not any(_nonzero(grad) for grad in left.values()):
            kept = dict.fromkeys(left)
        found = PendingGradients(kept, self._lost(kept))
        if self._stepped:
            self.clean_after_step = not found.pending
        self._stepped = False
        return found

    def _watch(self, parameter: torch.Tensor) -> None:
        """See at its next gradient whether the script has zeroed the one that was used: some never
        do."""
        if self._probe is not None or is_distributed(parameter) or not parameter.requires_grad:
            return

        def look(_: torch.Tensor) -> None:
            self._probe.remove()
            if parameter.is_cuda and torch.cuda.is_current_stream_capturing():
                return
            if parameter.grad is not None and _is_used(parameter.grad) and _nonzero(parameter.grad):
                self._runs_on = self.spoiled = True
                self.clean_after_step = False
                self.discard()
                logger.warning(
                    "gradients are accumulated onto those that the optimizer has already used: "
                    "optimizer.zero_grad() is missing, or this is intended; snapshots include "
                    "them"
                )

        self._probe = parameter.register_hook(look)  # type: ignore[no-untyped-call]

    def _lost(self, kept: dict[str, torch.Tensor | None]) -> str:
        """Why some of these cannot be kept; empty if all can."""
        if any(_held_back(group) for group in self._sharded):
            return "fully_shard does not reduce them until set_requires_gradient_sync(True)"
        parameters = dict(self._parameters)
        for path, grad in kept.items():
            if grad is not None and not _can_be_kept(grad, parameters[path]):
                return f"the gradient of {path} is sparse, or a partial (unreduced) DTensor"
        return ""

    # ── waiting for the end of a turn without any ──

    def say(self, *, urgent: bool) -> tuple[int, int]:
        """`carried` and `keep` of this rank at a meeting."""
        found = self.find()
        if not found.pending:
            self._impatient = False
            return 0, 0
        waited_s = 0.0 if self._since is None else time.monotonic() - self._since
        self._impatient |= self._runs_on or waited_s >= PATIENCE_S
        keep = self._impatient or (urgent and waited_s >= URGENT_PATIENCE_S)
        lost = found.lost or (keep and not self.room(found.bytes))
        return LOST if lost else CARRIED, int(keep)

    def wait(self, agreed: Agreed, *, last: bool) -> bool:
        """Whether a snapshot that is due waits, on all ranks alike. None does after the `last`
        turn."""
        keeps = agreed.carried == CARRIED and agreed.keep
        if last or keeps or not agreed.carried:
            self._since = None
            return False
        if self._since is None:
            self._since = time.monotonic()
        if agreed.keep and not self._warned:
            self._warned = True
            logger.warning(
                "no snapshot can be taken: gradients are accumulated across iterations and "
                "cannot be saved (%s); the next snapshot is taken once an optimizer has used all "
                "of them",
                self.find().lost or "out of memory, or on another rank",
            )
        return True

    def keep(self, *, last: bool) -> PendingGradients:
        """What the snapshot that is taken now has to keep."""
        found = self.find()
        self.spoiled = bool(found.lost) and not last
        if found.lost:
            logger.warning("the snapshot lacks gradients: %s", found.lost)
            return PendingGradients({})
        if found.pending and not self._warned and not last:
            self._warned = True
            logger.warning(
                "gradients are accumulated across iterations: snapshots include them, %.1f MiB "
                "on this rank, because no iteration ended without pending gradients",
                found.bytes / (1 << 20),
            )
        return found


def forget(tracked: Tracked) -> None:
    """Let go of what a step that was given up has left: its gradients, also those that FSDP2 holds
    back, and what FSDP2 has gathered and would not gather again. A new process has none of it, and
    the collectives of the next step depend on it."""
    for parameter in tracked.names.parameters.values():
        parameter.grad = None
    for group in _sharded_groups(tracked):
        group._all_gather_result = group._partial_reduce_output = None
        group._post_forward_indices.clear()
        getattr(group.comm_ctx, "post_forward_order", []).clear()  # there is none before it is used
        group._to_sharded()
        for one in group.fsdp_params:
            one.unsharded_accumulated_grad = None
            if (whole := getattr(one, "_unsharded_param", None)) is not None:
                whole.grad = None


def _is_used(grad: Any) -> bool:
    """An optimizer has used this gradient as it is now."""
    used: int = getattr(grad, "_holdfast_used", -1)
    writes: int = local_part(grad)._version
    return used == writes


def _nonzero(grad: Any) -> bool:
    part = local_part(grad)
    return bool((part._values() if part.is_sparse else part).any())


def _can_be_kept(grad: Any, parameter: Any) -> bool:
    if is_distributed(grad):
        alike = is_distributed(parameter) and grad.placements == parameter.placements
        return bool(alike and is_leaf(grad))
    return bool(is_leaf(grad) and not is_distributed(parameter))


def _sharded_groups(tracked: Tracked) -> Iterator[Any]:
    """What FSDP2 calls a group of parameters, of all tracked modules."""
    for module in tracked.modules.values():
        for part in module.modules():
            if hasattr(part, "_get_fsdp_state"):
                state = part._get_fsdp_state()
                several = getattr(state, "_fsdp_param_groups", None)
                one = state._fsdp_param_group if several is None else None  # older PyTorch
                yield from several or filter(None, [one])


def _held_back(group: Any) -> bool:
    """Whether FSDP2 has gradients that it has not reduced yet: they are in no `.grad`."""
    if group._partial_reduce_output is not None:
        return True
    waiting = (
        (p.unsharded_accumulated_grad, getattr(p, "_unsharded_param", None))
        for p in group.fsdp_params
    )
    return any(sum_ is not None or (p is not None and p.grad is not None) for sum_, p in waiting)
