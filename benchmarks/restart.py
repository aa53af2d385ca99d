"""How long a job stands still when one of two ranks is killed: Holdfast beside torchrun.

    .venv/bin/python benchmarks/restart.py [--quick] [--json] [--kills N] [--only NAME ...]
        [--small]

The training is the same for all: DDP on gloo, 40 million parameters, two ranks on this machine
(benchmarks/scripts). A job suffers up to three kills, or fewer if it does not come back from one;
the contestants take turns, one job each, until each has had its number of kills. All of them
are killed by the same list of random moments and ranks. The time runs from SIGKILL to the first
step that a worker of the new attempt has finished, read from lines the workers append to a file;
so one step (here about a quarter of a second) is part of every figure but the `net` ones, from
which the median step of the attempt before is taken.

A job that is silent for `--limit` seconds after a kill, or whose launcher has ended, has not
recovered. `holdfast` uses the library with a snapshot at every step, `in_process` does so and keeps
the processes of survivors (`kept`: of how many at least), `replicas` has a node for each rank and
loses a whole one, so that its figure is how long the other one does no step, `holdfast_auto`
takes snapshots as often as its default allows (1 % of the step time), `holdfast_plain` is the
script written for torchrun. `node_loss` loses a node each time that a spare is warm.
torchrun runs with its defaults and, as `torchrun_own_store`, with the setting under which it
recovers best. `--quick` leaves out the variants. `--small` trains 2.9 million parameters in steps
about as long: next to no memory has to be moved then, so it shows what a restart costs besides.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from kills import Kill, Step, judge, newest, parse, ready, row
from table import report
from termination import end_cleanly_when_terminated

SCRIPTS = Path(__file__).parent / "scripts"
BIN = Path(sys.executable).parent
RESTARTS = 3
MARK = "BENCHMARK_STEPS"
HOLDFAST = [
    *(str(BIN / "holdfast"), "run", "--name", "restart", "--terminal", "none"),
    *("--nproc-per-node", "2", "--max-restarts", str(RESTARTS)),
]
TORCHRUN = [
    *(str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"),
    *("--max-restarts", str(RESTARTS)),
]
SMALL = {"BENCHMARK_WIDTH": "512", "BENCHMARK_BATCH": "512"}
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass(frozen=True)
class Contestant:
    """How a job is started."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    loses_nodes: bool = False  # it is killed with the agent above it, and all that is below that
    has_spare: bool = False  # who is killed once the spare is warm


CONTESTANTS = {
    "holdfast": Contestant([str(BIN / "holdfast"), "run", str(SCRIPTS / "every_step.yaml")]),
    "in_process": Contestant([str(BIN / "holdfast"), "run", str(SCRIPTS / "in_process.yaml")]),
    "replicas": Contestant(
        [str(BIN / "holdfast"), "run", str(SCRIPTS / "replicas.yaml")], loses_nodes=True
    ),
    "holdfast_auto": Contestant([*HOLDFAST, str(SCRIPTS / "with_library.py")]),
    "holdfast_plain": Contestant([*HOLDFAST, str(SCRIPTS / "plain.py")]),
    "node_loss": Contestant(
        [str(BIN / "holdfast"), "run", str(SCRIPTS / "spare.yaml")],
        loses_nodes=True,
        has_spare=True,
    ),
    "torchrun": Contestant([*TORCHRUN, str(SCRIPTS / "plain.py")]),
    "torchrun_own_store": Contestant([*TORCHRUN, str(SCRIPTS / "plain.py")], OWN_STORE),
}
VARIANTS = {"holdfast_auto", "torchrun_own_store", "node_loss"}


@dataclass(frozen=True)
class Plan:
    """When the kills come and how long to wait for what."""

    kills: int
    least_steps: int
    most_steps: int
    limit_s: float
    start_limit_s: float = 120.0


QUICK = Plan(kills=1, least_steps=4, most_steps=8, limit_s=10.0)


def main() -> None:
    args = _arguments()
    if args.small:
        os.environ |= SMALL
    full = Plan(kills=args.kills, least_steps=5, most_steps=30, limit_s=args.limit)
    names = args.only or [n for n in CONTESTANTS if not (args.quick and n in VARIANTS)]
    kills = compete(
        {name: CONTESTANTS[name] for name in names}, QUICK if args.quick else full, args.seed
    )
    report(
        "SIGKILL of one of two ranks → first new step",
        {name: row(kills[name]) for name in names},
        as_json=args.json,
        note="Times in seconds; median and worst of the kills that were recovered from.",
    )


def compete(contestants: dict[str, Contestant], plan: Plan, seed: int) -> dict[str, list[Kill]]:
    """Jobs of all contestants in turns until each has had its kills."""
    kills: dict[str, list[Kill]] = {name: [] for name in contestants}
    while any(len(had) < plan.kills for had in kills.values()):
        for name, had in kills.items():
            if len(had) < plan.kills:
                for kill in _job(contestants[name], plan, len(had), seed):
                    print(f"{name}: {_words(kill)}", file=sys.stderr, flush=True)
                    had.append(kill)
    return kills


def _job(contestant: Contestant, plan: Plan, had: int, seed: int) -> Iterator[Kill]:
    """One job, killed up to `RESTARTS` times or until it stays down."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        with running(contestant, Path(folder)) as (process, steps):
            for number in range(had, min(plan.kills, had + RESTARTS)):
                chance = random.Random(f"{seed} {number}")
                kill = _kill(contestant, process, steps, plan, chance)
                yield kill
                if not kill.recovered:
                    _tell_why(Path(folder))
                    return


def _tell_why(folder: Path) -> None:
    """Show the last words of a job that stays down, and keep Holdfast's logs and journal."""
    print((folder / "output").read_text(errors="replace")[-1500:], file=sys.stderr)
    records = [p for p in folder.rglob("*") if p.suffix in {".jsonl", ".log"} and p.is_file()]
    if records:
        kept = Path(tempfile.mkdtemp(prefix="holdfast-bench-kept-"))
        for path in records:
            shutil.copy(path, kept / "-".join(path.relative_to(folder).parts))
        print(f"its records are kept in {kept}", file=sys.stderr)


def _kill(
    contestant: Contestant,
    process: subprocess.Popen[bytes],
    steps: Path,
    plan: Plan,
    chance: random.Random,
) -> Kill:
    wanted = chance.randint(plan.least_steps, plan.most_steps)
    rank, share = chance.randrange(2), chance.random()
    if not until(lambda: ready(steps_of(steps), wanted), process, plan.start_limit_s):
        raise SystemExit(f"no {wanted} steps in {plan.start_limit_s} s:\n{_tail(steps)}")
    if contestant.has_spare and not until(
        lambda: _spare_waits(steps.parent), process, plan.start_limit_s
    ):
        raise SystemExit(f"no warm spare in {plan.start_limit_s} s:\n{_tail(steps)}")
    now = newest(steps_of(steps))
    time.sleep(share * (now[-1].at - now[-3].at))  # anywhere within a step: two lines a step
    victim = next(step for step in now if step.rank == rank)
    pid = agent_of(victim.pid) if contestant.loses_nodes else victim.pid
    killed_at = time.time()
    os.kill(pid, signal.SIGKILL)

    def judged() -> Kill:
        return judge(steps_of(steps), victim.attempt, killed_at, marks_of(steps))

    until(lambda: judged().caught_up_s is not None, process, plan.limit_s)
    return judged()


def _spare_waits(folder: Path) -> bool:
    """Whether a warm node waits. Asking takes half a second of a processor, so it is not asked for
    all the time."""
    environment = {**os.environ, "HOLDFAST_HOME": str(folder / "home")}
    told = subprocess.run(
        [str(BIN / "holdfast"), "status", "restart", "--json"],
        env=environment, capture_output=True, check=True,
    ).stdout  # fmt: skip
    if any(node["state"] == "spare" for node in json.loads(told)["nodes"]):
        return True
    time.sleep(1.0)
    return False


def agent_of(worker: int) -> int:
    """The agent whose forkserver has forked this worker."""
    forkserver = psutil.Process(worker).parent()
    agent = forkserver.parent() if forkserver is not None else None
    assert agent is not None, "workers do not outlive their agent"
    return agent.pid


def until(holds: Callable[[], bool], process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait until something holds; False if the launcher ends or the time is over first."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and process.poll() is None:
        if holds():
            return True
        time.sleep(0.02)
    return holds()


@contextmanager
def running(contestant: Contestant, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The launcher and the step log of a fresh job, of which nothing is left afterwards."""
    end_cleanly_when_terminated()
    steps = folder / "steps"
    environment = (
        os.environ
        | contestant.environment
        | {
            MARK: str(steps),
            "BENCHMARK_CHECKPOINT": str(folder / "checkpoint"),
            "BENCHMARK_TOTAL": "1000000",
            "HOLDFAST_HOME": str(folder / "home"),
            "TMPDIR": str(folder),  # torchrun leaves its logs there
            "OMP_NUM_THREADS": "1",
        }
    )
    steps.touch()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            contestant.command, env=environment, stdout=output, stderr=output, cwd=folder
        )
    try:
        yield process, steps
    finally:
        process.terminate()
        _end(process, str(steps))


def _end(process: subprocess.Popen[bytes], steps: str) -> None:
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for other in psutil.process_iter():
        if _marked(other, steps):
            other.kill()


def _marked(process: psutil.Process, steps: str) -> bool:
    try:
        return process.environ().get(MARK) == steps
    except psutil.Error:
        return False


def steps_of(steps: Path) -> list[Step]:
    return parse(steps.read_text())


def marks_of(steps: Path) -> str:
    """What the script has marked, if it does."""
    marks = steps.with_name(f"{steps.name}.marks")
    return marks.read_text() if marks.exists() else ""


def _tail(steps: Path) -> str:
    return steps.with_name("output").read_text(errors="replace")[-4000:]


def _words(kill: Kill) -> str:
    if not kill.recovered:
        return "did not come back"
    return f"training again after {kill.took_s:.2f} s, {kill.steps_lost} steps lost"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one kill each, under a minute")
    parser.add_argument("--small", action="store_true", help="2.9 instead of 40 M parameters")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--kills", type=int, default=12, help="of each contestant")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, metavar="NAME")
    return parser.parse_args()


if __name__ == "__main__":
    main()
