"""`holdfast doctor`: will jobs run on this machine, or in a cluster, and if not, what to do."""

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from holdfast.cli.cluster import Context, Namespace, On, Reach, connected, reached
from holdfast.cli.controller import Where
from holdfast.cli.output import AsJson, json_result, result, styled
from holdfast.cli.render import EngineName, engine_named, require_sound
from holdfast.errors import Error, ExitStatus

if TYPE_CHECKING:
    from holdfast.spec import Job

GIB = 1024**3
MIN_PYTHON = (3, 11)
MIN_DISK_BYTES = GIB
MIN_MEMORY_BYTES = GIB
MIN_OPEN_FILES = 1024
IMPORT_TIMEOUT_S = 180


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    found: str
    remedy: str


def doctor(
    file: Annotated[
        Path | None,
        typer.Argument(help="A job file, to check a cluster for that job.", show_default=False),
    ] = None,
    engine: EngineName = None,
    image_check: Annotated[
        bool, typer.Option("--image-check", help="Start a pod that checks the job's image.")
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine, or a cluster; exit status 3 if something is missing."""
    reach = reached(on, context, namespace)
    if reach is None:
        if file is not None or engine is not None or image_check:
            raise Error(
                "usage",
                "a job file, --engine and --image-check apply to a cluster",
                why="without --on kubernetes, doctor checks this machine only",
                help="holdfast validate job.yaml   (or add --on kubernetes)",
            )
        checks = [*(check() for check in CHECKS), *_health()]
    else:
        checks = _cluster(reach, file, engine, image_check)
    _show(checks, as_json)


def _cluster(
    reach: Reach, file: Path | None, engine: str | None, image_check: bool
) -> "list[Check]":
    from holdfast.drivers.kubernetes.doctor import Patient
    from holdfast.drivers.kubernetes.doctor_visit import nearest, server_version, visit
    from holdfast.drivers.kubernetes.manifests.render import requested
    from holdfast.spec.load import job_as_written

    with connected(reach) as session:
        said = session.do(server_version(session.cluster))
        job = job_as_written(file) if file is not None else _smallest()
        request = requested(
            job,
            engine=engine_named(engine) if engine is not None else None,
            namespace=session.cluster.namespace,
            version=nearest(said),
        )
        if file is not None:
            require_sound(request)
        patient = Patient(session.cluster, request, file is not None, said, session.words)
        found = session.do(visit(patient, look_at_image=image_check))
    return [Check(*check) for check in found]


def _health() -> "list[Check]":
    from holdfast.cli.doctor_health import checks

    return [Check(*check) for check in checks(_existing(_jobs_home()))]


def _smallest() -> "Job":
    from holdfast.spec import job_from_dict

    data = {"name": "holdfast-doctor", "image": "none", "script": "train.py"}
    return job_from_dict(data, where="the smallest job")


def _show(checks: "list[Check]", as_json: bool) -> None:
    if as_json:
        json_result({"ok": all(c.ok for c in checks), "checks": [_fields(c) for c in checks]})
    else:
        for check in checks:
            result(_line(check))
    if not all(c.ok for c in checks):
        raise typer.Exit(ExitStatus.PLATFORM)


def _fields(check: Check) -> dict[str, str | bool | None]:
    remedy = None if check.ok else check.remedy
    return {"name": check.name, "ok": check.ok, "found": check.found, "help": remedy}


def _line(check: Check) -> str:
    mark = styled("ok ", "green") if check.ok else styled("bad", "red")
    found = check.found.replace("\n", "\n     ")
    line = f"{mark}  {check.name}: {found}"
    return line if check.ok else f"{line}\n     help: {check.remedy}"


def _linux() -> Check:
    found = f"{platform.system()} {platform.release()}"
    return Check("system", sys.platform == "linux", found, "run Holdfast on Linux")


def _python() -> Check:
    good = sys.version_info >= MIN_PYTHON
    return Check("python", good, platform.python_version(), "install Python 3.11 or newer")


def _torch() -> Check:
    """In a process of its own: importing it here would make everything after it slow."""
    code = (
        "import torch; from holdfast.devices import seen_by; kind, count = seen_by(torch);"
        "print(f'{torch.__version__}, {count} devices of kind {kind.kind}' if count else "
        "f'{torch.__version__}, no accelerator')"
    )
    remedy = "pip install 'holdfast[train]'"
    try:
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return Check(
            "torch", False, f"importing torch timed out after {IMPORT_TIMEOUT_S} s", remedy
        )
    if run.returncode == 0:
        return Check("torch", True, run.stdout.strip(), remedy)
    last = (run.stderr.strip().splitlines() or ["no output"])[-1]
    return Check("torch", False, f"cannot be imported: {last}", remedy)


def _device() -> Check:
    """By what the kernel shows, as agents count it; whether PyTorch can use it is said beside."""
    from holdfast import devices

    traits, number = devices.found(os.environ), devices.count("auto", os.environ)
    if traits.kind == "cpu":
        return Check("device", True, f"no accelerator; the processor, {traits.library}", "")
    told = f"{number} of kind {traits.kind} ({traits.vendor}), {traits.library}"
    chosen = [name for name in traits.visible if name in os.environ]
    return Check("device", True, f"{told}, chosen by {chosen[0]}" if chosen else told, "")


def _memory() -> Check:
    """Snapshots live in shared memory, which is counted as memory in use."""
    import psutil

    free = int(psutil.virtual_memory().available)
    remedy = "snapshots need memory for two copies of the training state: free some memory"
    try:
        os.close(os.memfd_create("holdfast-doctor", os.MFD_CLOEXEC))
    except OSError as exc:
        return Check("shared memory", False, f"memfd_create: {exc.strerror}", remedy)
    found = f"{free / GIB:.1f} GiB of memory free"
    return Check("shared memory", free >= MIN_MEMORY_BYTES, found, remedy)


def _home() -> Check:
    folder = _existing(_jobs_home())
    remedy = "set HOLDFAST_HOME to a writable folder"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"holdfast")
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        return Check("home", False, f"{folder}: {exc.strerror}", remedy)
    return Check("home", True, f"{folder} is writable", remedy)


def _disk() -> Check:
    folder = _existing(_jobs_home())
    free = shutil.disk_usage(folder).free
    remedy = "remove old jobs, or set HOLDFAST_HOME to a folder on a larger disk"
    return Check("disk", free >= MIN_DISK_BYTES, f"{free / GIB:.1f} GiB free in {folder}", remedy)


def _jobs_home() -> Path:
    from holdfast.drivers.records import jobs_home

    return jobs_home()


def _existing(folder: Path) -> Path:
    """The nearest folder above that exists."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    remedy = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}"
    return Check("open files", soft >= MIN_OPEN_FILES, f"limit {soft}", remedy)


def _loopback() -> Check:
    remedy = "bring the loopback interface up: ip link set lo up"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname(), timeout=5):
                return Check("loopback", True, "127.0.0.1 is reachable", remedy)
    except OSError as exc:
        return Check("loopback", False, f"127.0.0.1: {exc.strerror or exc}", remedy)


CHECKS = (_linux, _python, _torch, _device, _memory, _home, _disk, _open_files, _loopback)
