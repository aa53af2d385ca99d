"""Children that have ended are reaped, whoever else waits for them."""

import platform
import subprocess
import sys

from holdfast.agent import processes
from tests.patience import until


def in_a_process_of_its_own(body: str) -> str:
    """Reaping takes every child there is, so not in the process of the tests."""
    imports = "import os, signal, subprocess, sys\nfrom holdfast.agent.processes import reap\n"
    ran = subprocess.run(
        [sys.executable, "-c", imports + body], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_child_that_a_thread_has_waited_for_in_between_ends_nobody() -> None:
    told = in_a_process_of_its_own(
        """
first = subprocess.Popen([sys.executable, "-c", "pass"])
second = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
for child in (first, second):
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
def leads_group(pid):
    if pid == first.pid:
        os.waitpid(pid, 0)  # what `subprocess.run` does in its thread, just now
    return False
print([(death.pid == second.pid, death.exit_code) for death in reap(leads_group)])
"""
    )
    assert told.strip() == "[(True, 3)]"


def test_every_child_that_has_ended_is_told_once_with_how_it_ended() -> None:
    told = in_a_process_of_its_own(
        """
first = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
second = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"],
                          stdout=subprocess.PIPE)
second.stdout.readline()
second.send_signal(signal.SIGKILL)
for child in (first, second):
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
found = {death.pid: (death.exit_code, death.signal) for death in reap(lambda pid: False)}
assert found == {first.pid: (7, None), second.pid: (None, 9)}, found
assert list(reap(lambda pid: False)) == []
print("well")
"""
    )
    assert told.strip() == "well"


def test_who_comes_after_the_death_of_its_parent_dies_of_the_same_signal() -> None:
    told = in_a_process_of_its_own(
        """
from holdfast.agent.processes import die_with_parent
child = os.fork()
if child == 0:
    die_with_parent(1 << 22, signal.SIGKILL)  # no process has that number
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert told.strip() == "-9"


def test_who_has_ended_but_for_a_thread_does_not_wait_to_be_reaped() -> None:
    """The kernel shows it as a zombie, and nobody can reap it yet."""
    number = {"x86_64": 60}.get(platform.machine(), 93)  # of exit(2), of one thread
    source = f"""
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall({number}, 0)
"""
    with subprocess.Popen([sys.executable, "-c", source]) as child:
        until(lambda: processes.parent_of(child.pid) is None)
        assert not processes.waits_to_be_reaped(child.pid)
        child.kill()
        until(lambda: processes.waits_to_be_reaped(child.pid))
    assert not processes.waits_to_be_reaped(child.pid)
