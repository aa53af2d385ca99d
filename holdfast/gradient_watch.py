"""What the gradients of a script tell that does not tell its numbers: NaN, and their norm.

After a step of the optimizer (`optimizer_steps`) the gradients of its smallest parameters are
looked at. A NaN in the loss reaches them all, and one that begins elsewhere does a step later,
because whatever is computed from it is NaN. It breaks the attempt if the parameter is no number
either: what a `GradScaler`, or an optimizer of the script's own, leaves out changes none. The norm
of all gradients is told, and watched as that of a script which logs its own
(`detection.numerics`): so many in a row that are not finite break the attempt, too.

Both are of what this rank has: the rank's shard where gradients are sharded, and no collective.
They read tensors and write none that the script has, draw nothing, and are done as often as a share
of the time allows, by what they have cost so far: the few each step if that is not very short, the
norm now and then. Nothing waits for a GPU: it computes, copies to pinned memory, and the numbers
are taken at the next step that finds them there; until then nothing else is begun.
"""

import heapq
import math
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.detection.numerics import FirstBad, NumberWatch
from holdfast.events import Quantity, Spike
from holdfast.page import Page

LOOK_SHARE = 0.001  # of the time, for the few
NORM_SHARE = 0.0005  # for all
ALWAYS = 3  # so often at the beginning, until it is known what it costs
FEW = 4
LARGE = 4096  # so many numbers of a parameter are enough
DEVICES = ("cpu", "cuda")


class Allowance:
    """How often something is done that may take a share of the time."""

    def __init__(self, share: float) -> None:
        self.cost_s = math.inf  # lately; what others have slowed down counts for twice as much
        self._share = share
        self._count = 0
        self._due_at = 0.0

    @property
    def known(self) -> bool:
        """Whether it is known what that costs."""
        return self._count >= ALWAYS

    def is_due(self, now: float) -> bool:
        """Whether it may be done."""
        return not self.known or now >= self._due_at

    def spent(self, at: float, cost_s: float) -> None:
        """It was done at this time and has taken so long."""
        self._count += 1
        self.cost_s = min(cost_s, 2.0 * self.cost_s)
        self._due_at = at + self.cost_s / self._share


class _Sent(NamedTuple):
    """Numbers of one step that may still be on their way from the GPU."""

    step: int
    at: float
    few: int
    whole: bool
    values: Any  # norms of few gradients, of their parameters, of all; a tensor on the CPU
    cost_s: float
    begun: Any  # events of the GPU
    arrived: Any


class GradientWatch:
    """The gradients of one rank, as the optimizer has used them."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._torch: Any = sys.modules["torch"]
        self._sent: _Sent | None = None
        self._begin(None)

    def _begin(self, optimizer: object) -> None:
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else _nothing
        self._few: list[Callable[[], Any]] = []  # weak references to parameters
        self.look, self.norm = Allowance(LOOK_SHARE), Allowance(NORM_SHARE)
        self._numbers = NumberWatch()

    def stepped(self, optimizer: Any, step: int, now: float) -> None:
        """The optimizer has done this step."""
        if not self._receive():
            return
        if optimizer is not self._optimizer():
            self._begin(optimizer)
        whole = self.look.known and self.norm.is_due(now)
        if whole or self.look.is_due(now):
            self.look_at(optimizer, step, now, whole=whole)

    def look_at(self, optimizer: Any, step: int, now: float, *, whole: bool) -> None:
        """Whatever it costs: at a few gradients, or also at the norm of all."""
        with self._torch.no_grad():
            self._sent = self._take(optimizer, step, now, whole)
        self._receive()

    def _take(self, optimizer: Any, step: int, now: float, whole: bool) -> _Sent | None:
        """Have the numbers computed where the gradients are. The cost is this thread's time on a
        processor, and the GPU's: to wait for a processor of a busy machine is not ours."""
        torch, began = self._torch, time.thread_time()
        pairs = self._pairs(optimizer)
        if not pairs:
            self.look.spent(now, time.thread_time() - began)
            return None
        device = pairs[0][0].device
        begun = self._event(device)
        norms = self._norms([one for kind in zip(*pairs, strict=True) for one in kind])
        if whole:
            norms += self._total(_gradients(optimizer), device)
        values = torch.stack(norms)
        if device.type != "cpu":
            pinned = torch.empty(len(norms), dtype=torch.float32, pin_memory=True)
            values = pinned.copy_(values, non_blocking=True)
        arrived, cost_s = self._event(device), time.thread_time() - began
        return _Sent(step, now, len(pairs), whole, values, cost_s, begun, arrived)

    def _receive(self) -> bool:
        """Take in what was sent; False while it has not arrived."""
        sent = self._sent
        if sent is None:
            return True
        cost_s = sent.cost_s
        if sent.arrived is not None:
            if not sent.arrived.query():
                return False
            cost_s = max(cost_s, sent.begun.elapsed_time(sent.arrived) / 1000)
        self._sent = None
        (self.norm if sent.whole else self.look).spent(sent.at, cost_s)
        self._judge(sent, sent.values.tolist())
        return True

    def _judge(self, sent: _Sent, values: Sequence[float]) -> None:
        printed = self._page.printed_step  # the same step in each attempt, where that is known
        step = sent.step if printed is None else max(1, printed)
        for gradient, parameter in zip(values, values[sent.few : 2 * sent.few], strict=False):
            if not math.isfinite(gradient) and not math.isfinite(parameter):
                self._page.broke(step, sent.at, Quantity.GRAD_NORM, gradient)
        for norm in values[2 * sent.few :]:
            self._page.grad_norm(norm)
            match self._numbers.step(step, sent.at, None, norm):
                case FirstBad(first, at, what, value):
                    self._page.broke(first, at, what, value)
                case Spike() as spike:
                    self._page.spiked(spike)
                case None:
                    pass

    def _pairs(self, optimizer: Any) -> list[tuple[Any, Any]]:
        """A few gradients, each with its parameter."""
        known = [one for refer in self._few if (one := refer()) is not None and _has_grad(one)]
        if not known:
            known = _smallest(optimizer)
            self._few = [weakref.ref(one) for one in known]
        return [(_part(_here(one.grad)), _part(_here(one))) for one in known]

    def _norms(self, tensors: Sequence[Any]) -> list[Any]:
        """Of each, on its device. In half precision it would overflow."""
        torch = self._torch
        half = all(one.dtype in (torch.float16, torch.bfloat16) for one in tensors)
        return list(torch._foreach_norm(tensors, 2, dtype=torch.float32 if half else None))

    def _total(self, tensors: Sequence[Any], device: object) -> list[Any]:
        """The norm of all together; nothing where they are on several devices."""
        kinds: dict[object, list[Any]] = {}
        for one in tensors:
            if one.device != device:
                return []
            kinds.setdefault(one.dtype, []).append(one)
        norms = [norm for alike in kinds.values() for norm in self._norms(alike)]
        return [self._torch.linalg.vector_norm(self._torch.stack(norms))]

    def _event(self, device: Any) -> Any:
        """One that the GPU comes to when all before it is done; None on the CPU."""
        if device.type == "cpu":
            return None
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(self._torch.cuda.current_stream(device))
        return event


def _nothing() -> None:
    """What a weak reference says whose object is gone."""


def _has_grad(parameter: Any) -> bool:
    return parameter.grad is not None


def _parameters(optimizer: Any) -> list[Any]:
    groups = optimizer.param_groups
    return [one for group in groups for one in group["params"] if _has_grad(one)]


def _gradients(optimizer: Any) -> list[Any]:
    return [_here(one.grad) for one in _parameters(optimizer)]


def _smallest(optimizer: Any) -> list[Any]:
    """Parameters that this rank has something of, on one device and of one kind."""
    able = (one for one in _parameters(optimizer) if one.device.type in DEVICES)
    sizes = ((_here(one).numel(), number, one) for number, one in enumerate(able))
    few = [one for *_, one in heapq.nsmallest(FEW, (size for size in sizes if size[0]))]
    return [one for one in few if (one.device, one.dtype) == (few[0].device, few[0].dtype)]


def _here(tensor: Any) -> Any:
    """What this rank has of a tensor that is sharded, and the values of a sparse one."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    return tensor._values() if tensor.is_sparse else tensor


def _part(tensor: Any) -> Any:
    """The last numbers of a large tensor."""
    while tensor.dim() > 1 and tensor.numel() > LARGE:
        tensor = tensor[-1]
    return tensor[-LARGE:] if tensor.numel() > LARGE else tensor
