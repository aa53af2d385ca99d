"""What a worker of another framework does once it has its rank, before its script goes on.

The workers of TensorFlow and Paddle tell each other where they will listen. For XGBoost rank 0
starts the tracker of this attempt, in a process of its own that dies with it, and tells its port.
"""

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection

from holdfast import later_imports, meeting
from holdfast.agent import processes
from holdfast.agent.frameworks import sigterm, variables
from holdfast.agent.storage.places import ADDRESS


def begin() -> None:
    """Called when the environment has the rank; changes the environment."""
    framework = os.environ.get(variables.FRAMEWORK, "")
    if framework not in variables.MEETING:
        return
    met = meeting.meet(meeting.Seat.of(os.environ), _endpoint(framework))
    os.environ.update(variables.from_meeting(framework, os.environ, met.said))
    if framework == "tensorflow":
        sigterm.let_it_end(os.environ)
    if framework == "jax":  # not there yet with `warm.mode: off`
        cluster = "holdfast.pytrees.jax_cluster"
        wanted = {"jax": lambda _: importlib.import_module(cluster)}
        later_imports.when_imported(wanted)  # type: ignore[arg-type]
    if _serves(framework, os.environ):
        _end_with(met.connections[0])
        return
    for connection in met.connections:  # whoever serves learns of our end by theirs
        os.set_inheritable(connection.fileno(), True)
    meeting.kept.extend(met.connections)


def begin_in(worker: int) -> None:
    """`begin()` in this process; a child of the script may ask for the rank as well."""
    if os.getpid() == worker:
        begin()


def _endpoint(framework: str) -> str:
    """What this worker has to say: where it will listen, or where the tracker does."""
    host = os.environ[ADDRESS].rpartition(":")[0]
    if framework != "xgboost":
        return f"{host}:{meeting.free_port(host.strip('[]'))}"
    return f"{host}:{_start_tracker(host.strip('[]'))}" if os.environ["RANK"] == "0" else ""


def _serves(framework: str, environ: Mapping[str, str]) -> bool:
    """Whether nothing but the chief's end ends this process: with parameter servers, everyone but
    the chief and the evaluator runs a server for good."""
    if framework != "tensorflow":
        return False
    roles = json.loads(environ[variables.ROLES])
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    kind, _ = variables.role_of(rank, size, roles)
    return bool(roles["ps"]) and rank > 0 and kind != "evaluator"


def _end_with(chief: Connection) -> None:
    """If the chief has failed, its agent tells, and this end counts for nothing."""

    def wait() -> None:
        meeting.wait_for_end(chief)
        sys.stdout.flush()
        os._exit(0)

    threading.Thread(target=wait, name="holdfast-chief", daemon=True).start()


def _start_tracker(host: str) -> int:
    """Returns its port."""
    parent, (read_end, write_end) = os.getpid(), os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        try:
            processes.die_with_parent(parent, signal.SIGKILL)
            _track(host, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    told = os.read(read_end, 64)
    os.close(read_end)
    if not told:
        raise RuntimeError("the tracker of XGBoost could not be started (see above)")
    return int(told)


def _track(host: str, report: int) -> None:
    """Until the job's end; the tracker serves in threads of its own."""
    try:
        tracker = importlib.import_module("xgboost.tracker").RabitTracker(
            n_workers=int(os.environ["WORLD_SIZE"]), host_ip=host, port=0
        )
        tracker.start()
    except Exception:
        traceback.print_exc()
        return
    os.write(report, b"%d" % tracker.worker_args()["dmlc_tracker_port"])
    while True:
        signal.pause()
