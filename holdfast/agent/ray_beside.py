"""Ray beside the agent, in a pod that KubeRay has made.

The first process of the container starts the agent, and Ray with the command that KubeRay has left
in the environment, again whenever that ends, as it does after the loss of the head; it ends as the
agent does. So Ray is not below the agent, which ends whatever is left below it between two
attempts, nor does it carry the id of the node, by which the agent finds the rest.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from holdfast.agent import processes
from holdfast.agent.notes import note

COMMAND = "KUBERAY_GEN_RAY_START_CMD"
OWN = "HOLDFAST_NODE"
SHELL = "/bin/bash"  # KubeRay writes its command for it
AGAIN_S = 1  # until Ray is started once more, which waits for a head by itself
SCRIPT = f"""
ulimit -n "${{RAY_START_ULIMIT_OPEN_FILES:-65536}}"
while :; do eval "${COMMAND}"; sleep {AGAIN_S}; done
"""
BY_SIGNAL = 128
MANY = 1 << 12  # signals at once


def accompany(environ: Mapping[str, str]) -> None:
    """Return where KubeRay has left no command; else be the parent of agent and Ray, to its end."""
    if not environ.get(COMMAND):
        return
    bare = {name: value for name, value in environ.items() if name != COMMAND}
    agent = subprocess.Popen([sys.executable, "-P", "-m", "holdfast.cli", "agent"], env=bare).pid
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda number, _: processes.signal_one(agent, number))
    os._exit(_beside(agent, environ))


def _beside(agent: int, environ: Mapping[str, str]) -> int:
    """Ray for as long as the agent lives; the exit status of the agent."""
    woken = _signals()
    ray = _start(environ)
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)  # orphans of Ray, too
        if pid == 0:
            os.read(woken, MANY)
        elif pid == agent:
            processes.signal_group(ray, signal.SIGKILL)
            os.waitpid(ray, 0)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else BY_SIGNAL - code
        elif pid == ray:
            note(f"agent: Ray's shell has ended: {processes.death_of(pid, status, 0.0).words}")
            ray = _start(environ)


def _signals() -> int:
    """What can be read as soon as there was a signal, that of a child's end included. One that
    comes just before `waitpid` would be handled only after it."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return woken


def _start(environ: Mapping[str, str]) -> int:
    variables = {name: value for name, value in environ.items() if name != OWN}
    command = [SHELL, "-c", SCRIPT]
    return subprocess.Popen(command, env=variables, start_new_session=True).pid
