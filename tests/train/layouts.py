"""Models in all layouts, with state whose every bit is known, and processes to run them in.

The truth is a function of the name: what a parameter and its Adam moments hold as whole tensors.
PyTorch's own `distribute_tensor` says what of it belongs on a rank, so nothing of ours is believed.
"""

import hashlib
import io
import logging
import multiprocessing
import multiprocessing.connection
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from holdfast.checkpoint import save
from holdfast.checkpoint.arena import Arena, StatePart
from holdfast.checkpoint.dcp import HoldfastReader
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.manifest import Lineage, ParentSnapshot
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.checkpoint.tiers import Tier
from holdfast.errors import Error
from holdfast.train.cadence import Cadence
from holdfast.train.exchange import Exchange
from holdfast.train.layout import Ranks
from holdfast.train.placement import Placement
from holdfast.train.restore import bring_in
from holdfast.train.snapshots import Snapshotter
from holdfast.train.tracked import Tracked
from tests.patience import PATIENCE_S
from tests.train.forks import FORKS

WORLDS = {
    "single": 1,
    "fsdp1": 1,
    "ddp2": 2,
    "ddp3": 3,
    "fsdp2": 2,
    "fsdp3": 3,
    "fsdp4": 4,
    "hsdp": 4,
    "tp2": 2,
    "fsdp_tp": 4,
    "pp2": 2,
    "pp_fsdp": 4,
    "plain2": 2,
}
SHARDABLE = [layout for layout in WORLDS if layout != "plain2"]


class Net(nn.Module):
    """Sizes that do not divide evenly, a buffer, and layers that can be left to other ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 10)
        self.down = nn.Linear(10, 6)
        self.norm = nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.zeros(1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Never called: state is all that counts here."""
        raise NotImplementedError


class Drawn:
    """State that is its rank's own."""

    def __init__(self, rank: int) -> None:
        self.words: list[Any] = [rank, torch.full((3,), float(rank))]

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {"words": self.words}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All of it."""
        self.words = state["words"]


class Built(NamedTuple):
    """One layout, ready to be tracked."""

    model: Any
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    drawn: Drawn


# ── layouts ──


def build(layout: str, rank: int) -> Built:
    """The model in this layout on this rank, its values arbitrary, Adam without state."""
    torch.manual_seed(rank + len(layout))
    model: Any = Net()
    match layout.rstrip("1234"):
        case "ddp":
            model = DistributedDataParallel(model)
        case "fsdp":
            fully_shard(model.up, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
            fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        case "hsdp":
            fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s")))
        case "tp":
            _tensor_parallel(model, init_device_mesh("cpu", (2,)))
        case "fsdp_tp":
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            _tensor_parallel(model, mesh["tp"])
            fully_shard(model, mesh=mesh["dp"])
        case "pp":
            _leave_to_others(model, rank)
        case "pp_fsdp":
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
            _leave_to_others(model, rank // 2)
            fully_shard(model, mesh=mesh["dp"])
    named = list(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for n, p in named if "bias" not in n]},
        {"params": [p for n, p in named if "bias" in n], "lr": 0.5},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.25)
    return Built(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3), Drawn(rank))


def _tensor_parallel(model: Net, mesh: Any) -> None:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh, plan)


def _leave_to_others(model: Any, stage: int) -> None:
    for name in ("down", "norm", "scale") if stage == 0 else ("up",):
        delattr(model, name)


def parameters(model: Any) -> dict[str, torch.Tensor]:
    """By their names in the plain model."""
    return {name.removeprefix("module."): p for name, p in model.named_parameters()}


def truth(name: str, what: str) -> torch.Tensor:
    """What a parameter or one of its moments holds."""
    shape = dict(Net().named_parameters())[name].shape
    seed = int.from_bytes(hashlib.sha256(f"{name} {what}".encode()).digest()[:6], "big")
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def belongs_here(whole: torch.Tensor, like: Any) -> Any:
    """What of a whole tensor a rank has to hold where it has this parameter."""
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def fill(built: Built) -> None:
    """Give the layout the true state of step 7."""
    for parameter in parameters(built.model).values():
        parameter.grad = torch.zeros_like(parameter)
    built.optimizer.step()
    built.schedule.step()
    with torch.no_grad():
        for name, parameter in parameters(built.model).items():
            parameter.copy_(belongs_here(truth(name, "value"), parameter))
            state = built.optimizer.state[parameter]
            state["step"].fill_(7.0)
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment].copy_(belongs_here(truth(name, moment), parameter))
    (built.model.module if hasattr(built.model, "module") else built.model).seen.fill_(7)


def differences(built: Built, old_world: int) -> list[str]:
    """Whatever is not, bit for bit, what it has to be."""
    wrong = []
    for name, parameter in parameters(built.model).items():
        state: Any = built.optimizer.state.get(parameter, {})
        held = {"value": parameter, **{m: state.get(m) for m in ("exp_avg", "exp_avg_sq")}}
        for what, tensor in held.items():
            if not _same(tensor, belongs_here(truth(name, what), parameter)):
                wrong.append(f"{name} {what}: {tensor}")
        if state.get("step") != 7.0:
            wrong.append(f"{name}: step {state.get('step')}")
    if [g["lr"] for g in built.optimizer.param_groups] != [0.25, 0.5]:
        wrong.append("groups")
    if built.schedule.last_epoch != 1:
        wrong.append("schedule")
    if (built.model.module if hasattr(built.model, "module") else built.model).seen != 7:
        wrong.append("buffer")
    first = dist.get_rank() % old_world
    if built.drawn.words[0] != first or (built.drawn.words[1] != first).any():
        wrong.append(f"own state is {built.drawn.words}")
    return wrong


def _same(tensor: Any, expected: Any) -> bool:
    if tensor is None or type(tensor) not in (type(expected), nn.Parameter):
        return False
    if isinstance(tensor, DTensor):
        if tensor.placements != expected.placements or tensor.shape != expected.shape:
            return False
        tensor, expected = tensor.to_local(), expected.to_local()
    return torch.equal(tensor, expected)


# ── what the processes do ──


class Rank:
    """One process, which plays a rank of one world after the other."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.arenas: dict[str, Arena] = {}
        self._words = io.StringIO()
        logging.getLogger("holdfast").addHandler(logging.StreamHandler(self._words))

    def meet(self, rank: int, world: int, number: int, port: int) -> None:
        """Be this rank of a world from now on."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = TCPStore("127.0.0.1", port, is_master=False)
        prefixed = PrefixStore(str(number), store)
        dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=world)
        self.rank, self.world, self.local = rank, world, 1

    def share(self, local: int) -> None:
        """Be one of so many ranks on each node, in this world."""
        self.local = local

    def words(self) -> str:
        """What has been logged since this was last asked."""
        said = self._words.getvalue()
        self._words.truncate(0)
        return said

    def part(self) -> None:
        """Leave the world."""
        dist.destroy_process_group()

    def save(self, layout: str, step: int, name: str, tiers: list[str]) -> None:
        """Fill this layout with the truth and save it to memory and, as `name`, to these tiers."""
        built = build(layout, self.rank)
        fill(built)
        self.arenas.setdefault(name, Arena(Arena.create()))
        self._snapshot(built, name, step)
        for tier in tiers:
            self._store(name, Key(step, step), tier)

    def load(
        self, layout: str, env: dict[str, str], arena: str, old_world: int, attempt: int = 1000
    ) -> Any:
        """What differs from the truth after a restore, and where it came from; or why not."""
        built = build(layout, self.rank)
        exchange = self._exchange()
        tracked = self._tracked(built, exchange)
        places = {
            key: value.format(node=self.rank // self.local, next=(self.rank + 1) % self.world)
            for key, value in env.items()
        }
        held = self.arenas.get(arena) or Arena(Arena.create())
        try:
            ranks = Ranks(self.rank, self.world, self.local)
            found = bring_in(held, exchange, ranks, tracked, attempt, places)
        except Error as error:
            return error.slug
        if found is None:
            return None
        tracked.load(found.shared, found.private)
        tracked.load_random(found.private)
        return differences(built, old_world), found.where.name, found.key.step

    def load_by_dcp(self, layout: str, name: str) -> list[str]:
        """What of model and optimizer differs after `dcp.load` has read a checkpoint of ours."""
        built = build(layout, self.rank)
        parts = get_state_dict(built.model, built.optimizer)
        state: dict[str, Any] = dict(zip(("model", "optimizer"), parts, strict=True))
        dcp_load(state, storage_reader=HoldfastReader(str(self.folder / f"{name}-shared")))
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(
            built.model, built.optimizer, model_state_dict=model, optim_state_dict=optimizer
        )
        other = ("schedule", "own state")  # was not asked for
        return [text for text in differences(built, self.world) if not text.startswith(other)]

    def flat(self) -> str:
        """What comes of tracking a model that the first version of FSDP has flattened."""
        model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))
        try:
            ranks = Ranks(self.rank, self.world, self.local)
            Tracked({"model": model}, torch.device("cpu"), [], ranks, None)
        except Error as error:
            return error.slug
        return ""

    def begin(self, name: str, attempt: int, parent: int) -> None:
        """Say that an attempt went on from this step."""
        store = open_store(str(self.folder / f"{name}-shared"))
        save.begin(store, Lineage(attempt=attempt, parent=ParentSnapshot(attempt - 1, parent)))

    def damage(self, arena: str, part: str, *ranks: int) -> None:
        """Flip a byte in memory, on these ranks."""
        cells = self.arenas[arena].cells(StatePart[part]) if self.rank in ranks else ()
        for cell in cells:
            header = cell.header()
            if header is not None:
                cell.reserve(header.payload_bytes, touch=False)
                cell.payload[header.payload_bytes // 2] ^= 4

    # ── parts ──

    def _exchange(self) -> Exchange | None:
        group: Any = dist.new_group(backend="gloo")
        return Exchange(self._placement(1), group) if self.world > 1 else None

    def _placement(self, attempt: int) -> Placement:
        return Placement(
            self.rank, self.rank % self.local, self.world, self.local, attempt, 0, True
        )

    def _tracked(self, built: Built, exchange: Exchange | None) -> Tracked:
        objects = {
            "model": built.model,
            "optimizer": built.optimizer,
            "scheduler": built.schedule,
            "drawn": built.drawn,
        }
        gather = exchange.gather_bytes if exchange else None
        ranks = Ranks(self.rank, self.world, self.local)
        return Tracked(objects, torch.device("cpu"), [], ranks, gather)

    def _snapshot(self, built: Built, name: str, step: int) -> None:
        exchange = self._exchange()
        tracked = self._tracked(built, exchange)
        where = self.arenas[name], None, exchange, self._placement(step)
        snapshots = Snapshotter(*where, tracked, Cadence(1, 1.0), CheckpointSettings())
        snapshots.take(step)
        snapshots.finish()

    def _store(self, name: str, key: Key, tier: str) -> None:
        node = f"-{self.rank // self.local}" if tier == "local" else ""
        store = open_store(str(self.folder / f"{name}-{tier}{node}"))
        cells = {
            p: c
            for p in (StatePart.SHARED, StatePart.PRIVATE)
            if (c := self.arenas[name].find(p, key))
        }
        parent = ParentSnapshot(key.attempt - 1, key.step - 1)
        save.begin(store, Lineage(attempt=key.attempt, parent=parent))
        where = Tier.LOCAL if tier == "local" else Tier.SHARED
        save.save_rank(store, cells, job="job", tier=where)
        dist.barrier()
        if tier == "local" and self.rank % self.local == 0:
            here = range(self.rank, self.rank + self.local)
            save.commit(store, key, ranks=list(here), now=1.0)
        if tier == "shared" and self.rank == 0:
            save.commit(store, key, ranks=list(range(self.world)), now=1.0)
        dist.barrier()


def serve(pipe: Any, folder: str) -> None:
    """Do what is said until told to stop."""
    torch.set_num_threads(1)
    rank = Rank(folder)
    for name, arguments in iter(pipe.recv, None):
        try:
            answer = getattr(rank, name)(*arguments)
        except BaseException as error:
            answer = Failure(getattr(error, "slug", type(error).__name__), traceback.format_exc())
        pipe.send(answer)


class Failure(NamedTuple):
    """What a process raised."""

    slug: str
    story: str


class Fleet:
    """Four processes that are used again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        self._number = 0
        self._pipes: list[Any] = []
        self._processes = []
        for _ in range(4):
            here, there = FORKS.Pipe()
            process = FORKS.Process(target=serve, args=(there, str(folder)), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def world(self, size: int, *steps: tuple[Any, ...]) -> list[list[Any]]:
        """Each of the first `size` processes does these steps as a rank; the answers by step."""
        self._number += 1
        meet = [("meet", rank, size, self._number, self._store.port) for rank in range(size)]
        answers = [self._all(size, lambda rank: meet[rank])]
        answers += [self._all(size, lambda _, step=step: step) for step in steps]  # type: ignore[misc]
        self._all(size, lambda _: ("part",))
        return answers[1:]

    def _all(self, size: int, step: Callable[[int], tuple[Any, ...]]) -> list[Any]:
        for rank in range(size):
            name, *arguments = step(rank)
            self._pipes[rank].send((name, arguments))
        return self._answers(size)

    def _answers(self, size: int) -> list[Any]:
        """What each says; a failure at once, because the others may wait for that one for ever."""
        answers: dict[int, Any] = {}
        numbers = {pipe: rank for rank, pipe in enumerate(self._pipes[:size])}
        while len(answers) < size:
            missing = [pipe for pipe, rank in numbers.items() if rank not in answers]
            ready = multiprocessing.connection.wait(missing, PATIENCE_S)
            assert ready, "ranks hang"
            for pipe in ready:
                answers[numbers[pipe]] = cast("Any", pipe).recv()
            for answer in answers.values():
                assert not isinstance(answer, Failure), answer.story
        return [answers[rank] for rank in range(size)]

    def close(self) -> None:
        """Let the processes end."""
        for process in self._processes:
            process.kill()
            process.join()
