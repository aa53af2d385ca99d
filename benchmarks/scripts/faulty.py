"""A DDP training that does to itself what it is told, one thing after another, each once.

`--plan FILE` is JSON: a list of {"kind", "rank", "step"}. At that step that rank (or with rank -1
each) notes the time in `FILE.NUMBER[.RANK]` and does it; what is noted is not done again, so the
next attempt goes on to the next one. Of what takes a while until it fails (memory that leaks, files
that are opened) the time is noted anew until it does. `--noise` makes steps uneven instead, as real
jobs are: evaluations, garbage collection, a compilation, slow saves, a slow reader now and then.
`--place`: a folder with the disks and control groups of benchmarks/fault_stage.py. `--heartbeats`:
tell ft_launcher of nvidia-resiliency-ext of each step. `--record FILE`: each rank notes in
`FILE.RANK` when its steps began and ended, and what noise was in them (benchmarks/noise.py).
"""

import argparse
import ctypes
import functools
import gc
import http.server
import importlib
import json
import mmap
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import torch
from torch import nn

from holdfast.train import join
from holdfast.train.data import loader

parser = argparse.ArgumentParser()
parser.add_argument("--plan", type=Path)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--step-s", type=float, default=0.05)
parser.add_argument("--place", type=Path, default=Path("/nonexistent"))
parser.add_argument("--noise", action="store_true")
parser.add_argument("--record", type=Path)
parser.add_argument("--heartbeats", action="store_true")
args = parser.parse_args()
plan = json.loads(args.plan.read_text()) if args.plan else []
LONG_S = 1_000_000
BATCH = 8
SLOW_STEPS, SLOW = 850, 1.2  # how long a slow rank is slow, and how much slower than the others
SLOW_WRITES = 400  # steps in which a disk is slow
RECORD_BYTES = 16384  # each step, for which a slow disk takes 90 to 140 ms more
SQUATTER = """
import socket, sys, time
while True:
    try:
        taken = socket.create_server((sys.argv[1], int(sys.argv[2])))
        break
    except OSError:
        time.sleep(0.01)
print("up", flush=True)
time.sleep(20)
"""


MARKS: list[int] = []  # files in which the times of what was done are noted, the newest last


def note() -> None:
    """That it is done now; of the same length each time, so that a file is never half written."""
    os.pwrite(MARKS[-1], f"{time.time():.6f}".encode(), 0)


@contextmanager
def noted_again() -> Iterator[None]:
    """What fails in the end is done when it does."""
    try:
        yield
    except BaseException:
        note()
        raise


def lock() -> None:
    """Wait for oneself."""
    one = threading.Lock()
    one.acquire()
    one.acquire()


def spin_in_python() -> None:
    """Compute for ever."""
    while True:
        pass


def spin_in_c() -> None:
    """Compute for ever without ever giving the interpreter's lock away."""
    re.match("(a*)*b", "a" * 200)


def hold_the_gil() -> None:
    """Wait in C with the interpreter's lock."""
    ctypes.PyDLL(None).sleep(LONG_S)


def raise_from_outside() -> None:
    """Another thread raises in this one."""
    mine = threading.get_ident()
    raised = ctypes.py_object(RuntimeError)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(mine), raised)
    time.sleep(0.01)


def fill(place: Path, but: int = 0) -> int:
    """Take the room that is left on this disk, until this process ends."""
    path = place / f"full-{os.getpid()}"
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    path.unlink()
    room = os.statvfs(place)
    os.posix_fallocate(file, 0, room.f_bavail * room.f_frsize - but)
    return file


def fill_a_disk() -> None:
    """ENOSPC from the kernel; of a disk that is always full where there is no small one."""
    disk = args.place / "disk"
    if disk.is_dir():
        fill(disk)
    with open(disk / "record" if disk.is_dir() else "/dev/full", "wb") as file:
        file.write(b"x" * (1 << 20))


def fill_shared_memory() -> None:
    """A data loader hands over batches that do not fit."""
    fill(Path("/dev/shm"), but=1 << 20)
    large = [torch.ones(1 << 20) for _ in range(4)]
    with noted_again():
        next(iter(torch.utils.data.DataLoader(large, num_workers=1)))  # type: ignore[arg-type]


def write_where_one_may_not() -> None:
    """EROFS from the kernel."""
    (args.place / "read-only" / "record").write_text("x")


def leak() -> None:
    """Keep all memory that there is, a little at a time."""
    kept = []
    while True:
        kept.append(b"x" * (8 << 20))
        note()
        time.sleep(0.002)


@functools.cache
def move_to_slow_disk() -> None:
    """From now on what this process writes is slow."""
    (args.place / "slow-writes" / "cgroup.procs").write_text(str(os.getpid()))


def write_a_record() -> None:
    """To the disk itself, which is as slow for the next process that has this rank."""
    move_to_slow_disk()
    page = mmap.mmap(-1, RECORD_BYTES)
    file = os.open(args.place / "record", os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
    os.write(file, page)
    os.close(file)


def refused() -> None:
    """Nobody listens there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    socket.create_connection(("127.0.0.1", port), timeout=5)


class Busy(http.server.BaseHTTPRequestHandler):
    """A service that is overloaded."""

    def do_GET(self) -> None:
        """503."""
        self.send_error(503)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def answered_503() -> None:
    """Storage that is overloaded."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/shard")


def mismatched() -> None:
    """A collective of another size than that of the others."""
    torch.distributed.all_reduce(torch.ones(1 << 16))


def port_taken() -> None:
    """Somebody listens where this rank wants to."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        socket.create_server(other.getsockname())


def squat_the_store() -> None:
    """Kill the rendezvous store, have somebody listen at its port, and die: the ranks of the next
    attempt have to meet elsewhere."""
    port = int(os.environ["MASTER_PORT"])
    for one in psutil.net_connections("tcp"):
        listens = one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port
        if listens and one.pid:
            os.kill(one.pid, signal.SIGKILL)
    words = [sys.executable, "-c", SQUATTER, os.environ["MASTER_ADDR"], str(port)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, start_new_session=True, env={}
    ) as squatter:
        assert squatter.stdout is not None and squatter.stdout.readline()
        os.kill(os.getpid(), signal.SIGKILL)


def flip_a_bit() -> None:
    """In a parameter, as faulty hardware does."""
    with torch.no_grad():
        first.weight.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 20)


def descend() -> None:
    """Recurse until the interpreter refuses."""
    descend()


def too_many_files() -> None:
    """The limit of open files."""
    kept = []
    with noted_again():
        while True:
            kept.append(open("/dev/null"))  # noqa: SIM115


HARM: dict[str, Callable[[], object]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGKILL with 1 GB": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGBUS": lambda: os.kill(os.getpid(), signal.SIGBUS),
    "abort": os.abort,
    "exception": lambda: [][1],
    "exception on all ranks": lambda: int("missing"),
    "exception from another thread": raise_from_outside,
    "recursion": descend,
    "import error": lambda: __import__("no_such_module"),
    "exit with status 3": lambda: os._exit(3),
    "exit with status 0": lambda: os._exit(0),
    "host memory refused": lambda: torch.empty(1 << 46),
    "memory leak": leak,
    "disk full": fill_a_disk,
    "/dev/shm full": fill_shared_memory,
    "read-only folder": write_where_one_may_not,
    "open files": too_many_files,
    "connection refused": refused,
    "storage answers 503": answered_503,
    "sleep": lambda: time.sleep(LONG_S),
    "deadlock": lock,
    "GIL held": hold_the_gil,
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "loop in Python": spin_in_python,
    "loop in C": spin_in_c,
    "skipped collective": lambda: time.sleep(0),
    "mismatched collective": mismatched,
    "input stops": lambda: None,
    "NaN": lambda: None,
    "NaN gradient": lambda: None,
    "loss spike": lambda: None,
    "bit flip": flip_a_bit,
    "port taken": port_taken,
    "rendezvous port squatted": squat_the_store,
    "slow rank": lambda: None,
    "slow input": lambda: None,
    "slow disk": lambda: None,
    "checkpoint disk full": lambda: None,
    "partition": lambda: time.sleep(0.5),
    "machine stopped": lambda: time.sleep(0.5),
    "XID": lambda: time.sleep(3),
    "connection cut": lambda: time.sleep(3),
    "agent killed": lambda: time.sleep(3),
    "agent stopped": lambda: time.sleep(12),
    "forkserver killed": lambda: time.sleep(3),
}


def is_slow(kind: str, step: int, rank: int) -> bool:
    """Whether this rank is the slow one now, in this way."""
    steps = SLOW_WRITES if kind == "slow disk" else SLOW_STEPS
    return any(
        order["kind"] == kind
        and order["rank"] == rank
        and order["step"] <= step < order["step"] + steps
        for order in plan
    )


def is_to_hold_memory(step: int, rank: int) -> bool:
    """Whether this rank will be killed soon with much memory."""
    return any(
        order["kind"] == "SIGKILL with 1 GB" and (order["rank"], order["step"]) == (rank, step + 5)
        for order in plan
    )


def due(step: int, rank: int) -> str:
    """What this rank has to do now, for the first time."""
    for number, order in enumerate(plan):
        if order["step"] == step and order["rank"] in (rank, -1):
            suffix = f".{rank}" if order["rank"] == -1 else ""
            mark = Path(f"{args.plan}.{number}{suffix}")
            others = args.plan.parent.glob(f"{args.plan.name}.{number}.*")
            if any(one.stat().st_mtime < began for one in others):
                return ""  # each was to do it, and this one was stopped before it came to that
            try:
                MARKS.append(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                return ""
            note()
            return str(order["kind"])
    return ""


DID: list[tuple[str, float, float]] = []  # in this step, besides it: what, from when to when


@contextmanager
def noted(what: str) -> Iterator[None]:
    """That it was done."""
    began_at = time.monotonic()
    yield
    DID.append((what, began_at, time.monotonic()))


def evaluate(dice: random.Random) -> None:
    """Compute without steps, for seconds."""
    end = time.monotonic() + dice.uniform(0.5, 8.0)
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.ones(256, 16))


def compile_something() -> None:
    """As when a batch has a shape that was not seen before."""
    torch._dynamo.reset()
    backend = "inductor" if shutil.which("g++") else "aot_eager"
    compiled = torch.compile(lambda x: (x.sin() * x.cos()).sum(), backend=backend)
    compiled(torch.ones(dice.randrange(8, 4096)))


def disturb(step: int, dice: random.Random) -> None:
    """What happens in jobs that are well."""
    if step % 50 == 49:
        with noted("evaluation"):
            evaluate(dice)
        torch.distributed.barrier()
    if step % 70 == 0:
        with noted("garbage"):
            gc.collect()
    if step % 1000 == 30:
        with noted("compilation"):
            compile_something()
    if run.is_main and step % 120 == 119:
        with noted("save"):
            time.sleep(dice.uniform(0.1, 1.5))  # a file of its own
    if dice.random() < 0.01:
        with noted("read"):
            time.sleep(dice.uniform(0.1, 1.0))  # a slow one


class Input(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples; one of which may never come."""

    stops = slow = False

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        if Input.stops:
            time.sleep(LONG_S)
        if Input.slow:
            time.sleep(args.step_s * (SLOW - 1) / BATCH)
        return torch.full((16,), float(index % 7))


torch.manual_seed(7)
first = nn.Linear(16, 64)
model = nn.Sequential(first, nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run = join()
began = time.time()
wrapped = run.parallelize(model)
state = run.track(
    model=wrapped, optimizer=optimizer, loader=loader(Input(), batch_size=BATCH, seed=5)
)
monitor = None
if args.heartbeats:
    monitor = importlib.import_module("nvidia_resiliency_ext.fault_tolerance").RankMonitorClient()
    monitor.init_workload_monitoring()
dice = random.Random(run.rank + os.getpid() * args.noise)
record = open(f"{args.record}.{run.rank}", "a", buffering=1) if args.record else None  # noqa: SIM115
for step, inputs in state.steps(total=args.steps):
    step_began = time.monotonic()
    slow = SLOW if is_slow("slow rank", step, run.rank) else 1.0
    time.sleep(args.step_s * dice.uniform(0.7, 1.3) * slow)
    Input.slow = is_slow("slow input", step, run.rank)
    if args.noise:
        disturb(step, dice)
    if monitor is not None:
        monitor.send_heartbeat()
    if is_to_hold_memory(step, run.rank):
        held = torch.ones(1 << 28)
    what = due(step, run.rank)
    if what:
        HARM[what]()
    if is_slow("slow disk", step, run.rank):
        write_a_record()
    Input.stops = what == "input stops"
    # DDP decides in the forward pass whether it reduces
    alone = wrapped.no_sync() if what == "skipped collective" else nullcontext()  # type: ignore[operator]
    with alone:
        loss = wrapped(inputs).square().mean()
        if what == "NaN":
            loss = loss * float("nan")
        if what == "loss spike":
            loss = loss * 1000
        loss.backward()
    if what == "NaN gradient":
        first.weight.grad = torch.full_like(first.weight, float("nan"))
    optimizer.step()
    optimizer.zero_grad()
    run.log(loss=loss)
    if record is not None:
        print(json.dumps({"step": (step_began, time.monotonic()), "did": DID}), file=record)
        DID.clear()
sys.exit(0)
