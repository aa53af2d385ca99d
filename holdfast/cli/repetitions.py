"""Repeating a step: a copy of the job runs from the newest checkpoint before it to its end.

With the same batches and random numbers; its records go to a temporary folder and it saves nothing.
On other nodes than the job's, or on fewer, where these are named.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.checkpoint.key import Key
    from holdfast.controller.skipping import Spans
    from holdfast.spec import Job

NAME_CHARS = 40
ABSENCE_S = 30.0  # after which what is left of a repetition ends by itself
Digests = dict[int, dict[str, str]]


class RepeatedStep(NamedTuple):
    """What is repeated: from this place to the end of this step."""

    job: "Job"
    place: str
    from_step: int
    step: int
    skips: "Spans" = ()  # batches that the job leaves out


class Ran(NamedTuple):
    """One repetition: digests of the state after the step by rank, and what was logged."""

    digests: Digests
    logged: dict[int, str]


def wanted(folder: Path, step: int) -> RepeatedStep:
    """The step, from the newest checkpoint before it that one place has whole. Raises `Error`
    checkpoint-not-found."""
    from holdfast.controller import skipping
    from holdfast.drivers.records import load_job, state_of

    place, key = _checkpoint(folder, step)
    skips = skipping.spans(state_of(folder))
    return RepeatedStep(load_job(folder), place, key.step, step, skips)


def _checkpoint(folder: Path, step: int) -> "tuple[str, Key]":
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


def run(what: RepeatedStep, name: str, nodes: Sequence[str]) -> Ran:
    """One repetition on these nodes. `name` is that of the repetition. Raises `Error`
    replay-failed."""
    from holdfast.agent.metrics_file import logged_steps
    from holdfast.drivers.nodes import NAMES_VARIABLE

    with tempfile.TemporaryDirectory(prefix="holdfast-replay-") as temporary:
        home, said = Path(temporary, "home"), Path(temporary, "said")
        said.mkdir()
        copy = _copy(what.job, what.place, len(nodes))
        file = Path(temporary, "job.yaml")
        file.write_text(copy.model_dump_json(exclude_defaults=True), encoding="utf-8")
        environment = {
            **os.environ,
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_REPLAY": f"{what.step}:{said}",
            "HOLDFAST_REPLAY_SKIPS": json.dumps(what.skips),
            NAMES_VARIABLE: ",".join(nodes),
        }
        output = Path(temporary, "output")
        _wait(file, environment, output)
        found = _said(said)
        if found is None:
            raise _failed(what.job.name, name, output.read_text(errors="replace"))
        metrics = home / "jobs" / copy.name / "metrics.jsonl"
        return Ran(found, logged_steps(metrics, what.from_step, what.step))


def _wait(file: Path, environment: dict[str, str], output: Path) -> None:
    """Run the copy until it ends. Whoever interrupts us waits until nothing of it is left."""
    command = [sys.executable, "-P", "-m", "holdfast.cli", "run", str(file)]
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


def _copy(job: "Job", place: str, nodes: int) -> "Job":
    """The same job on so many nodes, from this checkpoint; it saves nothing, is not restarted."""
    tiers = type(job.checkpoints)(start_from=place)
    recovery: dict[str, Any] = {"max_restarts": 0, "check": "off", "on_nan": "ignore"}
    recovery["controller_absence_s"] = ABSENCE_S
    changes: dict[str, Any] = {
        "name": f"{job.name[:NAME_CHARS].rstrip('-')}-replay",
        "checkpoints": tiers,
        "nodes": job.nodes.model_copy(update={"count": nodes, "spares": 0}),
        "recovery": job.recovery.model_copy(update=recovery),
        "notify": (),
        "otlp": None,
        "track": (),
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


def _failed(job: str, name: str, said: str) -> Error:
    last = [line for line in said.strip().splitlines() if line.strip()][-3:]
    return Error(
        "replay-failed",
        f"{name} of job {job} did not complete the step",
        why="; ".join(last) or "it printed nothing",
        help=f"holdfast why {job}   (the script has to call run.track() of holdfast.train)",
    )
