"""One contestant of benchmarks/checkpoint.py: the state of a model with Adam, saved over and over.

    python saver.py CONTESTANT PARAMETERS ROUNDS FOLDER STEP_S

Prints one JSON line per round: `floor_s`, a memcpy of all bytes into touched shared memory just
before; `stall_s`, what the save kept this thread waiting; `next_s`, the next five steps of work,
and `before_s`, five such steps before the save; `durable_s`, from the call until all bytes are
committed on disk (null for what only goes to memory); `load_s`, reading it back into the same
tensors (null where the contestant was not asked). A contestant is a function that yields a save.
"""

import importlib
import json
import mmap
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

WIDTH = 1024
NEXT_STEPS = 5


class Contestant(NamedTuple):
    """`save(step)` returns when training may go on, `settle()` when all is where it belongs; a
    contestant without it has done everything by then."""

    save: Callable[[int], None]
    settle: Callable[[], None] | None
    durable: bool
    load: Callable[[], None] | None = None


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
    optimizer = torch.optim.Adam(model.parameters())
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
    """torch.save, flushed to the disk."""

    def save(step: int) -> None:
        with (folder / f"{step % 2}.pt").open("wb") as file:
            torch.save(state.tree(), file)
            file.flush()
            os.fsync(file.fileno())

    def load() -> None:
        found = torch.load(folder / "0.pt", weights_only=True)
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

    def save(step: int) -> None:
        place = folder / str(step % 2)
        shutil.rmtree(place, ignore_errors=True)
        saved = dcp.async_save(  # type: ignore[attr-defined]
            _named(state), checkpoint_id=place, async_checkpointer_type=AsyncCheckpointerType[kind]
        )
        pending.append(saved)

    def settle() -> None:
        found = pending.pop()
        getattr(found, "upload_completion", found).result()

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

    return Contestant(save, lambda: queue.maybe_finalize_async_calls(blocking=True), durable=True)


def holdfast(state: State, folder: Path) -> Contestant:
    """A memory snapshot, sealed by the storage process beside it."""
    return _holdfast(state, folder, durable=False)


def holdfast_durable(state: State, folder: Path) -> Contestant:
    """A memory snapshot that the storage process saves to a folder."""
    return _holdfast(state, folder, durable=True)


def _holdfast(state: State, folder: Path, *, durable: bool) -> Contestant:
    from holdfast.agent.storage import words
    from holdfast.checkpoint.board import Flag, Tier
    from holdfast.checkpoint.settings import Rule, Settings
    from holdfast.train.cadence import Cadence
    from holdfast.train.layout import Ranks
    from holdfast.train.placement import Placement
    from holdfast.train.snapshots import Snapshots
    from holdfast.train.tracked import Tracked
    from node import Node

    place = words.Place(tier=Tier.SHARED, where=str(folder), keep=2, max_bytes_per_s=None)
    node = Node(folder, (place,) if durable else ())
    settings = Settings(shared=Rule(every_s=1e9)) if durable else Settings()
    objects = {"model": state.model, "optimizer": state.optimizer}

    def make() -> Snapshots:
        tracked = Tracked(objects, torch.device("cpu"), (), Ranks(0, 1, 1), None)
        alone = Placement(0, 0, 1, 1, 1, 0, distributed=False)
        return Snapshots(node.arena, node.board, None, alone, tracked, Cadence(1, 1.0), settings)

    snapshots = make()
    snapshots.restore()

    def save(step: int) -> None:
        flags = snapshots.meet(step + 1, sys.maxsize)
        assert flags is not None, "one rank has nobody to wait for"
        snapshots.take(step + 1, Flag.SHARED if durable else flags)

    def settle() -> None:
        node.committed()

    def load() -> None:
        make().restore()

    return Contestant(save, settle if durable else None, durable, None if durable else load)


# ── rounds ──


def rounds(make: Callable[[State, Path], Contestant], args: list[str]) -> Iterator[dict[str, Any]]:
    """Measure one contestant."""
    parameters, count, folder, step_s = int(args[0]), int(args[1]), Path(args[2]), float(args[3])
    state = make_state(parameters)
    _MEMCPY.append(floor(state))
    contestant = make(state, folder)
    work = _work(step_s)
    for step in range(count):
        before_s = sum(_timed(work) for _ in range(NEXT_STEPS))
        floor_s = _timed(_MEMCPY[0])
        began = time.perf_counter()
        contestant.save(step)
        stall_s = time.perf_counter() - began
        next_s = sum(_timed(work) for _ in range(NEXT_STEPS))
        durable_s = stall_s if contestant.durable else None
        if contestant.settle is not None:
            contestant.settle()
            durable_s = time.perf_counter() - began
        load_s = _timed(contestant.load) if contestant.load is not None else None
        yield {
            "floor_s": floor_s,
            "stall_s": stall_s,
            "before_s": before_s,
            "next_s": next_s,
            "durable_s": durable_s,
            "load_s": load_s,
        }


def _work(step_s: float) -> Callable[[], object]:
    """A step's worth of arithmetic that lives in the caches, so that only time counts."""
    small = torch.randn(256, 256)
    began = time.perf_counter()
    for _ in range(50):
        small @ small
    each = (time.perf_counter() - began) / 50
    repeats = max(1, round(step_s / each))

    def work() -> None:
        for _ in range(repeats):
            small @ small

    return work


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


CONTESTANTS = {
    made.__name__: made
    for made in (
        *(memcpy, torch_save, dcp_save, dcp_async_thread, dcp_async_process),
        *(dlrover, nvrx, holdfast, holdfast_durable),
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
