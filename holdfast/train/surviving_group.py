"""A process group of PyTorch that outlives the attempt in which it was made.

It wraps gloo. Inside of the training loop a collective that fails because a peer is gone does not
raise into the script: the attempt counts as broken (`survival`), the collective as finished, and so
does everything that is asked for later in this step. At the end of the step the loop sees it. The
next attempt gives the same object a new gloo group (`form`), because DDP's reducer and the meshes
of FSDP2 hold references to it.

What a collective that was given up leaves in its tensors is garbage, and is never kept. Ranks
whose values are missing are taken to have said what this one has, so that a script which looks at
them in the same step finds no random memory.
"""

import ctypes
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

from holdfast.train import pairs
from holdfast.train.surviving_work import SurvivingWork, UnderWay, WorkOutcome

BACKEND = "holdfast"
TRANSPORT = "gloo/transport"  # in the text of what fails because of a peer or the network
CPU = torch.device("cpu")
OPERATIONS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier"),
    *("allgather", "allgather_coalesced", "_allgather_base", "allgather_into_tensor_coalesced"),
    *("all_gather_single", "all_gather_single_coalesced", "gather", "scatter"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("alltoall", "alltoall_base", "all_to_all_single", "send", "recv", "recv_anysource"),
)
_GATHERS = frozenset(("_allgather_base", "all_gather_single"))
_SCATTERS = frozenset(("_reduce_scatter_base", "reduce_scatter_single"))
_COALESCED = {
    "allgather_into_tensor_coalesced": "_allgather_base",
    "all_gather_single_coalesced": "_allgather_base",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "_reduce_scatter_base",
}


_made: list[object] = []  # none may go with the last word of an operation, in a thread of gloo's


class AttemptBrokenError(Exception):
    """A collective of ours was given up. Never reaches the script."""


class Keeper(Protocol):
    """Who knows how the attempt is."""

    @property
    def broken(self) -> bool:
        """Whether collectives are given up."""

    @property
    def in_loop(self) -> bool:
        """Whether the script is in its training loop."""

    def store(self) -> Any:
        """The rendezvous store of the attempt."""

    def break_up(self, error: Exception) -> None:
        """A peer is gone."""

    def record(self, group: "SurvivingGroup", name: str, given: Any, options: Any) -> None:
        """This is being asked for."""


class GroupPlace(NamedTuple):
    """Of this rank in a group."""

    rank: int
    size: int
    timeout: timedelta


class SurvivingGroup(dist.ProcessGroup):
    """One group; `private` ones are ours alone, and tell us by an exception."""

    def __init__(
        self, keeper: Keeper, name: str, members: Sequence[int], place: GroupPlace
    ) -> None:
        super().__init__(place.rank, place.size)  # type: ignore[call-arg]
        self.private = False
        self._keeper, self._name, self._place = keeper, name, place
        self._members: Sequence[int] = members
        _made.append(self)
        self._connections: pairs.Connections = {}
        self._under_way = UnderWay()
        self._inner: Any = None
        self.form()

    def form(self) -> None:
        """Meet the other members on the store of this attempt. Raises what gloo raises."""
        self.drop()
        place = self._place
        store = PrefixStore(f"surviving/{self._name}/", self._keeper.store())
        before = pairs.sockets()
        gloo = ProcessGroupGloo(store, place.rank, place.size, timeout=place.timeout)
        self._connections = pairs.since(before)
        gloo.options.global_ranks_in_group = list(self._members)
        gloo.options.group_name = cast("Any", self._name)
        gloo._set_sequence_number_for_group()
        inner = dist.ProcessGroup(store, place.rank, place.size)
        kind = dist.ProcessGroup.BackendType.GLOO
        inner._set_default_backend(kind)
        inner._register_backend(CPU, kind, gloo)
        inner._set_group_name(cast("Any", self._name))
        self._inner = inner

    def drop(self) -> None:
        """Take the gloo group of the last attempt apart, in no thread of its own, and unless that
        would wait for one that does not come back; it is done by `form` where it was not before.
        """
        self._under_way.settle()
        if self._under_way.stuck:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._inner))
        self._inner, self._under_way = None, UnderWay()

    def move(self, rank: int, size: int) -> None:
        """From the next attempt on it is of so many ranks: of all that there are."""
        self._members, self._place = range(size), self._place._replace(rank=rank, size=size)
        dist.distributed_c10d._world.pg_group_ranks[self] = {one: one for one in range(size)}

    def close_connections(self) -> None:
        """Whatever waits for a peer fails now, here and there."""
        pairs.close(self._connections)
        gone = RuntimeError(f"{TRANSPORT}: the connection was closed, and gloo waits on")
        self._under_way.forsake(partial(pairs.are_open, self._connections), gone)

    def ask(self, name: str, given: Any, options: Any) -> Any:
        """Begin this operation of gloo's; what it returns."""
        return getattr(self._inner, name)(*given, **options)

    def begin(self, name: str, given: Any, options: Any) -> Any:
        """Begin this operation, or count it as finished. Raises what gloo raises where the attempt
        is whole, and `AttemptBrokenError` in a private group."""
        if self._keeper.broken and self._keeper.in_loop:
            return self._given_up(name, given)
        self._keeper.record(self, name, given, options)
        try:
            work = self.ask(name, given, options)
        except RuntimeError as error:
            self.failed(error)
            return self._given_up(name, given)
        outcome = WorkOutcome(work, lambda error: self._conclude(name, given, error))
        self._under_way.add(outcome)
        return SurvivingWork(given, self._under_way, outcome)

    def _conclude(self, name: str, given: Any, error: RuntimeError | None) -> None:
        if error is not None:
            self.failed(error)
            _fill(self._place, name, given, private=self.private)

    def failed(self, error: RuntimeError) -> None:
        """An operation has: returns if it is to count as finished."""
        if not (self._keeper.broken or TRANSPORT in str(error)):
            raise error
        self._keeper.break_up(error)
        if not self._keeper.in_loop:
            raise error

    def _given_up(self, name: str, given: Any) -> SurvivingWork:
        _fill(self._place, name, given, private=self.private)
        return SurvivingWork(given, self._under_way, None)

    # ── what PyTorch asks a group ──

    def rank(self) -> int:
        """Of this process."""
        return self._place.rank

    def size(self) -> int:
        """Of this attempt."""
        return self._place.size

    getRank, getSize = rank, size  # noqa: N815  (the names under which C++ asks)

    def getBackendName(self) -> str:  # noqa: N802
        """Of this class: what DDP takes for gloo it asks for options of gloo's."""
        return BACKEND

    def getGroupName(self) -> str:  # noqa: N802
        """As PyTorch counts them."""
        return self._name

    def _get_backend(self, device: Any) -> Any:
        return self._inner._get_backend(device)

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU]

    def _get_sequence_number_for_group(self) -> int:
        number: int = self._inner._get_sequence_number_for_group()
        return number

    def monitored_barrier(self, *given: Any, **options: Any) -> None:
        """Not given up: it is there to raise."""
        self._inner.monitored_barrier(*given, **options)

    def set_timeout(self, timeout: timedelta) -> None:
        """Of this attempt's collectives and those of the next."""
        self._place = self._place._replace(timeout=timeout)
        self._inner._get_backend(CPU)._set_default_timeout(timeout)

    abort = close_connections

    def shutdown(self) -> None:
        """It is not used any more."""
        self._inner.shutdown()


def _fill(place: GroupPlace, name: str, given: Any, *, private: bool) -> None:
    """What was to come of the others is what this rank has said itself."""
    if private:
        raise AttemptBrokenError
    with torch.no_grad():
        match name, given:
            case name, (torch.Tensor() as out, torch.Tensor() as own, *_) if name in _GATHERS:
                out.view(place.size, -1).copy_(own.reshape(1, -1).expand(place.size, -1))
            case name, (torch.Tensor() as out, torch.Tensor() as own, *_) if name in _SCATTERS:
                out.view(-1).copy_(own.reshape(place.size, -1)[place.rank])
            case "allgather", ([[*outs], *_], [torch.Tensor() as own, *_], *_):
                for out in outs:
                    out.copy_(own.view_as(out))
            case name, ([*outs], [*owns], *_) if name in _COALESCED:
                for pair in zip(outs, owns, strict=True):
                    _fill(place, _COALESCED[name], pair, private=private)
            case _:
                pass


def _operation(name: str) -> Callable[..., Any]:
    def begin(self: SurvivingGroup, *given: Any, **options: Any) -> Any:
        return self.begin(name, given, options)

    return begin


for _name in (name for name in OPERATIONS if hasattr(dist.ProcessGroup, name)):
    setattr(SurvivingGroup, _name, _operation(_name))
