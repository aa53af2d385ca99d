"""Train the GPT of examples/gpt through two faults and show what they cost.

At a third of the way one worker is killed, at two thirds a whole node; both by SIGKILL, when the
job's own metrics say that it has got there. The job is an ordinary `holdfast run` with a home of
its own, which is kept so that the commands named at the end work. Ctrl-C stops the job and removes
everything. The exit status is 0 only if every promise was kept.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

import msgspec
import psutil
from rich.console import Console

from account import Account, broken_promises, losses, next_commands, show
from harm import kill_node, kill_worker
from holdfast.spec.load import job_from_yaml
from holdfast.status import Goodput, Incident, JobStatus

JOB = Path(__file__).parents[1] / "gpt" / "job.yaml"
HOLDFAST = Path(sys.executable).with_name("holdfast")
T = TypeVar("T")
LIMIT_S = 600.0  # something is very wrong if a third of the steps takes longer


def main() -> int:
    """The exit status: 0 if all was as promised."""
    signal.signal(signal.SIGTERM, _interrupted)
    signal.signal(signal.SIGHUP, _interrupted)
    home = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    os.environ["HOLDFAST_HOME"] = str(home)
    console = Console(highlight=False)
    # A session of its own, so that Ctrl-C in the terminal reaches the job once and through us.
    process = subprocess.Popen([HOLDFAST, "run", str(JOB)], start_new_session=True)
    try:
        return _story(process, home, console)
    except KeyboardInterrupt:
        console.print("interrupted: stopping the job")
        _stop(process, home)
        return 130
    except BaseException:
        _stop(process, home)
        raise


def _story(process: subprocess.Popen[bytes], home: Path, console: Console) -> int:
    job = job_from_yaml(JOB)
    folder, steps = home / "jobs" / job.name, int(job.args[job.args.index("--steps") + 1])
    metrics = folder / "metrics.jsonl"
    first, second = steps // 3, 2 * steps // 3
    plan = f"{steps} steps; a worker is killed after {first}, a whole node after {second}"
    console.print(f"[bold]{job.name}[/]: {plan}")

    _until(lambda: _step(metrics) >= first, process)
    status = _ask("status", job.name, JobStatus)
    spare = next(node.name for node in status.nodes if node.rank is None)
    console.print(f"[bold red]✗ {kill_worker(status, rank=1)}[/]", soft_wrap=True)

    _until(lambda: _step(metrics) >= second, process)
    status = _ask("status", job.name, JobStatus)
    console.print(f"[bold red]✗ {kill_node(folder, status, rank=0)}[/]", soft_wrap=True)

    exit_status = process.wait()
    account = _account(job.name, metrics)
    show(account, console)
    broken = broken_promises(account, exit_status, steps, spare)
    next_commands(folder, _shown(HOLDFAST), _shown(JOB.with_name("train.py")), console)
    for sentence in broken:
        console.print(f"[bold red]not as promised:[/] {sentence}")
    return 1 if broken else 0


def _account(name: str, metrics: Path) -> Account:
    status = _ask("status", name, JobStatus)
    return Account(
        status=status,
        incidents=_ask("incidents", name, list[Incident]),
        goodput=_ask("goodput", name, Goodput),
        losses=losses(metrics, status.started_at),
    )


def _ask(verb: str, name: str, shape: type[T]) -> T:
    """The answer of `holdfast VERB NAME --json`."""
    answer = subprocess.run([HOLDFAST, verb, name, "--json"], capture_output=True, check=True)
    return msgspec.json.decode(answer.stdout, type=shape)


def _step(metrics: Path) -> int:
    """The last step of which the job has recorded the loss."""
    try:
        lines = metrics.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    whole = [line for line in lines[-2:] if line.endswith(b"\n")]
    return int(msgspec.json.decode(whole[-1])["step"]) if whole else 0


def _until(holds: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until something holds; ends the demo if the job ends before, or nothing moves."""
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        if process.poll() is not None:
            raise SystemExit(f"the job ended too early, with status {process.returncode}")
        if time.monotonic() > deadline:
            raise SystemExit(f"no progress in {LIMIT_S:.0f} s")
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes], home: Path) -> None:
    """Ask the job to stop, then insist; leave neither a process nor a file."""
    for number, patience_s in ((signal.SIGINT, 20.0), (signal.SIGINT, 10.0), (signal.SIGKILL, 5.0)):
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(patience_s)
            break
        except subprocess.TimeoutExpired:
            continue
    for other in psutil.process_iter():
        if _belongs(other, home):
            other.kill()
    shutil.rmtree(home, ignore_errors=True)


def _belongs(process: psutil.Process, home: Path) -> bool:
    try:
        mine = process.environ().get("HOLDFAST_HOME") == str(home)
    except psutil.Error:
        return False
    return mine and process.pid != os.getpid()


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _shown(path: Path) -> str:
    """The path as one would type it here."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


if __name__ == "__main__":
    sys.exit(main())
