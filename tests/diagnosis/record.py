"""Record what real processes print when they fail: the texts that the diagnosis tests read.

Run `python tests/diagnosis/record.py FOLDER`: each scenario starts two gloo ranks, breaks one of
them as named, and keeps the stderr of the other. The tests read the kept files, so that they are
fast and do not depend on the version of torch that happens to be installed.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROLOGUE = """
import os, sys, time, datetime
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
timeout = datetime.timedelta(seconds=4)
def ready():
    open(os.environ["READY"] + str(rank), "w").close()
def wait_for(n):
    while not os.path.exists(os.environ["READY"] + str(n)):
        time.sleep(0.01)
def init():
    dist.init_process_group("gloo", timeout=timeout)
"""

LOOP = "init()\nready()\nt = torch.ones(1 << 16)\nwhile True:\n    dist.{call}\n"
DDP = """
init()
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(64, 64))
ready()
while True:
    model(torch.ones(8, 64)).sum().backward()
"""
STORE = """
def serve():
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, rank == 0,
                          timeout=timeout, wait_for_workers=False)
    return store
store = serve()
ready()
wait_for(1 - rank)
store.get("never")
"""
LOADER = """
from torch.utils.data import DataLoader, Dataset
class Broken(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        raise ValueError(f"bad sample {index}")
for batch in DataLoader(Broken(), num_workers=1):
    pass
"""
WRAPPED = """
init()
ready()
t = torch.ones(1 << 16)
try:
    while True:
        dist.all_reduce(t)
except RuntimeError as error:
    raise ValueError("my trainer gave up") from error
"""
CRASH = """
init()
ready()
t = torch.ones(1)
if rank == 1:
    {how}
while True:
    dist.all_reduce(t)
"""

COLLECTIVES_DIFFER = """
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
init()
t = torch.ones(4)
dist.all_reduce(t) if rank == 0 else dist.broadcast(t, 1)
"""
MODELS_DIFFER = """
init()
from torch.nn.parallel import DistributedDataParallel
layer = torch.nn.Linear(4, 4)
model = layer if rank == 0 else torch.nn.Sequential(layer, torch.nn.Linear(4, 4))
DistributedDataParallel(model)
"""

# name: (script, signal for rank 1 once both are ready, or None)
SCENARIOS: dict[str, tuple[str, signal.Signals | None]] = {
    "all_reduce_peer_killed": (LOOP.format(call="all_reduce(t)"), signal.SIGKILL),
    "broadcast_peer_killed": (LOOP.format(call="broadcast(t, 1)"), signal.SIGKILL),
    "barrier_peer_killed": (LOOP.format(call="barrier()"), signal.SIGKILL),
    "recv_peer_killed": (
        "init()\nready()\nt = torch.ones(4)\ndist.recv(t, 1) if rank == 0 else time.sleep(60)\n",
        signal.SIGKILL,
    ),
    "send_peer_killed": (
        "init()\nready()\nt = torch.ones(1 << 22)\n"
        "while True:\n    dist.send(t, 1) if rank == 0 else dist.recv(t, 0)\n",
        signal.SIGKILL,
    ),
    "ddp_peer_killed": (DDP, signal.SIGKILL),
    "peer_stopped_timeout": (LOOP.format(call="all_reduce(t)"), signal.SIGSTOP),
    "monitored_barrier_peer_stopped": (
        LOOP.format(call="monitored_barrier(timeout=timeout)"),
        signal.SIGSTOP,
    ),
    "peer_exited_zero": (CRASH.format(how="os._exit(0)"), None),
    "peer_raised": (CRASH.format(how='raise KeyError("optimizer")'), None),
    "store_wait_timeout": (STORE, signal.SIGSTOP),
    "rendezvous_peer_never_came": ("if rank == 0:\n    ready()\n    init()\n", None),
    "store_refused": ("if rank == 0:\n    os.environ['RANK'] = '1'\n    init()\n", None),
    "wrapped_by_user": (WRAPPED, signal.SIGKILL),
    "out_of_memory_cpu": ("torch.empty(1 << 50)\n", None),
    "loader_worker_raised": (LOADER, None),
    "mismatch/collectives_differ": (COLLECTIVES_DIFFER, None),
    "mismatch/models_differ": (MODELS_DIFFER, None),
}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(script: Path, rank: int, port: int) -> "subprocess.Popen[str]":
    """One rank as a child whose stderr is read."""
    env = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "READY": str(script.parent / "ready-"),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, str(script)], env=env, stderr=subprocess.PIPE, text=True
    )


def wait_until_ready(folder: Path, deadline_s: float = 60.0) -> None:
    """Both ranks have left their mark."""
    end = time.monotonic() + deadline_s
    while not all((folder / f"ready-{rank}").exists() for rank in (0, 1)):
        if time.monotonic() > end:
            raise TimeoutError(f"ranks did not come up in {folder}")
        time.sleep(0.01)


def record(body: str, number: signal.Signals | None, survivor: int = 0) -> str:
    """stderr of the surviving rank after the other one was hit by `number`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(PROLOGUE + body)
        port = free_port()
        ranks = [start(script, rank, port) for rank in (0, 1)]
        try:
            if number is not None:
                wait_until_ready(folder)
                ranks[1 - survivor].send_signal(number)
            return anonymous(ranks[survivor].communicate(timeout=90)[1], name)
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def anonymous(text: str, folder: str) -> str:
    """The same text as it would be printed in a user's folder."""
    for real, shown in ((folder, "/home/me/gpt"), (sys.prefix, "/home/me/.venv")):
        text = text.replace(real, shown)
    return text.replace(sys.base_prefix, "/usr")


def main(target: Path) -> None:
    """Record every scenario into one file each."""
    target.mkdir(parents=True, exist_ok=True)
    for name, (body, number) in SCENARIOS.items():
        if not (target / f"{name}.txt").exists():
            (target / f"{name}.txt").write_text(record(body, number))
    (target / "store_host_killed.txt").write_text(record(STORE, signal.SIGKILL, survivor=1))
    (target / "rank0_killed.txt").write_text(
        record(LOOP.format(call="all_reduce(t)"), signal.SIGKILL, survivor=1)
    )
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        body = f"if rank == 0:\n    os.environ['MASTER_PORT'] = '{port}'\n    init()\n"
        (target / "port_taken.txt").write_text(record(body, None))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
