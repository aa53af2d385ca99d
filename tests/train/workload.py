"""A small but complete training script for the tests, with a fault where a test wants one.

Everything that must be restored takes part: dropout (random numbers), batch norm (buffers), AdamW
and a schedule, a shuffled loader. Each rank appends its losses, bit for bit, to its own file.
`FAULT=rank:attempt:place[:number]` makes one rank kill itself with SIGKILL at that place.
"""

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from holdfast.checkpoint import streams, tensors
from holdfast.checkpoint.arena import Arena, CellHeader, StatePart
from holdfast.checkpoint.streams import Copy
from holdfast.train import Run, attempt_parts, gradients, join, loader

STEPS = int(os.environ.get("STEPS", "8"))
SAMPLES = 96


def _fault() -> str:
    return os.environ.get("FAULT") or "-1:0:none"


class Fault:
    """Dies once, if this process is the one meant."""

    def __init__(self) -> None:
        rank, attempt, place, number = [*_fault().split(":"), "0"][:4]
        me = (os.environ.get("RANK", "0"), os.environ.get("HOLDFAST_ATTEMPT", "0"))
        self.place = place if (rank, attempt) == me else ""
        self.number = int(number)

    def at(self, place: str, number: int = 0) -> None:
        """Die here if this is the place."""
        if place == self.place and number == self.number:
            os.kill(os.getpid(), signal.SIGKILL)


class Net(torch.nn.Module):
    """Two layers, dropout and a buffer that changes with every step."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        hidden = int(os.environ.get("HIDDEN", "500"))
        self.first = torch.nn.Linear(24, hidden)
        self.norm = torch.nn.BatchNorm1d(hidden)
        self.last = torch.nn.Linear(hidden, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number per sample."""
        self.seen += 1
        hidden = torch.nn.functional.dropout(torch.relu(self.norm(self.first(x))), 0.2)
        out: torch.Tensor = self.last(hidden)
        return out + self.seen * 1e-3


class Ballast:
    """State of a rank that grows with every step and depends on all before it."""

    def __init__(self) -> None:
        self.words: list[torch.Tensor] = []

    def grow(self, length: int) -> None:
        """Remember more."""
        self.words.append(torch.rand(length))

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {"words": self.words}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All of it."""
        self.words = state["words"]


def dataset() -> list[torch.Tensor]:
    """Random vectors, the same in every process."""
    made = torch.Generator().manual_seed(3)
    return [torch.randn(24, generator=made) for _ in range(SAMPLES)]


def die_in_snapshots(fault: Fault) -> None:
    """Make the copy loop of the snapshot call the fault: `number` counts its calls."""
    copy, calls = tensors._copy, iter(range(1, 1_000_000))

    def copy_or_die(plan: Any, digest: Any) -> None:
        call = next(calls)
        copy(plan[: len(plan) // 2 + 1], None)
        fault.at("snapshot", call)
        copy(plan, digest)

    tensors._copy = copy_or_die


class Lazy:
    """Copies beside training at their slowest: nothing is copied before it has to be.

    Whatever changed a source too early would be in the copy.
    """

    least_bytes = 0
    prepares = False
    taken_s = 0.0

    def __init__(self) -> None:
        self.blind = os.environ["LAZY"] == "stream"
        self._copies: list[Copy] = []

    def prepare(self, memory: memoryview) -> None:
        """Any memory will do."""

    def start(self, memory: memoryview, copies: Iterable[Copy]) -> None:  # noqa: ARG002
        """Not before `guard`, unless it has to be."""
        for copy in copies:
            if copy.stable:
                self._copies.append(copy)
            else:
                copy.make()

    def then(self, work: Callable[[], None]) -> None:
        """Nobody notices."""

    def guard(self) -> bool:
        """The last moment."""
        for copy in self._copies:
            copy.make()
        self._copies.clear()
        return os.environ["LAZY"] == "thread"

    def settle(self) -> None:
        """All of it."""
        self.guard()


def beside() -> None:
    """How copies go on beside training: as late as may be, or by the thread however small."""
    match os.environ.get("LAZY"):
        case "thread" | "stream":
            # not meant to be replaced
            setattr(attempt_parts, "background_copier", lambda *_: Lazy())  # noqa: B010
        case "real":
            streams.SideThread.least_bytes = 0
            streams._WORTH_BYTES = 0


def meddle(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Change what only the optimizer may change, before it does, as `MEDDLE=how:step` says."""
    how, _, when = os.environ.get("MEDDLE", "").partition(":")
    if str(step) != when:
        return
    first = next(model.parameters())
    with torch.no_grad():
        match how:
            case "plain":
                first.add_(0.25)
            case "data":
                first.data.add_(0.25)
            case "moment":
                optimizer.state[first]["exp_avg"].mul_(0.5)


def stepping(optimizer: torch.optim.Optimizer, step: int) -> None:
    """The optimizer's step; as `MEDDLE=how:step` says one is left out, or runs no hooks."""
    match os.environ.get("MEDDLE", "").partition(":"):
        case ("skip", _, when) if when == str(step):
            return
        case ("unhooked", _, when) if when == str(step):
            type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]
        case _:
            optimizer.step()


def await_copy(arena: Arena, step: int) -> None:
    """Until the snapshot of so many steps is whole here."""
    headers: list[CellHeader | None] = []
    while step not in [header.step for header in headers if header]:
        time.sleep(0.001)
        headers = [cell.header() for cell in arena.cells(StatePart.PRIVATE)]


def report(run: Run, entry: dict[str, Any]) -> None:
    """Append one line to this rank's file."""
    with open(f"{os.environ['RESULTS']}/rank-{run.rank}.jsonl", "a") as file:
        file.write(json.dumps(entry) + "\n")


def digest(model: torch.nn.Module) -> str:
    """All parameters and buffers as one number."""
    parts = [
        tensors.local_part(t.detach()).numpy().tobytes()
        for t in [*model.parameters(), *model.buffers()]
    ]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def split(run: Run, net: Net) -> torch.nn.Module:
    """The model over all ranks, as the test wants it."""
    match os.environ.get("SPLIT"):
        case "private":
            return net
        case "hybrid":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            names = ("dp_replicate", "dp_shard")
            halves = init_device_mesh("cpu", (2, run.world_size // 2), mesh_dim_names=names)
            fully_shard(net, mesh=halves)
            return net
        case "sharded":
            from torch.distributed.fsdp import fully_shard

            fully_shard(net, mesh=run.mesh)
            return net
        case _:
            return run.parallelize(net)


@contextmanager
def unreduced(model: Any) -> Iterator[None]:
    """Gradients stay with each rank, if the test wants it."""
    if "NO_SYNC" not in os.environ:
        yield
    elif hasattr(model, "no_sync"):
        with model.no_sync():
            yield
    else:
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)


def is_nan(run: Run, step: int) -> bool:
    """Whether this rank logs a NaN: from some step on, as NAN=RANK:STEP says."""
    rank, _, first = os.environ.get("NAN", "-1:0").partition(":")
    return run.rank == int(rank) and step >= int(first)


def flip(run: Run, net: Net, step: int) -> None:
    """Change one bit of this rank's parameters after some step, once, as FLIP=RANK:STEP says."""
    if os.environ.get("FLIP") == f"{run.rank}:{step}":
        tensors.local_part(net.first.weight.data).view(torch.int32)[1, 1] ^= 1 << 12


def main() -> None:
    """The training script."""
    torch.set_num_threads(1)
    torch.manual_seed(11)
    accumulate = int(os.environ.get("ACCUMULATE", "1"))
    gradients.PATIENCE_S = float(os.environ.get("PATIENCE", gradients.PATIENCE_S))
    fault = Fault()
    arena = Arena(int(os.environ["HOLDFAST_ARENA_FD"])) if fault.place == "copied" else None
    die_in_snapshots(fault)
    beside()
    net = Net()
    fault.at("before_join")
    run = join()
    fault.at("joined")
    model: Any = split(run, net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    data = loader(dataset(), 4, seed=5)
    more = Ballast()
    state = run.track(model=model, optimizer=optimizer, loader=data, scheduler=schedule, more=more)
    for step, batch in state.steps(total=STEPS):
        fault.at("step", step)
        if arena is not None and fault.number == step:
            await_copy(arena, step)
            fault.at("copied", step)
        if os.environ.get("STOP") == f"{run.rank}:{step}":
            state.stop()
        if os.environ.get("GOLDEN") == str(step):
            run.checkpoint("golden")
        meddle(model, optimizer, step)
        loss = model(batch).square().mean()
        if step % accumulate == 0:
            optimizer.zero_grad()
        last = (step + 1) % accumulate == 0
        with nullcontext() if last else unreduced(model):
            loss.backward()
        fault.at("after_backward", step)
        if last:
            stepping(optimizer, step)
        flip(run, net, step)
        fault.at("stepped", step)
        schedule.step()
        more.grow(int(os.environ.get("BALLAST", "1")))
        run.log(loss=loss * torch.nan if is_nan(run, step) else loss, tokens=batch.numel())
        entry = {"attempt": run.attempt, "step": step, "loss": loss.item().hex()}
        report(run, {**entry, "batch": hashlib.sha256(batch.numpy().tobytes()).hexdigest()})
    sums = [word.sum().item() for word in more.words]
    report(run, {"final": f"{digest(net)} {sums}", "attempt": run.attempt})
    fault.at("after_loop")


if __name__ == "__main__":
    main()
