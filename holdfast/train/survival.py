"""How a worker lives on when its attempt is broken: `recovery.mode: in_process`, or `auto` and a
script that declares `join(in_process=True)`. Where neither is so nothing here is used.

While the script is in its training loop, its groups (`surviving_group`) do not raise when a peer is
gone. The loop finds the attempt broken at the end of the step, parks (`parking`), and is given the
next attempt. Then this process has to do with the others what a new process does between `join()`
and its loop: make the same groups in the same order, and take part in the same collectives. So both
are written down while the script does them, with what this rank has given to them, and done again
from that record; what came of them is thrown away. Our own part (who has which snapshot) is not
repeated from a record but done anew.

That only works while new processes come to the loop by the same collectives, and it is refused
(`refuse`) wherever they might not: with other backends, with groups made before `join()` or within
the loop, after the first loop. What is refused is said once, and the process is replaced. A DDP
that the script makes would rearrange its buckets in its second step, which new processes repeat and
this one does not: it is made with the buckets of `run.parallelize()`.

With `recovery.mode: replicas` the next attempt may have another number of ranks. Then every group
has to be of all ranks, and nothing else may know how many these are (`stay`).
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel, distributed

from holdfast import flight_recorder, rank
from holdfast.train.parallel import SteadyBuckets
from holdfast.train.parking import ParkingPlace
from holdfast.train.surviving_group import BACKEND, AttemptBrokenError, GroupPlace, SurvivingGroup

RECORD_BYTES_MAX = 64 << 20  # of what a rank gave to collectives above its loop
TERMINATED = 128 + 15


class ScriptStage(Enum):
    """Where the script is."""

    SETUP = "setup"
    LOOP = "loop"
    OVER = "over"


class Survival:
    """Of this process. `_record` is what is to be done again by who survives."""

    def __init__(self, parking: ParkingPlace, *, moves: bool = False) -> None:
        """`moves`: it can take another rank, if the script can do with that."""
        self._parking = parking
        self._moves = moves
        self._stage = ScriptStage.SETUP
        self._error: Exception | None = None
        self._broken = False
        self._refusal = ""
        self._groups: list[SurvivingGroup] = []
        self._record: list[Callable[[], object]] = []
        self._record_bytes = 0
        self._again = False  # the record is being done again
        self._able = False  # the agent knows that it can be kept
        self._under_way: list[Any] = []  # of it
        self._store: Any = None
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        parking.on_order = lambda: self.break_up(None)

    # ── what groups ask ──

    @property
    def broken(self) -> bool:
        """Whether collectives are given up."""
        return self._broken

    @property
    def in_loop(self) -> bool:
        """Whether the script is in its training loop."""
        return self._stage is ScriptStage.LOOP

    @property
    def moves(self) -> bool:
        """Whether it can take another rank, for all that is known so far."""
        return self._moves

    def store(self) -> Any:
        """Ours, on the server of this attempt: that of PyTorch is replaced too late."""
        if self._store is None:
            environ = os.environ
            hosted = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            hosts = self._again and not hosted and environ["RANK"] == "0"
            address = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
            self._store = TCPStore(*address, is_master=hosts, wait_for_workers=False)
        return self._store

    def break_up(self, error: Exception | None) -> None:
        """The attempt is broken; whatever waits for a peer fails now."""
        with self._lock:
            if self._broken or self._stage is not ScriptStage.LOOP:
                return
            self._broken, self._error = True, error
        for group in self._groups:
            group.close_connections()

    def record(self, group: SurvivingGroup, name: str, given: Any, options: Any) -> None:
        """A collective of the script: what comes above its loop is to be done again."""
        if not group.private and _is_foreign(self._thread):
            self.refuse("a thread of the script takes part in collectives")
        if self._stage is not ScriptStage.SETUP or self._again or group.private or self._refusal:
            return
        if name not in RESIZED:
            self.stay(f"the script calls {name} above its loop")
        kept = _cloned(given)
        self._record_bytes += _bytes(kept)
        if self._record_bytes > RECORD_BYTES_MAX:
            self._record.clear()
            self.refuse(
                f"collectives above the loop were given more than {RECORD_BYTES_MAX >> 20} MiB"
            )
            return
        self._record.append(lambda: self._ask_again(group, name, kept, options))

    def _ask_again(self, group: SurvivingGroup, name: str, given: Any, options: Any) -> None:
        given = _cloned(given)
        if self._moves:
            given = RESIZED[name](given, group.size())
        self._under_way.append(group.ask(name, given, options))

    def add(self, group: SurvivingGroup) -> None:
        """A group was made."""
        if self._stage is not ScriptStage.SETUP:
            self.refuse("the script made a process group within its training loop or after it")
        if self._moves and group.size() != int(os.environ["WORLD_SIZE"]):
            self.stay("the script makes process groups of some ranks")
        self._groups.append(group)
        self._record.append(group.form)

    # ── what the run asks ──

    def again(self, act: Callable[[], object]) -> None:
        """Who survives does this at this place."""
        if not self._again:
            self._record.append(act)

    def unrecorded(self, act: Callable[[], object]) -> None:
        """Our own collectives on a group of the script: who survives has them in `again`."""
        before, self._again = self._again, True
        try:
            act()
        finally:
            self._again = before

    def refuse(self, why: str) -> None:
        """This process cannot be kept."""
        if not self._refusal:
            self._refusal = why
            rank.say(f"this worker is replaced when an attempt fails, not kept: {why}")
            self._parking.unable(why)

    def stay(self, why: str) -> None:
        """This process can be kept with the rank that it has, and no other."""
        if self._moves:
            self._moves = False
            rank.say(f"this worker is replaced when the number of ranks changes, not kept: {why}")

    def enter_loop(self, *, able: bool = True) -> None:
        """From here on the script need not hear of peers that are gone. `able`: there is a
        snapshot to go on from."""
        if self._stage is ScriptStage.SETUP:
            self._stage = ScriptStage.OVER if self._refusal else ScriptStage.LOOP
        elif self._stage is ScriptStage.OVER and not self._refusal:
            self.refuse("the first training loop of the script is over")
        if self._stage is ScriptStage.LOOP and able and not self._able:
            self._able = True
            self._parking.able(moves=self._moves)

    def leave_loop(self) -> None:
        """The loop is over, or was left."""
        if self._stage is ScriptStage.LOOP:
            self._stage = ScriptStage.OVER
            self._parking.unable()

    def require_whole(self) -> None:
        """Raise `AttemptBrokenError` if the attempt is broken."""
        if self._broken:
            raise AttemptBrokenError

    def await_next(self) -> None:
        """Park until there is a next attempt; the environment is that of it. Raises what a
        collective has failed with, where nobody ends the attempt because of it."""
        if not self._parking.await_order():
            self._stage = ScriptStage.OVER
            assert self._error is not None, "only a failure breaks it without an order"
            raise self._error
        self._parking.park(self._clear_up)
        self._able = False
        self._store, self._error, self._broken = None, None, False
        self._stage = ScriptStage.SETUP
        if self._moves:
            for group in self._groups:
                group.move(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

    def _clear_up(self) -> None:
        """Let go of what belongs to the attempt that is over."""
        for group in self._groups:
            group.drop()
        flight_recorder.forget()

    def do_again(self) -> None:
        """What a new process does between `join()` and its loop."""
        self._again = True
        for act in self._record:
            act()
        for work in self._under_way:
            work.wait()
        self._again = False
        self._under_way.clear()

    def end_if_over(self) -> None:
        """The script has raised. If that was in a step that was given up, it says nothing: end as
        one that was told to, once it was."""
        if self._broken and self._stage is not ScriptStage.SETUP and self._parking.await_order():
            traceback.print_exc()
            print("holdfast: raised in a step that was discarded: a peer was lost", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(TERMINATED)


_ours: list[Survival] = []


def of_this_process() -> Survival | None:
    """None where workers are replaced."""
    return _ours[0] if _ours else None


def install(parking: ParkingPlace, device: torch.device, *, moves: bool = False) -> Survival:
    """From here on every gloo group of this process can outlive its attempt, if it computes on the
    CPU; `moves`: also if the next one has another number of ranks."""
    found = Survival(parking, moves=moves)
    _ours.append(found)
    if device.type != "cpu":
        found.refuse(f"it computes on {device.type}; only CPU collectives can be aborted")
        return found
    if dist.is_initialized():
        found.refuse("the script made its process group above join()")
        return found
    rank.on_exception.append(found.end_if_over)
    _make_groups_with(found)
    _watch_ddp(found)
    _watch_hooks(found)
    if moves:
        _watch_meshes(found)
    return found


def _make_groups_with(survival: Survival) -> None:
    c10d: Any = dist.distributed_c10d
    plain, world = c10d._new_process_group_helper, c10d._world

    def create(options: Any, _: Any) -> SurvivingGroup:
        members = options.global_ranks_in_group or range(options.group_size)
        place = GroupPlace(options.group_rank, options.group_size, options.timeout)
        group = SurvivingGroup(survival, options.group_id, members, place)
        survival.add(group)
        return group

    def made(size: int, at: int, ranks: Any, backend: Any, *given: Any, **options: Any) -> Any:
        name = str(backend)
        if name not in ("gloo", "cpu:gloo"):
            survival.refuse(f"a process group of the script uses {name}, not gloo")
            return plain(size, at, ranks, backend, *given, **options)
        group, store = plain(size, at, ranks, BACKEND, *given, **options)
        if isinstance(group, SurvivingGroup):
            world.pg_map[group] = (dist.Backend("gloo"), store)
            world.pg_backend_config[group] = str(c10d.BackendConfig(dist.Backend("gloo")))
        return group, store

    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu"])
    c10d._new_process_group_helper = made


def _watch_ddp(survival: Survival) -> None:
    """One that keeps its buckets as they are makes the same collectives in each of its steps. What
    it sends to make all ranks the same is restored afterwards: it need not be kept."""
    made_by: Any = distributed
    plain, send = DistributedDataParallel.__init__, made_by._sync_module_states

    def watched(self: Any, *given: Any, **options: Any) -> None:
        """The first step sends buffers, whether the last turn was in `no_sync()` or not."""
        own = type(self) is DistributedDataParallel
        if own:
            self.__class__ = SteadyBuckets
        plain(self, *given, **options)
        if own:
            self.settle()
        survival.again(lambda: setattr(self, "require_forward_param_sync", True))

    def sent(*given: Any, **options: Any) -> None:
        survival.unrecorded(lambda: send(*given, **options))
        survival.again(lambda: send(*given, **options))

    DistributedDataParallel.__init__ = watched  # type: ignore[method-assign]
    made_by._sync_module_states = sent


def _is_foreign(trains: int) -> bool:
    """Whether this is a thread that the script has begun, and not the one that `trains`: nobody
    knows how far it is when the attempt breaks, or how far that of a new process. Those of PyTorch,
    which carry out what the other one does, are not begun in Python."""
    here = threading.get_ident()
    return here != trains and any(
        one.ident == here and not isinstance(one, threading._DummyThread)
        for one in threading.enumerate()
    )


def _watch_hooks(survival: Survival) -> None:
    """The state of a hook counts steps, or keeps what they have rounded away; nobody restores it.
    With a static graph DDP counts its own steps: the first is made with other collectives."""
    made_by: Any = DistributedDataParallel
    plain, fixed = made_by.register_comm_hook, made_by._set_static_graph

    def static(self: Any) -> None:
        survival.refuse("DDP with static_graph makes its first step otherwise than later ones")
        fixed(self)

    def watched(self: Any, state: Any, hook: Any) -> None:
        if not (state is None or isinstance(state, dist.ProcessGroup)):
            kind = type(state).__name__
            survival.refuse(f"a communication hook of DDP has a state of its own ({kind})")
        plain(self, state, hook)

    made_by.register_comm_hook, made_by._set_static_graph = watched, static


def _watch_meshes(survival: Survival) -> None:
    """Their shape is of the ranks that there are."""
    plain = DeviceMesh.__init__

    def watched(self: Any, *given: Any, **options: Any) -> None:
        survival.stay("the script makes a DeviceMesh")
        plain(self, *given, **options)

    DeviceMesh.__init__ = watched  # type: ignore[method-assign]


def _as_they_are(given: Any, _size: int) -> Any:
    return given


def _one_for_each(given: Any, size: int) -> Any:
    """Of `allgather`: as many outputs as there are ranks."""
    _, inputs, *rest = given
    outputs = [[torch.empty_like(one) for _ in range(size)] for one in inputs]
    return (outputs, inputs, *rest)


RESIZED: dict[str, Callable[[Any, int], Any]] = {
    **dict.fromkeys(("allreduce", "allreduce_coalesced", "broadcast", "barrier"), _as_they_are),
    "allgather": _one_for_each,
}
"""What a rank gives to collectives that are done again by another number of ranks."""


def _cloned(given: Any) -> Any:
    match given:
        case torch.Tensor():
            return given.detach().clone()
        case list() | tuple():
            return type(given)(_cloned(one) for one in given)
        case _:
            return given


def _bytes(given: Any) -> int:
    match given:
        case torch.Tensor():
            return given.nbytes
        case list() | tuple():
            return sum(map(_bytes, given))
        case _:
            return 0
