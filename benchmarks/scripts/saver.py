"""One contestant of benchmarks/checkpoint.py: the state of a model with Adam, saved over and over.

    python saver.py CONTESTANT PARAMETERS ROUNDS FOLDER BATCH

Prints one JSON line per round: `floor_s`, a memcpy of all bytes into touched shared memory just
before; `stall_s`, what the save kept this thread waiting; `next_s`, the next five steps of training
with this many samples, and `before_s`, five such steps before the save; `durable_s`, from the call
until all bytes are committed on disk (null for what only goes to memory); `load_s`, reading it back
into the same tensors (null where the contestant was not asked), `load_ahead_s` the same where
checksums were taken before, as a worker does while its script builds the model. A contestant is a
function that yields a save.
"""

import importlib
import json
import mmap
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

WIDTH = 1024
NEXT_STEPS = 5


class Contestant(NamedTuple):
    """`save(step)` returns when training may go on. `settle()` waits until all is where it belongs
    and returns when that was (monotonic); a contestant without it has done everything by then."""

    save: Callable[[int], None]
    settle: Callable[[], float] | None
    durable: bool
    load: Callable[[], None] | None = None
    look_ahead: Callable[[], None] | None = None


class State(NamedTuple):
    """What is saved."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def tree(self) -> dict[str, Any]:
        """As torch.save would be given it."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[torch.Tensor]:
        """All of it."""
        moments = [v for s in self.optimizer.state.values() for v in s.values()]
        return [p.detach() for p in self.model.parameters()] + moments


def make_state(parameters: int) -> State:
    """A stack of linear layers with about this many parameters, and Adam's state for them."""
    layers = max(1, parameters // (WIDTH * WIDTH))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return State(model, optimizer)


def floor(state: State) -> Callable[[], None]:
    """A memcpy of the same bytes into shared memory that has been touched before."""
    sources = [_bytes(tensor) for tensor in state.tensors()]
    total = sum(source.size for source in sources)
    fd = os.memfd_create("floor")
    os.ftruncate(fd, total)
    target = torch.frombuffer(mmap.mmap(fd, total), dtype=torch.uint8).numpy()
    targets, at = [], 0
    for source in sources:
        targets.append(target[at : at + source.size])
        at += source.size

    def copy() -> None:
        for to, source in zip(targets, sources, strict=True):
            to[...] = source

    copy()
    return copy


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy()


# ── contestants ──


def memcpy(_state: State, _folder: Path) -> Contestant:
    """The floor, measured as a contestant."""
    return Contestant(lambda _: _MEMCPY[0](), None, durable=False)


_MEMCPY: list[Callable[[], None]] = []


def torch_save(state: State, folder: Path) -> Contestant:
    """torch.save, flushed to the disk. Like all others it keeps two and writes new files: what is
    overwritten has its memory in the page cache, which no history of checkpoints has."""

    def save(step: int) -> None:
        with (folder / f"{step}.pt").open("wb") as file:
            torch.save(state.tree(), file)
            file.flush()
            os.fsync(file.fileno())
        (folder / f"{step - 2}.pt").unlink(missing_ok=True)

    def load() -> None:
        newest = max(folder.glob("*.pt"), key=lambda path: int(path.stem))
        found = torch.load(newest, weights_only=True)
        state.model.load_state_dict(found["model"])
        state.optimizer.load_state_dict(found["optimizer"])

    return Contestant(save, None, durable=True, load=load)


def dcp_save(state: State, folder: Path) -> Contestant:
    """torch.distributed.checkpoint, synchronous."""
    import torch.distributed.checkpoint as dcp

    def save(step: int) -> None:
        place = folder / str(step % 2)
        shutil.rmtree(place, ignore_errors=True)
        dcp.save(_named(state), checkpoint_id=place)  # type: ignore[attr-defined]

    return Contestant(save, None, durable=True)


def dcp_async_thread(state: State, folder: Path) -> Contestant:
    """dcp.async_save as documented."""
    return _dcp_async(state, folder, "THREAD")


def dcp_async_process(state: State, folder: Path) -> Contestant:
    """dcp.async_save with a process of its own."""
    return _dcp_async(state, folder, "PROCESS")


def _dcp_async(state: State, folder: Path, kind: str) -> Contestant:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    pending: list[Any] = []
    ended: list[float] = []

    def save(step: int) -> None:
        place = folder / str(step % 2)
        shutil.rmtree(place, ignore_errors=True)
        saved = dcp.async_save(  # type: ignore[attr-defined]
            _named(state), checkpoint_id=place, async_checkpointer_type=AsyncCheckpointerType[kind]
        )
        future: Any = getattr(saved, "upload_completion", saved)
        future.add_done_callback(lambda _: ended.append(time.monotonic()))
        pending.append(future)

    def settle() -> float:
        pending.pop().result()
        while not ended:  # the callback may come after the result
            time.sleep(0.001)
        return ended.pop()

    return Contestant(save, settle, durable=True)


def _named(state: State) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(state.model, state.optimizer)
    return {"model": model, "optimizer": optimizer}


def dlrover(state: State, folder: Path) -> Contestant:
    """DLRover's flash checkpoint into shared memory, where it is installed."""
    flash = importlib.import_module("dlrover.trainer.torch.flash_checkpoint.ddp")

    saver = flash.DdpCheckpointer(str(folder))

    def save(step: int) -> None:
        path = str(folder / f"{step}.pt")
        saver.save_checkpoint(step, state.tree(), path=path, storage_type=flash.StorageType.MEMORY)

    return Contestant(save, None, durable=False)


def nvrx(state: State, folder: Path) -> Contestant:
    """NVIDIA's resiliency extension: torch.save in a forked process, where it is installed."""
    core = importlib.import_module("nvidia_resiliency_ext.checkpointing.async_ckpt.core")
    queue = core.AsyncCallsQueue(persistent=False)

    def save(step: int) -> None:
        path = folder / f"{step % 2}.pt"
        queue.schedule_async_request(core.AsyncRequest(torch.save, (state.tree(), path), [], {}))

    def settle() -> float:
        queue.maybe_finalize_async_calls(blocking=True)
        return time.monotonic()

    return Contestant(save, settle, durable=True)


def holdfast(state: State, folder: Path) -> Contestant:
    """A memory snapshot as it is by default: copied beside training, sealed by the storage process
    beside it."""
    return _holdfast(state, folder, beside=True, durable=False)


def holdfast_at_once(state: State, folder: Path) -> Contestant:
    """A memory snapshot for which training waits."""
    return _holdfast(state, folder, beside=False, durable=False)


def holdfast_durable(state: State, folder: Path) -> Contestant:
    """A memory snapshot that the storage process saves to a folder."""
    return _holdfast(state, folder, beside=True, durable=True)


def _holdfast(state: State, folder: Path, *, beside: bool, durable: bool) -> Contestant:
    from holdfast.agent.storage import protocol
    from holdfast.checkpoint.settings import CheckpointSettings, TierRule
    from holdfast.checkpoint.streams import background_copier
    from holdfast.checkpoint.tiers import SnapshotFlag, Tier
    from holdfast.train.cadence import Cadence
    from holdfast.train.layout import Ranks
    from holdfast.train.placement import Placement
    from holdfast.train.snapshots import Snapshotter, watch_optimizers
    from holdfast.train.tracked import Tracked
    from node import Node

    place = protocol.DurablePlace(tier=Tier.SHARED, where=str(folder), keep=2, max_bytes_per_s=None)
    node = Node(folder, (place,) if durable else ())
    settings = CheckpointSettings(shared=TierRule(every_s=1e9)) if durable else CheckpointSettings()
    objects = {"model": state.model, "optimizer": state.optimizer}

    def make() -> Snapshotter:
        cpu = torch.device("cpu")
        tracked = Tracked(objects, cpu, (), Ranks(0, 1, 1), None)
        alone = Placement(0, 0, 1, 1, 1, 0, distributed=False)
        background = background_copier(cpu, 1) if beside else None
        return Snapshotter(
            node.arena,
            node.storage_page,
            None,
            alone,
            tracked,
            Cadence(1, 1.0),
            settings,
            background,
        )

    snapshots = make()
    snapshots.restore()
    watch_optimizers(snapshots, [state.optimizer])

    def save(step: int) -> None:
        flags = snapshots.meet(step + 1, sys.maxsize)
        assert flags is not None, "one rank has nobody to wait for"
        snapshots.take(step + 1, SnapshotFlag.SHARED if durable else flags)

    def settle() -> float:
        node.committed()
        saved = node.storage_page.of_tier(Tier.SHARED)
        return saved.at + saved.seconds

    def load() -> None:
        make().restore()

    def look_ahead() -> None:
        node.arena.look_ahead(cores=len(os.sched_getaffinity(0)))
        while any(thread.name.startswith("verify") for thread in threading.enumerate()):
            time.sleep(0.01)

    if durable:
        return Contestant(save, settle, durable)
    return Contestant(save, None, durable, load, look_ahead)


# ── rounds ──


def rounds(make: Callable[[State, Path], Contestant], args: list[str]) -> Iterator[dict[str, Any]]:
    """Measure one contestant."""
    parameters, count, folder, batch = int(args[0]), int(args[1]), Path(args[2]), int(args[3])
    state = make_state(parameters)
    _MEMCPY.append(floor(state))
    contestant = make(state, folder)
    work = _training(state, batch)
    for step in range(count):
        before_s = sum(_timed(work) for _ in range(NEXT_STEPS))
        floor_s = _timed(_MEMCPY[0])
        began = time.monotonic()
        contestant.save(step)
        stall_s = time.monotonic() - began
        next_s = sum(_timed(work) for _ in range(NEXT_STEPS))
        durable_s = stall_s if contestant.durable else None
        if contestant.settle is not None:
            durable_s = contestant.settle() - began
        load_s = load_ahead_s = None
        if contestant.load is not None:
            load_s = _timed(contestant.load)
            if contestant.look_ahead is not None:
                contestant.look_ahead()
                load_ahead_s = _timed(contestant.load)
        yield {
            "floor_s": floor_s,
            "stall_s": stall_s,
            "before_s": before_s,
            "next_s": next_s,
            "durable_s": durable_s,
            "load_s": load_s,
            "load_ahead_s": load_ahead_s,
        }


def _training(state: State, batch: int) -> Callable[[], object]:
    """A step of training."""
    samples = torch.randn(batch, WIDTH)

    def step() -> None:
        state.optimizer.zero_grad(set_to_none=False)
        state.model(samples).square().mean().backward()
        state.optimizer.step()

    return step


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


CONTESTANTS = {
    made.__name__: made
    for made in (
        *(memcpy, torch_save, dcp_save, dcp_async_thread, dcp_async_process),
        *(dlrover, nvrx, holdfast, holdfast_at_once, holdfast_durable),
    )
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    for line in rounds(CONTESTANTS[sys.argv[1]], sys.argv[2:]):
        print(json.dumps(line), flush=True)
    sys.stdout.flush()
    os._exit(0)  # whatever a contestant has started ends with its process group
