"""What a node promises when something breaks: real signals, real processes, a real full disk."""

import asyncio
import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent import child, fork_protocol, processes, store_offer
from holdfast.end_lock import EndLock
from holdfast.events import NodeReady, WorkerExited
from holdfast.messages import Stop, WorkersStarted
from tests.agent.conftest import Node
from tests.agent.controller_stub import AgentProcess, StubController, is_alive, until
from tests.more import MORE
from tests.patience import PATIENCE_S

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
FORKING = """
import os, sys, time
for move in (lambda: None, {away}):
    if os.fork() == 0:
        move()
        os.write(1, b"child %d\\n" % os.getpid())
        time.sleep(600)
{then}
"""


def run_to_its_end(node: Node, source: str = "", **job: object) -> tuple[WorkerExited, str]:
    """One attempt; the fact of its death and its log."""
    controller, agent = node(source, **job)
    controller.ready()
    controller.start()
    exited = controller.exited()
    return exited, whole_log(agent, exited)


def whole_log(agent: AgentProcess, exited: WorkerExited, attempt: int = 1) -> str:
    """With what the worker says of its own exception while it still ends."""
    if exited.error is not None and exited.error.type != "SystemExit":
        last = exited.error.traceback.rpartition("\n")[0].rpartition("\n")[2]
        until(lambda: last in agent.log(attempt=attempt), "what the worker says of it")
    return agent.log(attempt=attempt)


def test_a_killed_worker_is_reported_with_its_signal(node: Node) -> None:
    controller, _ = node(SLEEP)
    controller.ready()
    controller.start()
    (pid,) = controller.started()
    os.kill(pid, signal.SIGKILL)
    exited = controller.exited()
    assert (exited.exit_code, exited.signal, exited.error) == (None, signal.SIGKILL, None)
    assert exited.log == "logs/attempt-1/rank-0.log"


def test_a_segfault_is_reported_with_its_signal(node: Node) -> None:
    exited, _ = run_to_its_end(node, "import ctypes; print('x'); ctypes.string_at(0)")
    assert (exited.exit_code, exited.signal) == (None, signal.SIGSEGV)


def test_an_import_error_names_the_importing_line(node: Node) -> None:
    exited, _ = run_to_its_end(node, "\nimport no_such_module\n")
    assert exited.exit_code == 1 and exited.error is not None
    assert (exited.error.type, exited.error.line) == ("ModuleNotFoundError", 2)


DECODE = "json.decoder.JSONDecodeError"
ENDS = [
    ("import sys; sys.exit(3)", 3, "SystemExit"),
    ("import sys; sys.exit('no')", 1, "SystemExit"),
    ("import sys; sys.exit()", 0, None),
    ("import os; os._exit(4)", 4, None),
    ("pass", 0, None),
    ("import json\ndef f():\n    json.loads('x')\nf()\n", 1, DECODE),
    ("x = 1\ny = = 2\n", 1, "SyntaxError"),
    ("import os; os.kill(os.getpid(), 2)", None, "KeyboardInterrupt"),
]


def test_a_script_ends_as_python_ends_it(node: Node) -> None:
    """In a worker of a fresh interpreter, an attempt for each: its status, the class of its error
    and where that is in the user's code, and the log as Python would write it."""
    controller, agent = node("pass", fresh=True)
    controller.ready()
    told: dict[str | None, WorkerExited] = {}
    logs: dict[str | None, str] = {}
    for attempt, (source, code, error) in enumerate(ENDS, start=1):
        (controller.folder / "script.py").write_text(source)
        controller.start(attempt=attempt)
        exited = controller.exited(attempt=attempt)
        found = exited.error.type if exited.error else None
        assert (exited.exit_code, found) == (code, error), source
        told[error], logs[error] = exited, whole_log(agent, exited, attempt)
        controller.stop(attempt=attempt)

    exception, log = told[DECODE].error, logs[DECODE]
    assert exception is not None and exception.file.endswith("/script.py") and exception.line == 3
    assert log == exception.traceback
    assert log.startswith("Traceback (most recent call last):\n") and "holdfast" not in log
    syntax, log = told["SyntaxError"].error, logs["SyntaxError"]
    assert syntax is not None and syntax.file.endswith("/script.py") and syntax.line == 2
    assert log.lstrip().startswith("File ") and "SyntaxError" in log and "Traceback" not in log
    assert told["KeyboardInterrupt"].signal == signal.SIGINT
    assert logs["KeyboardInterrupt"].rstrip().endswith("KeyboardInterrupt")


def test_an_exception_in_a_forked_child_is_not_taken_for_the_workers(node: Node) -> None:
    source = "import os\nif os.fork() == 0:\n    raise ValueError\nos.wait()\nos._exit(9)\n"
    exited, _ = run_to_its_end(node, source)
    assert exited.exit_code == 9
    assert exited.error is None or exited.error.file != ""  # at most what the log shows


@pytest.mark.parametrize(("name", "code"), [("no-such-program", 127), ("not-a-program", 126)])
def test_a_program_that_cannot_be_run_says_so(node: Node, home: Path, name: str, code: int) -> None:
    (home / "not-a-program").write_text("x")
    exited, log = run_to_its_end(node, command=[str(home / name)])
    assert exited.exit_code == code
    assert "cannot run" in log and name in log
    assert exited.error is not None and exited.error.file == str(home / name)


def test_a_script_that_does_not_exist_ends_with_2(node: Node, home: Path) -> None:
    exited, log = run_to_its_end(node, script=str(home / "gone.py"))
    assert exited.exit_code == 2
    assert "can't open file" in log and "gone.py" in log


def test_children_in_the_group_of_a_dead_worker_are_killed(node: Node) -> None:
    source = FORKING.format(away="lambda: None", then="time.sleep(0.2); os._exit(3)")
    controller, agent = node(source)
    controller.ready()
    controller.start()
    assert controller.exited().exit_code == 3
    children = _children(agent.log())
    assert len(children) == 2
    assert until(lambda: not any(map(is_alive, children)), "children die") is not None


def test_daemons_of_a_stopped_attempt_are_killed(node: Node) -> None:
    controller, agent = node(FORKING.format(away="os.setsid", then="time.sleep(600)"))
    controller.ready()
    controller.start()
    until(lambda: len(_children(agent.log())) == 2, "children run")
    controller.stop()
    assert not [pid for pid in _children(agent.log()) if is_alive(pid)]


def test_nothing_of_the_group_survives_a_killed_agent(node: Node) -> None:
    controller, agent = node(FORKING.format(away="lambda: None", then="time.sleep(600)"))
    controller.ready()
    controller.start()
    until(lambda: len(_children(agent.log())) == 2, "children run")
    agent.process.kill()
    until(lambda: not agent.family(), "everything dies with the agent")


def test_nothing_survives_when_the_whole_group_of_the_agent_is_killed(node: Node) -> None:
    controller, agent = node(SLEEP)
    controller.ready()
    controller.start()
    controller.started()
    os.killpg(agent.process.pid, signal.SIGKILL)
    until(lambda: not agent.family(), "everything dies with the agent")


def test_a_killed_forkserver_costs_one_attempt(node: Node, home: Path) -> None:
    may_load = home / "may-load"
    may_load.touch()
    (home / "slow.py").write_text(f"import os\nwhile not os.path.exists({str(may_load)!r}): pass\n")
    controller, agent = node(SLEEP, workers_per_node=2, warm={"preload": ["slow"]})
    controller.ready()
    controller.start()
    pids = controller.started()
    may_load.unlink()
    os.kill(agent.forkserver(), signal.SIGKILL)
    for rank in (0, 1):
        exited = controller.exited(rank=rank)
        assert (exited.signal, exited.forkserver) == (signal.SIGKILL, "signal 9")
    until(lambda: not any(map(is_alive, pids)), "they were told of while they ended")
    assert controller.stop().store is None
    may_load.touch()
    store = controller.wait_for(NodeReady, count=2).store
    controller.start(attempt=2, store=store)
    assert len(controller.started(attempt=2)) == 2


def test_nobody_waits_for_a_store_while_there_is_no_forkserver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_offer, "STORE_TIMEOUT_S", math.inf)
    none: Any = SimpleNamespace(fresh=None, can_open=False, open=lambda: None)
    nobody: Any = None
    offer = store_offer.StoreOffer("n", none, nobody, instrumented=False, has_tiers=False)
    assert asyncio.run(asyncio.wait_for(offer.next(), PATIENCE_S)) is None


def test_a_stopped_process_is_killed_too(node: Node) -> None:
    controller, _ = node(SLEEP)
    controller.ready()
    controller.start()
    (pid,) = controller.started()
    os.kill(pid, signal.SIGSTOP)
    controller.stop(grace_s=0.1)
    assert not is_alive(pid)
    assert not controller.of_kind(WorkerExited)


def test_a_hanging_forkserver_does_not_keep_workers_alive(node: Node) -> None:
    controller, agent = node(SLEEP)
    controller.ready()
    controller.start()
    (pid,) = controller.started()
    os.kill(agent.forkserver(), signal.SIGSTOP)
    controller.stop(grace_s=0.1)
    assert not is_alive(pid)
    controller.wait_for(NodeReady, count=2)


def test_a_worker_that_ends_under_a_hanging_forkserver_is_told_with_its_status(
    node: Node, tmp_path: Path
) -> None:
    """Nobody else reaps it: the job would be running for ever."""
    source = (
        f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)"
    )
    controller, agent = node(source)
    controller.ready()
    controller.start()
    controller.started()
    stopped = agent.forkserver()
    os.kill(stopped, signal.SIGSTOP)
    (tmp_path / "go").touch()
    exited = controller.exited()
    assert (exited.exit_code, exited.signal) == (0, None)
    assert not is_alive(stopped)
    controller.wait_for(NodeReady, count=2)


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace_time(node: Node) -> None:
    controller, agent = node("import signal; signal.signal(15, signal.SIG_IGN)\n" + SLEEP)
    controller.ready()
    controller.start()
    until(lambda: "up" in agent.log(), "the worker runs")
    controller.send(Stop(attempt=1, grace_s=600.0))
    controller.stop(grace_s=0.1)  # a second order may shorten the grace time
    assert not controller.of_kind(WorkerExited)


def test_a_death_before_the_stop_order_is_told_and_one_by_it_is_not(node: Node) -> None:
    source = "import os, time\nif os.environ['RANK'] == '1': os._exit(7)\ntime.sleep(600)\n"
    controller, _ = node(source, workers_per_node=2)
    controller.ready()
    controller.start()
    assert controller.exited(rank=1).exit_code == 7
    controller.stop()
    assert [event.rank for event in controller.of_kind(WorkerExited)] == [1]


def test_a_worker_that_fails_by_itself_while_being_stopped_is_told_of(node: Node) -> None:
    source = (
        "import signal, time\n"
        "def fail(*_): raise RuntimeError('on the way out')\n"
        "signal.signal(signal.SIGTERM, fail)\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.05)  # one long one may begin after the signal was looked for\n"
    )
    controller, agent = node(source)
    controller.ready()
    controller.start()
    until(lambda: agent.log() == "up\n", "the worker runs")
    stopped = controller.stop()
    (exited,) = controller.of_kind(WorkerExited)
    assert exited.error is not None and exited.error.message == "on the way out"
    assert controller.heard.index(exited) < controller.heard.index(stopped)


def test_workers_train_on_while_the_controller_is_away_and_no_fact_is_lost(node: Node) -> None:
    source = (
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    while not os.path.exists('die'): time.sleep(0.01)\n"
        "    os._exit(5)\n"
        "time.sleep(600)\n"
    )
    controller, _ = node(source, workers_per_node=2)
    controller.ready()
    controller.start()
    pids = controller.started()
    controller.close()
    alive_at = time.monotonic()
    (controller.folder / "die").write_text("")
    until(lambda: not is_alive(pids[1]), "rank 1 dies while nobody listens")
    controller.acknowledging = False
    controller.open()
    exited = controller.exited(rank=1)
    assert exited.ago_s <= time.monotonic() - alive_at
    assert is_alive(pids[0])
    assert (controller.hellos[-1].attempt, controller.hellos[-1].running) == (1, True)
    controller.close()
    controller.acknowledging = True
    controller.open()
    controller.connected()
    controller.stop()
    assert controller.deliveries == sorted(set(controller.deliveries))
    assert len(controller.of_kind(WorkerExited)) == 1
    assert len(controller.of_kind(WorkersStarted)) == 1


def test_unacknowledged_facts_come_again(node: Node) -> None:
    controller, _ = node(SLEEP)
    controller.ready()
    controller.close()
    forgetful = StubController(controller.folder)
    forgetful.token = controller.token
    (controller.folder / "token").write_text(controller.token)
    forgetful.acknowledging = False
    forgetful.open()
    try:
        forgetful.connected()
        forgetful.start(store=controller.ready())
        forgetful.started()
        forgetful.close()
        forgetful.facts.clear()  # it was killed before they reached the disk
        forgetful.open()
        forgetful.started()
    finally:
        forgetful.close()


def test_without_a_controller_for_too_long_the_node_ends(node: Node) -> None:
    controller, agent = node(SLEEP, recovery={"controller_absence_s": 5.0})
    controller.ready()
    controller.start()
    controller.started()
    controller.close()
    assert agent.ended() == 0
    assert agent.family() == []


def test_endless_output_is_rotated_and_does_not_keep_the_agent_busy(node: Node) -> None:
    limit = 64 * 1024
    controller, _ = node(command=["yes"], logs={"max_bytes": limit})
    controller.ready()
    controller.start()
    log = controller.folder / "logs" / "attempt-1" / "rank-0.log"
    until(log.with_name("rank-0.log.1").exists, "the log is rotated")
    controller.lives("while its output is flooded")
    for path in log.parent.iterdir():
        assert path.name.removeprefix("times-") in ("rank-0.log", "rank-0.log.1")
        with contextlib.suppress(FileNotFoundError):  # it is rotated at this moment
            assert path.stat().st_size <= limit
    controller.stop()


def test_output_on_a_full_disk_is_dropped_and_owned_up_to(
    node: Node, small_disk: Callable[[], None]
) -> None:
    small_disk()
    source = (
        "import os, time\n"
        "for i in range(4000): print('x' * 200, flush=True)\n"
        "open('printed', 'w').close()\n"
        "while not os.path.exists('room'): time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "print('there is room', flush=True)\n"
    )
    controller, agent = node(source)
    controller.ready()
    controller.start()
    until((controller.folder / "printed").exists, "the worker is not blocked")
    log = controller.folder / "logs" / "attempt-1" / "rank-0.log"
    os.truncate(log, 0)
    (controller.folder / "room").write_text("")
    assert controller.exited().exit_code == 0
    text = agent.log()
    assert "bytes of output were lost here: No space left on device]" in text
    assert text.endswith("there is room\n")


def test_a_warm_worker_that_fails_is_noted_and_the_attempt_shows_the_error(
    node: Node, home: Path
) -> None:
    controller, agent = node("raise ValueError('above join')", warm={"mode": "script"})
    controller.ready()
    warm_log = home / "nodes" / "node-0" / "warm-0.log"
    until(warm_log.exists, "the warm worker ends")
    controller.start()
    exited = controller.exited()
    assert exited.error is not None and exited.error.message == "above join"
    assert "above join" in warm_log.read_text()
    until(lambda: "above join" in agent.log(), "its output is in the log of the attempt")


@pytest.mark.parametrize(
    ("deadly", "why"),
    [
        ("import os; os._exit(4)", "it crashed the forkserver 2 times (exit status 4)"),
        pytest.param(
            "import time; time.sleep(600)",
            "the import made no progress for 60 s",
            marks=pytest.mark.skipif(not MORE, reason="HOLDFAST_TEST_MORE=1: a minute"),
        ),
    ],
)
def test_a_preload_that_the_forkserver_does_not_survive_is_done_without(
    node: Node, home: Path, deadly: str, why: str
) -> None:
    (home / "deadly.py").write_text(deadly)
    script = "import sys; print('deadly' in sys.modules, 'colorsys' in sys.modules)"
    controller, agent = node(script, warm={"preload": ["colorsys", "deadly"]})
    controller.ready()
    controller.start()
    assert controller.exited().exit_code == 0
    assert agent.log() == "False True\n"
    assert f"deadly is not imported ahead: {why}" in agent.words()


def test_a_preload_that_leaves_a_thread_is_done_without(node: Node, home: Path) -> None:
    thread = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    (home / "busy.py").write_text(f"import threading, time\n{thread}\n")
    script = "import sys; print('busy' in sys.modules, 'colorsys' in sys.modules)"
    controller, agent = node(script, warm={"preload": ["busy", "colorsys"]})
    controller.ready()
    controller.start()
    assert controller.exited().exit_code == 0
    assert agent.log() == "False True\n"
    assert "busy is not imported ahead: it starts threads that do not exit" in agent.words()
    assert "has died" not in agent.words()


def test_a_forkserver_that_is_not_wanted_any_more_before_it_is_ready_just_ends() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    module = "holdfast.agent.forkserver"
    lock = EndLock.create()
    fds = theirs.fileno(), lock
    command = [sys.executable, "-P", "-m", module, str(fds[0]), str(os.getpid()), str(lock)]
    with subprocess.Popen(command, pass_fds=fds, stderr=subprocess.PIPE, text=True) as process:
        theirs.close()
        os.close(lock)
        fork_protocol.send(
            ours,
            fork_protocol.Prepare(
                program=fork_protocol.Program(command=("true",)), preload=fork_protocol.Preload()
            ),
        )
        ours.close()
        assert "Traceback" not in process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0


def test_a_preload_that_cannot_be_imported_is_noted(node: Node) -> None:
    controller, agent = node(SLEEP, warm={"preload": ["no_such_module"]})
    controller.ready()
    assert "preload of no_such_module failed" in agent.words()


def test_a_missing_working_folder_is_the_workers_error(node: Node, home: Path) -> None:
    (home / "gone").mkdir()
    controller, _ = node(SLEEP, workdir=str(home / "gone" / "deeper"))
    controller.ready()
    controller.start()
    exited = controller.exited()
    assert exited.exit_code == 1
    assert exited.error is not None and exited.error.type == "FileNotFoundError"


def test_a_process_of_ours_is_found_by_its_environment(node: Node) -> None:
    controller, agent = node(SLEEP)
    controller.ready()
    until(  # a warm worker may be born between the two looks
        lambda: processes.carrying("HOLDFAST_NODE", agent.node) == set(agent.family()),
        "both look-ups to agree",
    )


def _children(log: str) -> list[int]:
    return [int(line.split()[1]) for line in log.splitlines() if line.startswith("child")]


def test_a_store_that_nobody_waits_for_any_more_says_nothing() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    child._tell_port(write_end, 29400)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(write_end)
