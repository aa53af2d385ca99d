"""A campaign of faults in a real job: what is detected, how soon, and is it put down to the right
cause and rank?

    .venv/bin/python benchmarks/faults.py [--rounds N] [--only KIND ...] [--clean S]
        [--record FILE] [--json] [--step-timeout S]

A DDP training of two ranks on two nodes (gloo, steps of 50 ms, benchmarks/scripts/faulty.py)
suffers one fault after the other, each kind once a round on a rank and at a step drawn by chance,
in jobs of eight. The time runs from the moment the script notes before it does harm (of leaks, open
files and a full /dev/shm: when that fails; for what is done from outside: before it is) to the
first measure taken, by the journal, or to the fact that names a silent node, which comes before;
the time to the measure stands beside it (`acted_s`). Of slow ranks and spikes, which are only told,
it runs to the fact that tells them. A fault without an incident, or such a fact, before the next
fault is missed; an incident without a fault is a false alarm. Where any exception would have the
same cause, the incident has to name the known problem, too. Below the figures stands the confusion
matrix: which cause was named how often for each kind; `--json` has it, too, with the false alarms
and the faults that did not come to pass or could not be done. `--clean S` trains that long without
faults and with noise instead: evaluations, garbage collection, a compilation, slow saves and reads;
with `--record FILE` its steps are kept, for benchmarks/noise.py.
`--step-timeout S` sets `recovery.step_timeout_s` of the jobs.

Kinds that begin with "no steps" are done in jobs of their own, one a round, by
benchmarks/scripts/without_steps.py with `recovery.hang_timeout_s: 10`. Those of them that are no
fault last three times as long, come last, because how long a script is idle is learned, and are
right where there is no incident.

It runs in namespaces and control groups of its own (benchmarks/fault_stage.py), so that disks can
be full and networks part; where these are not permitted, the kinds that need them are left out.
"""

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import yaml

import noise
from fault_kinds import KINDS
from fault_stage import Stage, enter
from holdfast import journal
from holdfast.detection.liveness import SILENT
from holdfast.drivers import chaos
from holdfast.drivers.explained import known_problem
from holdfast.errors import Error
from holdfast.events import (
    AnyEvent,
    CheckpointFailed,
    HealthChanged,
    NumbersSpiked,
    Severity,
    StragglersFound,
)
from holdfast.slow_ranks import SlowBy
from holdfast.status import Incident
from table import Row, machine, report, table
from termination import end_cleanly_when_terminated

SCRIPTS = Path(__file__).parent / "scripts"
HOLDFAST = str(Path(sys.executable).parent / "holdfast")
JOB_OF = 8  # faults in one job
FIRST_STEP = 60  # of the first fault: what is usual has been learned
LIMIT_S = 900.0
NO_STEPS_S = 10.0  # hang_timeout_s of a job without steps
NAME = "faults"
LASTS_S = {"partition": 12.0}  # what is done from outside and can be taken back; others:
LASTS_ELSE_S = 8.0
STOPS_WITHIN_S = 120.0
XID = (
    "3,4711,5026000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, "
    "GPU has fallen off the bus.\n"
)  # as a kernel has logged it


@dataclass
class Fault:
    """One of them, and what became of it."""

    kind: str
    rank: int
    at: float | None = None  # when it was done; None: it did not come to that
    cause: str = ""
    blamed: int | None = None
    after_s: float | None = None  # to the first measure, or to the fact that tells it
    named_s: float | None = None  # to the fact that names its node as silent
    harmed_at: float = 0.0  # from outside, and which node
    node: str = ""
    refused: bool = False  # it could not be done from outside, so the script only waited
    undo: chaos.Undo | None = None
    undo_at: float = 0.0


def main() -> None:
    """Run the campaign."""
    arguments = _arguments()
    enter()
    end_cleanly_when_terminated()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="faults-"))
    folder.mkdir(exist_ok=True)
    try:
        done = _clean if arguments.clean else _campaign
        rows, note, more = done(folder, arguments)
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    report("Faults in a job of two ranks", rows, as_json=False, note=note)
    if arguments.json:
        print(json.dumps({"machine": machine(), "faults": rows, **more}, allow_nan=False))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clean", type=float, default=0.0)
    parser.add_argument("--record", type=Path, help="with --clean: keep the steps in this .csv.gz")
    parser.add_argument("--keep", type=Path, help="a folder, for the records of all jobs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step-timeout", type=float, help="recovery.step_timeout_s of the jobs")
    return parser.parse_args()


def _campaign(
    folder: Path, arguments: argparse.Namespace
) -> tuple[dict[str, Row], str, dict[str, Any]]:
    dice = random.Random(arguments.seed)
    faults, false, refused = [], 0, 0
    for number, kinds in enumerate(_jobs(arguments.only, arguments.rounds, dice)):
        batch = [Fault(kind, dice.randrange(2)) for kind in kinds]
        false += _job(folder / str(number), batch, arguments.step_timeout)
        faults += [fault for fault in batch if not fault.refused]
        refused += sum(fault.refused for fault in batch)
        total = arguments.rounds * len(arguments.only)
        print(f"{len(faults)} of {total} faults", file=sys.stderr)
    undone, confusion = sum(fault.at is None for fault in faults), _confusion(faults)
    kept = f"{undone} faults did not come to pass, because their job had ended. " if undone else ""
    kept += f"{refused} faults could not be done. " if refused else ""
    note = "\n".join(
        (f"{kept}{false} incidents belong to no fault.\n\nNamed as:", *table(confusion))
    )
    more: dict[str, Any] = {"rounds": arguments.rounds, "seed": arguments.seed}
    more |= {"false_alarms": false, "not_come_to_pass": undone, "could_not_be_done": refused}
    more |= {"confusion": confusion}
    return _rows(faults), note, more


def _jobs(kinds: list[str], rounds: int, dice: random.Random) -> list[list[str]]:
    """Which of them each job suffers."""
    stepping = [kind for kind in kinds if KINDS[kind].steps_seen]
    others = [kind for kind in kinds if not KINDS[kind].steps_seen]
    order = [kind for _ in range(rounds) for kind in _shuffled(stepping, dice)]
    jobs = [order[first : first + JOB_OF] for first in range(0, len(order), JOB_OF)]
    for _ in range(rounds if others else 0):
        jobs.append(sorted(_shuffled(others, dice), key=lambda kind: not KINDS[kind].causes))
    return jobs


def _shuffled(kinds: list[str], dice: random.Random) -> list[str]:
    return dice.sample(kinds, len(kinds))


def _job(folder: Path, faults: list[Fault], step_timeout_s: float | None) -> int:
    """Let a job suffer these; returns how many incidents belong to none of them."""
    folder.mkdir()
    stage = Stage(folder)
    try:
        return _suffered(stage, faults, step_timeout_s)
    finally:
        stage.close()


def _suffered(stage: Stage, faults: list[Fault], step_timeout_s: float | None) -> int:
    folder = stage.folder
    for fault in faults:
        if why := stage.missing.get(KINDS[fault.kind].needs):
            fault.refused = True
            print(f"{fault.kind} is left out: {why}", file=sys.stderr)
    faults = [fault for fault in faults if not fault.refused]
    plan = folder / "plan.json"
    orders, step = [], FIRST_STEP
    for fault in faults:
        rank = -1 if KINDS[fault.kind].everywhere else fault.rank
        orders.append({"kind": fault.kind, "rank": rank, "step": step})
        step += KINDS[fault.kind].steps
    plan.write_text(json.dumps(orders))
    if all(KINDS[fault.kind].steps_seen for fault in faults):
        words = ["--plan", str(plan), "--steps", str(step + 20)]
        process = _start(stage, words, step_timeout_s)
    else:
        process = _start_without_steps(stage, ["--plan", str(plan)], step_timeout_s)
    with _ending(process):
        _attend(process, stage, plan, faults)
    incidents = _incidents(folder)
    for number, fault in enumerate(faults):
        marks = [*folder.glob(f"plan.json.{number}"), *folder.glob(f"plan.json.{number}.*")]
        at = min((float(mark.read_text()) for mark in marks), default=None)
        fault.at = at if at is None else max(at, fault.harmed_at)
    _noted(faults, folder / "home" / "jobs" / NAME / "journal.jsonl")
    return _matched([fault for fault in faults if KINDS[fault.kind].fact is None], incidents)


def _start(
    stage: Stage, words: list[str], step_timeout_s: float | None = None
) -> "subprocess.Popen[bytes]":
    recovery: dict[str, Any] = {"check_replicas_every": 10, "step_timeout_s": step_timeout_s}
    job = {
        "script": str(SCRIPTS / "faulty.py"),
        "args": [*words, "--place", str(stage.folder)],
        "checkpoints": {"shared": {"path": str(stage.folder / "checkpoints"), "every_s": 2}},
        "nodes": {"count": 2, "spares": 1},
        "snapshots": {"every_steps": 1},
    }
    return _run(stage, job, recovery)


def _start_without_steps(
    stage: Stage, words: list[str], step_timeout_s: float | None
) -> "subprocess.Popen[bytes]":
    recovery: dict[str, Any] = {"hang_timeout_s": NO_STEPS_S, "step_timeout_s": step_timeout_s}
    job = {
        "script": str(SCRIPTS / "without_steps.py"),
        "args": [*words, "--meant-s", f"{3 * NO_STEPS_S:g}"],
        "nodes": {"count": 2},
        "framework": "pytorch",
    }
    return _run(stage, job, recovery)


def _run(stage: Stage, job: dict[str, Any], recovery: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start it. What is None is left to the defaults."""
    folder = stage.folder
    recovery = {name: value for name, value in recovery.items() if value is not None}
    job |= {"name": NAME, "recovery": {"max_restarts": 1000, **recovery}}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    environment = {
        **os.environ,
        "HOLDFAST_HOME": str(folder / "home"),
        "HOLDFAST_HEALTH_ROOT": f"{folder}/machines/{{node}}",
        "OMP_NUM_THREADS": "1",
    }
    command = [*stage.words, HOLDFAST, "run", str(folder / "job.yaml")]
    with open(folder / "terminal", "wb") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out)


@contextlib.contextmanager
def _ending(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Whatever ends this block, and us with it, the job ends, too: first cleanly, then at once."""
    try:
        yield
    finally:
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOPS_WITHIN_S)


def _attend(
    process: "subprocess.Popen[bytes]", stage: Stage, plan: Path, faults: list[Fault]
) -> None:
    """Do to agents what the script only announces, and end a job that does not end."""
    done: set[int] = set()
    end = time.monotonic() + LIMIT_S
    while process.poll() is None:
        for number, fault in enumerate(faults):
            if number not in done and Path(f"{plan}.{number}").exists():
                done.add(number)
                _from_outside(stage, fault)
            _taken_back(fault, time.monotonic())
        if time.monotonic() > end:
            process.send_signal(signal.SIGINT)
            end += 30.0
        time.sleep(0.005)
    for fault in faults:
        _taken_back(fault, math.inf)


def _from_outside(stage: Stage, fault: Fault) -> None:
    """What the script can only announce."""
    if not KINDS[fault.kind].outside:
        return
    folder = stage.folder / "home" / "jobs" / NAME
    try:
        if fault.kind == "XID":
            stage.log(chaos.victim_of(folder, fault.rank).node.name, XID)
            return
        kind = fault.kind.removeprefix("checkpoint ")
        done = chaos.inject(folder, kind, fault.rank)
        fault.harmed_at, fault.node, fault.undo = done.at, done.victim.node.node, done.undo
        fault.undo_at = time.monotonic() + LASTS_S.get(fault.kind, LASTS_ELSE_S)
    except Error as error:
        fault.refused = True
        print(f"{fault.kind} of rank {fault.rank}: {error}", file=sys.stderr)


def _taken_back(fault: Fault, now: float) -> None:
    """Once it has lasted. What is done to agents is not: these are replaced."""
    if fault.undo is not None and now >= fault.undo_at:
        if not fault.kind.startswith("agent"):
            fault.undo()
        fault.undo = None


def _ask(folder: Path, *words: str) -> str:
    environment = {**os.environ, "HOLDFAST_HOME": str(folder / "home")}
    ran = subprocess.run(
        [HOLDFAST, *words, NAME, "--json"], env=environment, capture_output=True, check=False
    )
    return ran.stdout.decode()


def _incidents(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_ask(folder, "incidents"))
    job = folder / "home" / "jobs" / NAME
    return [incident | {"known_problem": _problem_of(incident, job)} for incident in found]


def _problem_of(incident: dict[str, Any], job: Path) -> str | None:
    """The known problem that `holdfast why` names for it."""
    known = known_problem(msgspec.convert(incident, Incident), job)
    return None if known is None else known.slug


def _noted(faults: list[Fault], book: Path) -> None:
    """Find what is told of faults that are only told, and whose nodes are named as silent: the
    first such fact after each, before the next one."""
    facts = [(entry.at, entry.event) for entry in journal.entries(book)]
    times = sorted(fault.at for fault in faults if fault.at is not None)
    for fault in faults:
        wanted, done = KINDS[fault.kind].fact, fault.at
        if done is None:
            continue
        until = next((at for at in times if at > done), math.inf)
        own = [(at, fact) for at, fact in facts if done <= at < until]
        fault.named_s = next((at - done for at, fact in own if _names(fact, fault.node)), None)
        if wanted is None:
            continue
        later = ((at, fact) for at, fact in own if isinstance(fact, wanted))
        for at, told in ((at, _told(fact)) for at, fact in later):
            if told is not None:
                fault.after_s = at - done
                fault.cause, fault.blamed = told
                break


def _names(fact: AnyEvent, node: str) -> bool:
    """Whether it says that this node is silent."""
    return (
        isinstance(fact, HealthChanged)
        and (fact.node, fact.condition) == (node, SILENT)
        and fact.severity is not Severity.OK
    )


def _told(fact: AnyEvent) -> tuple[str, int] | None:
    """What such a fact calls the fault, and whom it names."""
    match fact:
        case StragglersFound(stragglers=(first, *_)):
            by_input = first.cause is SlowBy.INPUT
            return "straggler by input" if by_input else "straggler", first.rank
        case CheckpointFailed():
            return "disk-full" if "No space left" in fact.why else "checkpoint", -1
        case NumbersSpiked():
            return "spike", fact.rank
        case _:
            return None


def _matched(faults: list[Fault], incidents: list[dict[str, Any]]) -> int:
    """Each incident to the newest fault before it was found; returns how many are left over, also
    because what was done was no fault."""
    done = sorted((f for f in faults if f.at is not None), key=lambda fault: fault.at or 0.0)
    left = 0
    for incident in incidents:
        found_at = incident["actions"][0]["at"]
        before = [fault for fault in done if (fault.at or 0.0) <= found_at]
        fault = before[-1] if before else None
        if fault is None or fault.cause or not KINDS[fault.kind].causes:
            left += 1
            continue
        fault.cause, fault.blamed = _called(fault.kind, incident), incident["rank"]
        fault.after_s = max(0.0, found_at - (fault.at or 0.0))
    return left


def _called(kind: str, incident: dict[str, Any]) -> str:
    """Its cause; where other exceptions have the same one, with the known problem."""
    cause: str = incident["cause"]
    known = incident["known_problem"] if KINDS[kind].with_problem else None
    return cause if known is None else f"{cause}: {known}"


def _rows(faults: list[Fault]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for kind in dict.fromkeys(fault.kind for fault in faults):
        same = [fault for fault in faults if fault.kind == kind and fault.at is not None]
        if same:
            rows[kind] = _row(same)
    real = [fault for fault in faults if fault.at is not None and KINDS[fault.kind].causes]
    rows["all"] = _row(real)
    return rows


def _row(faults: list[Fault]) -> Row:
    found = [fault for fault in faults if fault.cause]
    acts = [fault.after_s for fault in found if fault.after_s is not None]
    waits = [min(f.after_s, f.named_s or math.inf) for f in found if f.after_s is not None]
    ranked = [fault for fault in found if KINDS[fault.kind].has_rank]
    causes = Counter(fault.cause for fault in found)
    return {
        "faults": len(faults),
        "detected": len(found),
        "median_s": round(median(waits), 3) if waits else None,
        "worst_s": round(max(waits), 3) if waits else None,
        "acted_s": round(median(acts), 3) if acts else None,
        "acted_worst_s": round(max(acts), 3) if acts else None,
        "right_cause": sum(fault.cause in KINDS[fault.kind].causes for fault in found),
        "right_rank": sum(f.blamed == f.rank for f in ranked) if ranked else None,
        "of": len(ranked) if ranked else None,
        "causes": " ".join(f"{cause}:{count}" for cause, count in causes.most_common(4)),
    }


def _confusion(faults: list[Fault]) -> dict[str, Row]:
    """The confusion matrix: kinds of faults by the causes that were named."""
    done = [fault for fault in faults if fault.at is not None]
    named = sorted({fault.cause or "(not seen)" for fault in done})
    counts = Counter((fault.kind, fault.cause or "(not seen)") for fault in done)
    return {
        kind: {cause: counts[kind, cause] or None for cause in named}
        for kind in dict.fromkeys(fault.kind for fault in done)
    }


def _clean(
    folder: Path, arguments: argparse.Namespace
) -> tuple[dict[str, Row], str, dict[str, Any]]:
    """Noise and no fault."""
    stage, seconds, record = Stage(folder), arguments.clean, arguments.record
    notes = ["--record", str(folder / "steps")]
    with contextlib.closing(stage):
        process = _start(stage, ["--noise", "--steps", "100000000", *(notes if record else ())])
        with _ending(process):
            end = time.monotonic() + seconds
            while process.poll() is None and time.monotonic() < end:
                time.sleep(1.0)
            status = json.loads(_ask(folder, "status"))
        incidents = _incidents(folder)
    journal = (folder / "home" / "jobs" / NAME / "journal.jsonl").read_text()
    row: Row = {
        "seconds": seconds,
        "steps": status["step"],
        "suspicions": journal.count('"type":"HangSuspected","attempt"') // 2,
        "false_alarms": len(incidents),
    }
    if record is not None:
        about = {"command": f"faults.py --clean {seconds:g}", **machine(), **row}
        noise.keep(record, noise.merged(sorted(folder.glob("steps.*"))), about)
    return {"noise": row}, "\n".join(incident["summary"] for incident in incidents), {}


if __name__ == "__main__":
    main()
