"""What a change of the number of ranks means for the batch and for the learning rate.

A job file describes a batch for `nodes.count` nodes. With other ranks than that, `elasticity.batch`
says what stays: the samples of an optimizer step (`keep_global_batch`), which are dealt out again,
each rank taking its share in parts of `batch_size` at most; or the samples of a rank (`scale_lr`),
and the learning rate grows with the number of ranks (Goyal et al. 2017), over some steps.
Where a job is not elastic nothing of this does anything.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import torch

from holdfast.dimensions import layout_in
from holdfast.train.outer_steps import ranks_each

OnResize = Callable[[int, int], object]


class BatchPolicy(NamedTuple):
    """Of this attempt; `reference` is the number of ranks that the settings of the job are for.

    Ranks that have the same samples (those along `tp`, `cp` and `pp`) count as one here.
    """

    reference: int
    world_size: int
    keeps: bool  # the samples of a step, whatever the number of ranks
    warmup_steps: int
    together: int = 1  # ranks that have the same samples
    averaging: int = 0  # ranks that average gradients in each step, those of one replica; 0: all

    @property
    def elastic(self) -> bool:
        """Whether the number of ranks may be another one."""
        return self.reference > 0

    def samples(self, batch_size: int) -> int:
        """Of one step of the optimizer, over all ranks."""
        ranks = self.reference if self.elastic and self.keeps else self.world_size
        return batch_size * ranks

    @property
    def averages(self) -> int:
        """Ranks whose gradients are averaged in each step."""
        return self.averaging or self.world_size

    def replica_samples(self, rank: int, total: int) -> int:
        """How many of `total` samples of a step those have who average with this rank."""
        first = rank - rank % self.averages
        after = first + self.averages
        return total * after // self.world_size - total * first // self.world_size

    @property
    def accumulation(self) -> int:
        """Into how many parts a rank divides its share of a step."""
        if not (self.elastic and self.keeps):
            return 1
        return -(-self.reference // self.world_size)

    @property
    def lr_scale(self) -> float:
        """Of the learning rate, after the warm-up."""
        return self.world_size / self.reference if self.elastic and not self.keeps else 1.0


class _Wish(msgspec.Struct, frozen=True):
    nodes: int
    batch: str
    warmup_steps: int


def policy_in(world_size: int, environ: Mapping[str, str] = os.environ) -> BatchPolicy:
    """What the environment says."""
    text = environ.get("HOLDFAST_ELASTIC")
    layout = layout_in(environ)
    now = layout.resolve(world_size).data
    together = world_size // now
    averaging = ranks_each(world_size, environ) // together
    if text is None:
        return BatchPolicy(0, now, True, 0, together, averaging)
    wish = msgspec.json.decode(text, type=_Wish)
    ranks = wish.nodes * int(environ.get("LOCAL_WORLD_SIZE", "1"))
    keeps = wish.batch == "keep_global_batch"
    reference = layout.resolve(ranks).data
    return BatchPolicy(reference, now, keeps, wish.warmup_steps, together, averaging)


class LearningRateScale:
    """The factor of the learning rate, step by step. Its state says of which ramp it is, so that a
    restart in the middle of one goes on with it."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._to, self._steps = policy.lr_scale, policy.warmup_steps
        self._from, self._at = self._to, 0
        self._next = (self._to, self._steps)  # those of this attempt

    def aim(self, policy: BatchPolicy) -> None:
        """The next attempt has this policy."""
        self._next = (policy.lr_scale, policy.warmup_steps)

    def at(self, step: int) -> float:
        """The factor after this many completed steps."""
        done = min(1.0, (step - self._at) / self._steps) if self._steps else 1.0
        return self._from + (self._to - self._from) * max(0.0, done)

    def state_dict(self) -> dict[str, float]:
        """The ramp."""
        return {"from": self._from, "to": self._to, "at": self._at, "steps": self._steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on with the ramp of an earlier attempt."""
        self._from, self._at = state["from"], int(state["at"])
        self._to, self._steps = state["to"], int(state["steps"])

    def resumed(self, step: int) -> None:
        """It was loaded, at this step: to another size from there on."""
        to, steps = self._next
        if to != self._to:
            self._from, self._at = self.at(step), step
        self._to, self._steps = to, steps


class Dealer(Protocol):
    """A loader that knows how many samples of a step are this rank's, and how many of those whose
    gradients are averaged with its own."""

    dealt: tuple[int, int]

    @property
    def batch_size(self) -> int:
        """Samples of a rank at a time."""


class Elastic:
    """What a run knows about its size."""

    def __init__(self, policy: BatchPolicy, parallel: Sequence[Any]) -> None:
        """`parallel` are the modules whose gradients are averaged over all ranks."""
        self.policy = policy
        self.scale = LearningRateScale(policy)
        self.step: Callable[[], int] = lambda: 0  # completed ones
        self.loader: Dealer | None = None
        self._parallel = parallel
        self._told: list[OnResize] = []

    def begin_again(self, policy: BatchPolicy) -> None:
        """Another attempt begins in this process."""
        self.policy = policy
        self.scale.aim(policy)

    @property
    def tracked(self) -> dict[str, Any]:
        """What is to be kept through restarts besides what the script keeps."""
        ramps = self.policy.elastic and not self.policy.keeps
        return {"holdfast_lr_scale": self.scale} if ramps else {}

    @property
    def lr_scale(self) -> float:
        """The factor of the step under way."""
        return self.scale.at(self.step())

    def on_resize(self, callback: OnResize) -> None:
        """To be called with the number of ranks before and now."""
        self._told.append(callback)

    def resumed(self, step: int, ranks_before: int | None) -> None:
        """The state after this step is restored, which so many ranks have left."""
        self.scale.resumed(step)
        now = self.policy.world_size * self.policy.together
        if ranks_before not in (None, now):
            for callback in self._told:
                callback(ranks_before, now)

    def numbers(self) -> dict[str, float]:
        """What the metrics of each step say about it."""
        if not self.policy.elastic:
            return {}
        ranks = self.policy.world_size * self.policy.together
        return {"world_size": ranks, "lr_scale": self.lr_scale}

    def parts(self, batch: Any) -> Iterator[tuple[Any, float]]:
        """A batch in parts of at most the batch size of the loader, each with the weight of its
        mean loss in the mean over all ranks. Gradients are averaged with the last part."""
        assert self.loader is not None
        (here, everywhere), batch_size = self.loader.dealt, self.loader.batch_size
        world = self.policy.averages if self._parallel else 1
        total = everywhere if self._parallel else here
        firsts = range(0, here, batch_size)
        for first in firsts:
            end = min(here, first + batch_size)
            for module in self._parallel:
                module.require_backward_grad_sync = first == firsts[-1]
            whole = len(firsts) == 1
            yield batch if whole else sliced(batch, first, end, here), (end - first) * world / total


def sliced(batch: Any, first: int, end: int, count: int) -> Any:
    """These of `count` samples of a collated batch: tensors by their first dimension."""
    match batch:
        case torch.Tensor() if batch.ndim and len(batch) == count:
            return batch[first:end]
        case dict():
            return {key: sliced(value, first, end, count) for key, value in batch.items()}
        case tuple() if hasattr(batch, "_fields"):
            return type(batch)(*(sliced(value, first, end, count) for value in batch))
        case list() | tuple() if len(batch) == count and not _is_of_fields(batch, count):
            return batch[first:end]
        case list() | tuple():
            return type(batch)(sliced(value, first, end, count) for value in batch)
        case _:
            raise ValueError(f"a {type(batch).__qualname__} in a batch cannot be divided")


def _is_of_fields(batch: Sequence[Any], count: int) -> bool:
    """Whether its items are fields of all samples, not samples."""
    return all(isinstance(one, torch.Tensor) and one.ndim and len(one) == count for one in batch)
