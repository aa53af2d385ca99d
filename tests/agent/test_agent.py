"""What a node promises while nothing goes wrong."""

import contextlib
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from holdfast.events import Milestone, NodeLeft, NodeReady, Store, WorkerExited
from holdfast.messages import Leave, Report, WorkersStarted
from tests.agent.conftest import Node
from tests.agent.controller_stub import is_alive, parent_of, until

PRINT_ENV = "import os, json; print(json.dumps(dict(os.environ)))"
AHEAD = """
import os, time
if False:
    from holdfast.train import join
    join()
assert "RANK" not in dict(os.environ)
print("warm in", os.getpid(), flush=True)
print("rank", os.environ["RANK"], "in", os.getpid(), flush=True)
"""
SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def test_the_environment_of_a_worker_is_that_of_torchrun(node: Node) -> None:
    controller, agent = node(PRINT_ENV, env={"MINE": "yes"}, workers_per_node=2)
    store = controller.ready()
    controller.start(node_rank=1, node_count=3, redo_until=7, attempt=4)
    controller.exited(attempt=4, rank=3)
    env = json.loads(agent.log(rank=3, attempt=4))
    expected = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "ROLE_RANK": "3",
        "ROLE_NAME": "default",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_MAX_RESTARTS": "20",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": str(agent.folder / "logs/attempt-4/rank-3.error.json"),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "HOLDFAST_JOB": "test",
        "HOLDFAST_NODE": agent.node,
        "HOLDFAST_ATTEMPT": "4",
        "HOLDFAST_REDO_UNTIL": "7",
        "MINE": "yes",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert "HOLDFAST_CONTROL_FD" not in env


def test_a_script_runs_as_python_would_run_it(node: Node, home: Path) -> None:
    (home / "sub").mkdir()
    (home / "sub" / "neighbour.py").write_text("value = 7\n")
    script = home / "sub" / "main.py"
    script.write_text(
        "import atexit, os, sys, threading, neighbour\n"
        "import __main__\n"
        "assert __name__ == '__main__' and __main__.neighbour is neighbour\n"
        "assert sys.path[0] == os.path.dirname(os.path.realpath(__file__)), sys.path\n"
        "print(sys.argv[1:], os.getcwd(), neighbour.value, sys.stdin.read() == '')\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (__import__('time').sleep(0.1), print('thread'))).start()"
    )
    controller, agent = node(script=str(script), args=["-x", "1"])
    controller.ready()
    controller.start()
    assert controller.exited().exit_code == 0
    assert agent.log() == f"['-x', '1'] {home} 7 True\nthread\nat exit\n"


def test_a_module_runs_as_with_dash_m(node: Node, home: Path) -> None:
    (home / "pack").mkdir()
    (home / "pack" / "__init__.py").write_text("")
    (home / "pack" / "__main__.py").write_text(
        "import sys\n"
        "from . import __name__ as pack\n"
        "print(pack, __package__, sys.argv, sys.path[0])\n"
    )
    controller, agent = node(module="pack", args=["a"])
    controller.ready()
    controller.start()
    assert controller.exited().exit_code == 0, agent.log()
    main = home / "pack" / "__main__.py"
    assert agent.log() == f"pack pack ['{main}', 'a'] {home}\n"


def test_any_program_can_be_the_worker(node: Node) -> None:
    controller, agent = node(command=["sh", "-c", "echo rank $RANK; exit 5"])
    controller.ready()
    controller.start()
    exited = controller.exited()
    assert (exited.exit_code, exited.signal) == (5, None)
    assert agent.log() == "rank 0\n"


def test_a_script_that_starts_itself_again_by_exec_keeps_what_the_agent_gave(node: Node) -> None:
    """To have another LD_PRELOAD, say."""
    controller, agent = node(
        "import os, sys\n"
        "if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
        "from holdfast.checkpoint.arena import Arena\n"
        "from holdfast.page import Page\n"
        "Page(int(os.environ['HOLDFAST_PAGE_FD'])), Arena(int(os.environ['HOLDFAST_ARENA_FD']))\n"
        "print('kept')\n"
    )
    controller.ready()
    controller.start()
    assert controller.exited().exit_code == 0
    assert agent.log() == "kept\n"


def test_a_cold_script_finds_nothing_loaded_ahead(node: Node) -> None:
    source = "import sys; print('torch' in sys.modules)"
    controller, agent = node(source, fresh=True, warm={"mode": "off"})
    controller.ready()
    controller.start()
    assert controller.exited().exit_code == 0
    assert agent.log() == "False\n"


def test_an_instrumented_script_joins_in_the_process_that_was_warm(node: Node) -> None:
    controller, agent = node(AHEAD)
    assert controller.wait_for(NodeReady).instrumented
    controller.start()
    (pid,) = controller.started()
    until(lambda: "rank 0" in agent.log(), "the worker has its rank")
    words = [line for line in agent.log().splitlines() if not line.startswith("holdfast: ")]
    assert words == [f"warm in {pid}", f"rank 0 in {pid}"]


def test_a_script_that_ends_without_join_is_no_worker_that_died_without_a_rank(node: Node) -> None:
    never = "import sys\nif False:\n    from holdfast.train import join\n    join()\nsys.exit(0)"
    controller, agent = node(never)
    controller.ready()
    controller.start()
    assert controller.exited().exit_code == 0
    assert "needs the rank (its end)" in agent.log()
    assert "without a rank" not in agent.words()


def test_the_next_attempt_takes_the_worker_that_warmed_up_meanwhile(node: Node) -> None:
    controller, agent = node(SLEEP)
    controller.ready()
    controller.start()
    (first,) = controller.started()
    warm = until(lambda: set(agent.family()) - _known(agent.family(), first), "a warm worker")
    stopped = controller.stop()
    controller.start(attempt=2, store=stopped.store)
    assert controller.started(attempt=2) == tuple(warm)
    until(lambda: agent.log(attempt=2) == "up\n", "the script runs")


EDITED = """
import os
from pathlib import Path
import neighbour
if False:
    from holdfast.train import join
    join()
Path("ran").touch()
print("script 1, module", neighbour.value, flush=True)
os.environ["RANK"]
"""


def _edit(path: Path) -> None:
    text = path.read_text().replace("1", "2")
    path.unlink()
    path.write_text(text + "\n")  # of another size: clocks of file systems are coarse


@pytest.mark.parametrize(
    ("edited", "told"),
    [("main.py", "script 2, module 1"), ("neighbour.py", "script 1, module 2")],
)
def test_what_is_edited_after_a_warm_worker_has_read_it_is_read_anew(
    node: Node, home: Path, edited: str, told: str
) -> None:
    """A rank without a warm worker would run the new text beside others that run the old one."""
    (home / "code").mkdir()
    script = home / "code" / "main.py"
    script.write_text(EDITED)
    (home / "code" / "neighbour.py").write_text("value = 1\n")
    controller, agent = node(script=str(script))
    controller.ready()
    until((home / "ran").exists, "a warm worker has read it")
    _edit(home / "code" / edited)
    controller.start()
    assert controller.exited().exit_code == 0
    assert told in agent.log()
    assert "has changed: workers read it again" in agent.words()


def test_a_script_that_is_gone_is_gone_on_with_by_who_has_read_it(node: Node, home: Path) -> None:
    (home / "code").mkdir()
    script = home / "code" / "main.py"
    script.write_text(EDITED)
    (home / "code" / "neighbour.py").write_text("value = 1\n")
    controller, agent = node(script=str(script))
    controller.ready()
    until((home / "ran").exists, "a warm worker has read it")
    (home / "code").rename(home / "moved")
    controller.start()
    assert controller.exited().exit_code == 0
    assert "script 1, module 1" in agent.log()


def test_a_worker_that_waits_has_mapped_what_the_attempt_before_left_in_memory(node: Node) -> None:
    source = """
import os, time
from holdfast.checkpoint.arena import Arena, StatePart
Arena(int(os.environ["HOLDFAST_ARENA_FD"])).cells(StatePart.SHARED)[1].reserve(3 << 20)
print("up", flush=True)
time.sleep(600)
"""
    controller, agent = node(source)
    controller.ready()
    controller.start()
    (first,) = controller.started()
    waits = until(lambda: set(agent.family()) - _known(agent.family(), first), "a warm worker")
    maps = Path(f"/proc/{waits.pop()}/maps")
    until(lambda: "memfd:holdfast-arena" in maps.read_text(), "its arena is mapped")


def _known(family: list[int], worker: int) -> set[int]:
    """The agent, its forkserver and the first worker: the processes there were from the start."""
    return {pid for pid in family if pid == worker or parent_of(parent_of(pid)) not in family}


def test_each_attempt_gets_a_store_of_its_own(node: Node) -> None:
    controller, _ = node(SLEEP, workers_per_node=2)
    stores: list[Store | None] = [controller.ready()]
    with contextlib.ExitStack() as taken:  # a port that is free may be found free twice
        for attempt in (1, 2, 3):
            store = stores[-1]
            assert store is not None
            with contextlib.suppress(OSError):  # then somebody else has it
                taken.enter_context(socket.create_server((store.host, store.port)))
            controller.start(attempt=attempt, store=store)
            controller.started(attempt=attempt)
            stores.append(controller.stop(attempt=attempt).store)
    assert None not in stores
    assert len(set(stores)) == 4


def test_a_store_that_an_attempt_may_have_used_elsewhere_is_not_offered_again(node: Node) -> None:
    controller, _ = node(SLEEP)
    offered = controller.ready()
    unused = controller.stop(attempt=1).store  # attempt 1 never started here
    assert unused not in (None, offered)
    assert controller.stop(attempt=1).store == unused


def test_an_old_order_to_start_is_ignored(node: Node) -> None:
    controller, _ = node(SLEEP)
    controller.ready()
    store = controller.stop(attempt=5).store
    for attempt in (4, 5):
        controller.start(attempt=attempt, store=store)
    controller.start(attempt=6, store=store)
    controller.started(attempt=6)
    controller.start(attempt=6, store=store)
    controller.stop(attempt=6)
    assert [event.attempt for event in controller.of_kind(WorkersStarted)] == [6]


@pytest.mark.parametrize("mode", ["imports", "off"])
def test_reports_come_without_workers_and_follow_a_milestone_at_once(node: Node, mode: str) -> None:
    controller, _ = node(
        "import gc, os, time\n"
        "from holdfast.page import Page, StepRecord\n"
        "from holdfast.events import Milestone\n"
        "gc.collect()\n"
        "page = Page(int(os.environ['HOLDFAST_PAGE_FD']))\n"
        "page.reach(Milestone.ARRIVED)\n"
        "page.restored(3)\n"
        "page.step_done(4, 0.1, StepRecord(4, time.monotonic(), 0.1, None, 5))\n"
        "page.reach(Milestone.FIRST_STEP)\n"
        "page.step_done(5, 0.1, StepRecord(5, time.monotonic(), 2/3, 1.0, 5))\n"
        "page.reach(Milestone.FINISHED)\n",
        warm={"mode": mode},
    )
    controller.lives("an idle node")
    until(lambda: controller.reports, "and says once that it is")
    assert {report.workers for report in controller.reports} == {()}
    controller.ready()
    controller.start()
    exited = controller.exited()
    assert exited.progress.step == 5 and exited.progress.finished
    before = controller.heard[: controller.heard.index(exited)]
    last = [r for r in before if isinstance(r, Report)][-1]
    assert set(last.workers[0].milestones) == {
        Milestone.STARTED,
        Milestone.ARRIVED,
        Milestone.RESTORED,
        Milestone.FIRST_STEP,
        Milestone.FINISHED,
    }
    assert last.workers[0].restored_step == 3
    assert last.workers[0].garbage_s > 0
    lines = (controller.folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(r["attempt"], r["step"], r["loss"], r["grad_norm"], r["tokens"]) for r in rows] == [
        (1, 4, 0.1, None, 5),
        (1, 5, 2 / 3, 1.0, 5),
    ]


def test_a_dismissed_node_leaves_nothing(node: Node) -> None:
    controller, agent = node(SLEEP, workers_per_node=2)
    controller.ready()
    controller.start()
    controller.started()
    controller.send(Leave(reason="test"))
    assert agent.ended() == 0
    assert agent.family() == []
    controller.wait_for(NodeLeft)


def test_sigterm_to_the_agent_gives_workers_their_grace_time(node: Node) -> None:
    controller, agent = node(
        "import os, signal, sys, time\n"
        "def bye(*_): time.sleep(0.3); os.write(1, b'saved\\n'); sys.exit(0)  # within print()\n"
        "signal.signal(signal.SIGTERM, bye)\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.05)  # one long one may begin after the signal was looked for\n"
    )
    controller.ready()
    controller.start()
    until(lambda: agent.log() == "up\n", "the worker runs")
    os.kill(agent.process.pid, signal.SIGTERM)
    assert agent.ended() == 0
    assert agent.log() == "up\nsaved\n"
    assert controller.wait_for(NodeLeft) and not agent.family()


@pytest.mark.parametrize("left", [True, False])
def test_whoever_had_left_before_the_stop_is_told_from_who_ends_because_of_it(
    node: Node, left: bool
) -> None:
    """Its peers fail, and are heard of, while its interpreter still ends."""
    script = "atexit.register(time.sleep, 600)" if left else "while True: time.sleep(0.05)"
    controller, _ = node(
        "import atexit, os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # whatever it is at\n"
        f"print('up', flush=True)\n{script}\n"
    )
    controller.ready()
    controller.start()
    phase = "ending" if left else "starting"
    until(
        lambda: any(w.phase == phase for report in controller.reports for w in report.workers),
        f"it is {phase}",
    )
    controller.stop()
    assert [event.exit_code for event in controller.of_kind(WorkerExited)] == [0] * left


def test_a_node_that_was_given_up_kills_its_workers(node: Node) -> None:
    controller, agent = node(SLEEP)
    controller.ready()
    controller.start()
    (pid,) = controller.started()
    controller.close()
    controller.known = False
    controller.open()
    assert agent.ended() == 0
    assert not is_alive(pid)


def test_the_agent_says_who_it_is(node: Node, home: Path) -> None:
    _, agent = node(SLEEP)
    path = home / "nodes" / "node-0" / "agent.json"
    until(path.exists, "agent.json")
    card = json.loads(path.read_text())
    assert (card["node"], card["name"], card["pid"]) == (agent.node, "node-0", agent.process.pid)


def test_signals_that_ask_for_nothing_end_no_process_of_ours_and_workers_still_can_be(
    node: Node,
) -> None:
    controller, agent = node(
        "import signal, time\n"
        "print([signal.getsignal(s) is signal.SIG_DFL for s in (signal.SIGUSR1, signal.SIGHUP)])\n"
        "time.sleep(600)"
    )
    controller.ready()
    controller.start()
    until(lambda: "]" in agent.log(), "what the worker has for a handler")
    hangs_up = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL  # not so under `nohup`
    assert str([True, hangs_up]) in agent.log()
    ours = agent.process.pid, agent.forkserver()
    for pid in ours:
        for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGHUP, signal.SIGRTMIN):
            os.kill(pid, number)
    told = "SIGUSR1 was received: it has no meaning here and is ignored"
    until(lambda: agent.words().count(told) == len(ours), "both to say so")
    assert agent.forkserver() == ours[1]
    controller.stop()


def test_a_process_that_does_not_end_with_its_script_says_that_the_script_has(node: Node) -> None:
    controller, agent = node("import atexit, time\natexit.register(time.sleep, 600)\nprint('end')")
    controller.ready()
    controller.start()
    until(lambda: "end" in agent.log(), "the end of the script")

    def phases() -> set[str]:
        return {worker.phase for report in controller.reports for worker in report.workers}

    until(lambda: "ending" in phases(), "what the page says then")
    controller.stop()
