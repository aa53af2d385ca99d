"""What a pod runs: Holdfast's agent, or the user's program as people start it today."""

import posixpath
import shlex
from pathlib import PurePosixPath

from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.planning.trials import NUMBER, trials_of
from holdfast.spec import Job

AGENT = ("holdfast", "agent")
MEET = """\
import os, socket, sys, time
host, *command = sys.argv[1:]
def addresses(name):
    try:
        return {found[4][0] for found in socket.getaddrinfo(name, None)}
    except OSError:
        return set()
me, end = socket.gethostname(), time.monotonic() + 300
while time.monotonic() < end:
    found = addresses(host)
    if found and (me != host.split(".")[0] or found & addresses(me)):
        break
    time.sleep(0.5)
os.execvp(command[0], command)
"""
"""Names of pods are known seconds after they run. torch's c10d rendezvous asks once, at its start,
whether the endpoint is this machine: asked too early nobody is the host, and all wait until the
read timeout. (`--local-addr` does not help: it is only told to others.) A first pod that was
replaced waits until its name is no longer that of the one before."""
FIRST_S = 300  # until the first node is there; also until torchrun gives up a silent one


def agent(_request: Request, *options: str) -> tuple[str, ...]:
    """Managed mode: the agent as PID 1; it learns all else from its environment."""
    return (*AGENT, *options)


def script(request: Request) -> tuple[str, ...]:
    """Plain mode: one process of the user's program."""
    job = request.job
    if job.command is not None:
        return (*job.command, *job.args)
    assert job.image is not None, "checked before"
    return (job.image.python, *_python_target(job), *job.args)


def torchrun(request: Request, *options: str) -> tuple[str, ...]:
    """Plain mode: the program under torchrun, one process per worker; a command stays as it is."""
    job = request.job
    if job.command is not None:
        return script(request)
    each = f"--nproc-per-node={request.workers}"
    return (*_torchrun(job), *options, each, *_python_target(job), *job.args)


def _torchrun(job: Job) -> tuple[str, ...]:
    """torchrun of the Python that was asked for."""
    assert job.image is not None, "checked before"
    python = job.image.python
    return ("torchrun",) if python == "python" else (python, "-m", "torch.distributed.run")


def trial(request: Request, command: tuple[str, ...]) -> tuple[str, ...]:
    """This command with the options of a trial: all pods of a Job get the same one, so a shell
    looks its number up."""
    options = [one.options for one in trials_of(request.job)]
    if not any(options):
        return command
    words = (shlex.join(one).replace("$", "$$") for one in options)  # as Kubernetes has it
    cases = "".join(f'{at}) set -- "$@" {said} ;;\n' for at, said in enumerate(words))
    choose = f'case "${NUMBER}" in\n{cases}esac\nexec "$@"'
    return ("sh", "-c", choose, "trial", *command)


def paddle(request: Request) -> tuple[str, ...]:
    """Plain mode: the program under Paddle's launcher, which takes the rest from PADDLE_*."""
    if request.job.command is not None:
        return script(request)
    assert request.job.image is not None, "checked before"
    launcher = (request.job.image.python, "-m", "paddle.distributed.launch")
    return (*launcher, f"--nproc_per_node={request.workers}", *script(request))


def meeting(request: Request, host: str, command: tuple[str, ...]) -> tuple[str, ...]:
    """This command, once the name of the node that all meet at is known. A command of the user's
    stays as it is."""
    assert request.job.image is not None, "checked before"
    python = request.job.image.python
    waits = "python3" if python == "python" else python  # every Python goes by that name, too
    return command if request.job.command is not None else (waits, "-c", MEET, host, *command)


def rendezvous(request: Request, host: str, *, in_place: bool = True) -> tuple[str, ...]:
    """Options of torchrun for its c10d rendezvous on the node called `host`.

    The store lives in that node's torchrun: when the node goes, all others start anew with it.
    Others wait for it until its machine has pulled the image, longer than torchrun's own minute.
    Not `in_place`: torchrun restarts nothing, because the engine restarts the whole job.
    """
    count = f"--nnodes={_count(request)}"
    port = request.job.network.ports.rendezvous
    restarts = request.job.recovery.restarts if in_place else 0
    return (
        count,
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={host}:{port}",
        f"--rdzv-conf=read_timeout={FIRST_S}",
        f"--rdzv-id={request.name}",
        f"--max-restarts={restarts}",
    )


def _count(request: Request) -> str:
    elastic = request.job.elasticity
    if elastic is None:
        return str(request.nodes)
    return f"{elastic.min_nodes}:{elastic.max_nodes or request.nodes}"


def _python_target(job: Job) -> tuple[str, ...]:
    """A script and the working folder are both relative to the same place, and programs start in
    the working folder."""
    if job.module is not None:
        return ("-m", job.module)
    script, workdir = PurePosixPath(str(job.script)), PurePosixPath(job.workdir)
    if script.is_absolute() or workdir.is_absolute() or workdir == PurePosixPath("."):
        return (str(script),)
    return (posixpath.relpath(script, workdir),)
