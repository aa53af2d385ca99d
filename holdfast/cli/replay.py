"""`holdfast replay`: repeat a step twice from a checkpoint, and compare bit for bit.

The job runs again as a copy of its own, from the newest checkpoint before the step to its end, with
the same batches and random numbers; its records go to a temporary folder and it saves nothing.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, json_result, result, talk
from holdfast.errors import Error, ExitStatus

if TYPE_CHECKING:
    from holdfast.checkpoint.key import Key
    from holdfast.spec import Job

NAME_CHARS = 40
ABSENCE_S = 30.0  # after which what is left of a repetition ends by itself


def replay(
    step: Annotated[int, typer.Option("--step", min=1, help="The step to repeat, from 1.")],
    name: JobName = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a step twice from a checkpoint before it: is it the data, a passing fault, or this
    machine? Exit status 1 if the repetitions differ."""
    from holdfast.diagnosis.repetition import RepetitionVerdict, judge_repetition
    from holdfast.drivers.records import load_job

    folder = job_folder(name)
    job = load_job(folder)
    place, key = _checkpoint(folder, step)
    talk(f"{job.name}: repeating step {step} twice from the checkpoint of step {key.step}")
    first, again = (_run(job, place, step, number) for number in (1, 2))
    told = _logged(folder / "metrics.jsonl", key.step, step)
    found = judge_repetition(step, (first[0], again[0]), (told, again[1]))
    if as_json:
        json_result({"job": job.name, "step": step, "from_step": key.step, **found._asdict()})
    else:
        result(f"{found.verdict}: {found.summary}")
    if found.verdict is RepetitionVerdict.MACHINE:
        talk("help: holdfast check   (and repeat the step on another machine)")
        raise typer.Exit(ExitStatus.JOB_FAILED)


def _checkpoint(folder: Path, step: int) -> "tuple[str, Key]":
    """The newest checkpoint before this step that one place has whole. Raises `Error`
    checkpoint-not-found."""
    from holdfast.checkpoint import catalog
    from holdfast.checkpoint.manifest import folder_of
    from holdfast.checkpoint.open_store import open_store
    from holdfast.cli.places import tier_places

    found = []
    for place in tier_places(folder):
        if place.options:
            continue
        for one in catalog.committed(open_store(place.where)):
            if one.step < step and len(one.ranks) == one.world_size:
                found.append((one.key.step, one.key.attempt, place.where, one.key))
    if not found:
        raise Error(
            "checkpoint-not-found",
            f"job {folder.name} has no checkpoint of a step before {step}",
            why="a step is repeated from a durable checkpoint; snapshots in memory are gone with "
            "the job",
            help=f"holdfast checkpoint list {folder.name}",
        )
    *_, where, key = max(found)
    return f"{where.rstrip('/')}/{folder_of(key)}", key


Digests = dict[int, dict[str, str]]


def _run(job: "Job", place: str, step: int, number: int) -> tuple[Digests, dict[int, str]]:
    """One repetition: digests of the state after the step by rank, and what was logged."""
    with tempfile.TemporaryDirectory(prefix="holdfast-replay-") as temporary:
        home, said = Path(temporary, "home"), Path(temporary, "said")
        said.mkdir()
        copy = _copy(job, place)
        file = Path(temporary, "job.yaml")
        file.write_text(copy.model_dump_json(exclude_defaults=True))
        environment = {
            **os.environ,
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_REPLAY": f"{step}:{said}",
        }
        output = Path(temporary, "output")
        _wait(file, environment, output)
        found = _said(said)
        if found is None:
            raise _failed(job.name, number, output.read_text(errors="replace"))
        first = int(place.rpartition("step-")[2].partition(".")[0])
        return found, _logged(home / "jobs" / copy.name / "metrics.jsonl", first, step)


def _wait(file: Path, environment: dict[str, str], output: Path) -> None:
    """Run the copy until it ends. Whoever interrupts us waits until nothing of it is left."""
    command = [sys.executable, "-m", "holdfast.cli", "run", str(file)]
    with output.open("wb") as out:
        ran = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        ran.wait()
    except KeyboardInterrupt:
        ran.send_signal(signal.SIGINT)
        ran.wait()
        raise


def _copy(job: "Job", place: str) -> "Job":
    """The same job, that begins from this checkpoint, saves nothing and is not restarted."""
    tiers = type(job.checkpoints)(start_from=place)
    recovery: dict[str, Any] = {"max_restarts": 0, "check": "off", "on_nan": "ignore"}
    recovery["controller_absence_s"] = ABSENCE_S
    changes: dict[str, Any] = {
        "name": f"{job.name[:NAME_CHARS].rstrip('-')}-replay",
        "checkpoints": tiers,
        "nodes": job.nodes.model_copy(update={"spares": 0}),
        "recovery": job.recovery.model_copy(update=recovery),
        "logs": job.logs.model_copy(update={"terminal": "all"}),
    }
    return job.model_copy(update=changes)


def _said(folder: Path) -> Digests | None:
    """What every rank has left; None unless all of them have."""
    import msgspec

    found: Digests = {}
    world_size = 1
    for file in folder.glob("rank-*.json"):
        said = msgspec.json.decode(file.read_bytes())
        world_size = said["world_size"]
        found[int(file.stem.removeprefix("rank-"))] = said["digests"]
    return found if len(found) == world_size else None


def _logged(file: Path, after: int, through: int) -> dict[int, str]:
    """What rank 0 logged in these steps, the first time it did them; nothing where it is gone."""
    import msgspec

    found: dict[int, str] = {}
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            told = msgspec.json.decode(line)
            step, bad = told["step"], told.get("not_finite") or {}
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
            continue
        values = {name: bad.get(name, told.get(name)) for name in ("loss", "grad_norm")}
        words = [f"{name} {value}" for name, value in values.items() if value is not None]
        if after < step <= through and words:
            found.setdefault(step, ", ".join(words))
    return found


def _failed(job: str, number: int, said: str) -> Error:
    last = [line for line in said.strip().splitlines() if line.strip()][-3:]
    return Error(
        "replay-failed",
        f"repetition {number} of job {job} did not come to the end of the step",
        why="; ".join(last) or "it said nothing",
        help=f"holdfast why {job}   (the script has to call run.track() of holdfast.train)",
    )
