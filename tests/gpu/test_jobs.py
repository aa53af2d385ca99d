"""Real jobs on one GPU: faults of every kind that a GPU adds, and the same bits after each.

What a job has to be equal to is the same job without a fault. How long a restart takes is measured
by the job's own ledger, phase by phase.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.local.jobs import RunningJob
from tests.patience import PATIENCE_S, until

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = SCRIPTS / "train.py"
Measured = Callable[..., None]
Outcome = tuple[dict[int, float], list[Any]]  # losses, parameters
_calm: dict[str, Outcome] = {}


class Fresh(subprocess.Popen[bytes]):
    """The command line as users start it: no figure is that of a process that was warmed up."""

    def __init__(self, words: Sequence[str], **how: Any) -> None:
        super().__init__([sys.executable, "-m", "holdfast.cli", *words], **how)


class Bench:
    """Jobs of one shape in one home, one after the other."""

    def __init__(self, home: Path, place: str, **spec: Any) -> None:
        """`place` is the device of all workers."""
        self._home = home
        self._place = place
        self._spec: dict[str, Any] = {"workers_per_node": 1, "nodes": {"count": 1}, **spec}
        self._count = 0

    def start(self, *more: str, **spec: Any) -> RunningJob:
        """A new job with these arguments of the script."""
        self._count += 1
        out = self._home.parent / "out"
        args = ["--out", str(out), "--device", self._place, *more]
        every_step = {"snapshots": {"every_steps": 1}}
        job = RunningJob(
            self._home,
            args=args,
            name=f"job-{self._count}",
            **{"script": str(SCRIPT), **every_step, **self._spec, **spec},
        )
        job.by = Fresh
        return job.start()

    def outcome(self, job: RunningJob) -> Outcome:
        """Losses and parameters of a job that ends well; they are taken out of the way."""
        import torch

        job.wait_end()
        final = job.out / "final.pt"
        parameters = torch.load(final, weights_only=True)
        final.unlink()
        return job.losses(), parameters

    def calm(self, *more: str) -> Outcome:
        """What comes out where nothing happens, made once for each shape."""
        shape = str((self._spec, more))
        if shape not in _calm:
            job = self.start(*more)
            _calm[shape] = self.outcome(job)
            assert job.incidents() == []
            (job.out / "workers.jsonl").unlink()
        return _calm[shape]


def workers(job: RunningJob) -> list[dict[str, Any]]:
    """What each worker has noted, over all attempts."""
    return [json.loads(line) for line in (job.out / "workers.jsonl").read_text().splitlines()]


def assert_same(one: Outcome, other: Outcome) -> None:
    """Every loss and every bit of the parameters."""
    import torch

    assert one[0] == other[0]
    assert all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


def backend_of(place: str) -> str:
    """What PyTorch takes by default."""
    return "nccl" if place.startswith("cuda") else "gloo"


@pytest.mark.parametrize("sharded", [False, True])
def test_nccl_with_one_rank_restarts_in_place_and_changes_no_bit(
    home: Path, place: str, measured: Measured, sharded: bool
) -> None:
    more = ["--sharded"] if sharded else []
    bench = Bench(home, place)
    calm = bench.calm(*more)
    job = bench.start(*more)
    job.wait_step(12)
    os.kill(job.worker(0), signal.SIGKILL)
    assert_same(bench.outcome(job), calm)
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank) == ("worker-killed", 0) and incident.steps_lost <= 1
    first, second = workers(job)
    assert first["backend"] == second["backend"] == backend_of(place)
    _tell(measured, "NCCL, one rank" + (", fully_shard" if sharded else ""), job)


def test_two_processes_on_one_gpu_restart_with_gloo(
    home: Path, place: str, measured: Measured
) -> None:
    bench = Bench(home, place, workers_per_node=2)
    calm = bench.calm("--backend", "gloo")
    job = bench.start("--backend", "gloo")
    job.wait_step(12)
    os.kill(job.worker(1), signal.SIGKILL)
    assert_same(bench.outcome(job), calm)
    assert [i.cause for i in job.incidents()] == ["worker-killed"]
    _tell(measured, "gloo, two processes on one GPU", job)


def test_a_worker_on_a_gpu_is_replaced_where_the_job_would_keep_it_and_says_so(
    home: Path, place: str
) -> None:
    kept = {"recovery": {"mode": "in_process"}}
    bench = Bench(home, place, workers_per_node=2)
    calm = bench.calm("--backend", "gloo")
    job = bench.start("--backend", "gloo", **kept)
    job.wait_step(12)
    os.kill(job.worker(1), signal.SIGKILL)
    assert_same(bench.outcome(job), calm)
    began = sorted((line["attempt"], line["rank"]) for line in workers(job))
    on_gpu = place.startswith("cuda")
    assert began == [(1, 0), (1, 1), *([(2, 0)] * on_gpu), (2, 1)]
    assert ("it computes on cuda" in job.said()) == on_gpu


COMPILED = "NCCL, one rank, compiled blocks"


@pytest.mark.parametrize("cached", [True, False])
def test_compiled_code_of_a_gpu_survives_a_kill(
    home: Path, place: str, measured: Measured, cached: bool
) -> None:
    """The first step after it compiles nothing, unless PyTorch's caches are turned off."""
    env = {"TORCHINDUCTOR_CACHE_DIR": str(home.parent / "compiled")}
    if not cached:
        env["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    parallel = {"dp_replicate": -1, "compile": True}
    job = Bench(home, place, parallel=parallel, env=env).start(script=str(SCRIPTS / "blocks.py"))
    job.wait_step(200)  # by then whoever waits has imported what the first attempt did
    os.kill(job.worker(0), signal.SIGKILL)
    job.wait_end()
    first, second = workers(job)
    assert first["compiled"] > 0
    assert (second["compiled"] == 0) == cached
    group = f"{COMPILED}, {'as it is' if cached else 'without caches'}"
    measured(group, "first step of the first attempt", first["first_step_s"], "s")
    measured(group, "first step after the kill", second["first_step_s"], "s")
    measured(group, "a step", second["step_s"], "s")
    _tell_bill(measured, group, job)


def test_a_profile_shows_the_kernels_of_a_gpu(home: Path, place: str, measured: Measured) -> None:
    job = Bench(home, place).start("--steps", "100000", "--width", "1024")
    job.wait_step(12)
    told = json.loads(_said("profile", job.name, "--steps", "3", "--json"))
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.process.wait(PATIENCE_S)
    (rank,) = told["ranks"]
    assert rank["device"] == place.partition(":")[0] and rank["top"]
    for part, seconds in rank["parts"].items():
        measured("profile of a step with a snapshot", part, 1e3 * seconds, "ms")
    assert rank["parts"]["compute"] > 0


def test_the_checks_of_a_machine_look_at_its_gpus(place: str) -> None:
    checks = json.loads(_said("check", "--quick", "--json"))["checks"]
    told = {check["name"]: check for check in checks}
    names = ("matmul", "device memory", "model step")
    expected = ["ok"] * 3 if place.startswith("cuda") else ["ok", "skipped", "ok"]
    assert [told[name]["state"] for name in names] == expected
    if place.startswith("cuda"):
        assert all("1 GPU" in told[name]["found"] for name in ("matmul", "model step"))


def _said(*words: str) -> str:
    command = [sys.executable, "-m", "holdfast.cli", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _tell(measured: Measured, group: str, job: RunningJob) -> None:
    """What one restart in place cost, by phase."""
    _tell_bill(measured, group, job)
    late = next(worker for worker in workers(job) if worker["attempt"] == 2)
    measured(group, "of rendezvous: making the context", late["context_s"], "s")
    measured(group, "next use of the device, after join()", late["first_use_s"], "s")


def _tell_bill(measured: Measured, group: str, job: RunningJob) -> None:
    (incident,) = job.incidents()
    measured(group, "kill to productive again", incident.lost_s, "s")
    for bucket, seconds in incident.bill.items():
        measured(group, f"of that: {bucket}", seconds, "s")


FAULTS = {
    "assert": ("worker-exception", ("AcceleratorError", "IndexError")),
    "memory": ("out-of-memory", ("OutOfMemoryError",)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_of_the_gpu_is_named_and_training_goes_on_in_a_new_context(
    home: Path, place: str, measured: Measured, fault: str
) -> None:
    bench = Bench(home, place)
    calm = bench.calm()
    job = bench.start("--fault", fault)
    assert_same(bench.outcome(job), calm)
    (incident,) = job.incidents()
    cause, types = FAULTS[fault]
    assert incident.cause == cause, incident.traceback
    assert (incident.error_type or "").rpartition(".")[2] in types
    assert "train.py" in incident.summary, "the user's own line"
    _tell(measured, f"fault: {fault}", job)


def test_a_worker_killed_inside_a_kernel_is_gone_at_once_and_so_is_its_memory(
    home: Path, place: str, measured: Measured
) -> None:
    bench = Bench(home, place)
    calm = bench.calm()
    job = bench.start("--fault", "kernel")
    job.wait_until(lambda _: (job.out / "in-kernel").exists(), "the kernel")
    victim = job.worker(0)
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    on_gpu = place.startswith("cuda")
    assert until(lambda: not (_lives(victim) or (on_gpu and victim in contexts())), 60.0)
    measured("killed inside a kernel", "kill to memory free", time.monotonic() - began, "s")
    assert_same(bench.outcome(job), calm)
    (incident,) = job.incidents()
    assert (incident.cause, incident.signal) == ("worker-killed", signal.SIGKILL)
    _tell(measured, "killed inside a kernel", job)


def _lives(pid: int) -> bool:
    """Whether any of its threads is neither gone nor waiting to be reaped: the first one may be
    long before the others, which still have its memory."""
    try:
        threads = [*Path(f"/proc/{pid}/task").iterdir()]
        states = [(one / "stat").read_text().rpartition(")")[2].split()[0] for one in threads]
    except OSError:
        return False
    return any(state not in "ZX" for state in states)


def test_a_module_that_looks_for_a_gpu_while_it_is_preloaded_keeps_nobody_from_using_it(
    home: Path, place: str
) -> None:
    folder = home.parent / "modules"
    folder.mkdir()
    (folder / "looks.py").write_text("import torch\nfound = torch.cuda.is_available()\n")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    job = Bench(home, place).start(warm={"preload": ["looks"]}, env={"PYTHONPATH": path})
    job.wait_end()
    (worker,) = workers(job)
    assert worker["seen"][0] == place.startswith("cuda")
    assert "CUDA" not in job.said() and job.incidents() == []


def test_a_warm_worker_holds_no_memory_of_the_gpu(
    home: Path, place: str, measured: Measured
) -> None:
    """While one trains and the next one waits at join()."""
    job = Bench(home, place).start("--steps", "2000")
    job.wait_step(12)
    with_context = contexts() if place.startswith("cuda") else [job.worker(0)]
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.process.wait(PATIENCE_S)
    assert len(with_context) == 1, with_context
    measured("warm worker", "processes with a context, the one that trains included", 1)


def contexts() -> list[int]:
    """Processes beside this one that hold memory of the GPU, as its driver counts them."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    pids = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    return sorted(pids - {os.getpid()})
