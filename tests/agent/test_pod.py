"""What a node promises that is a pod: how it exits, what it answers, what it prints."""

import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast.agent import interfaces
from holdfast.agent.environment import without_engine
from holdfast.agent.pod import job_in
from holdfast.agent.pod_log import HELD_BYTES, RankedLines
from holdfast.events import NodeLeft
from holdfast.lines import seal
from holdfast.messages import GiveJournal, JournalCopy, Keep, Kept, Leave
from holdfast.overwritten import STATE_S
from holdfast.spec import Job
from holdfast.spec.load import to_yaml
from tests.agent.controller_stub import StubController, is_alive, until
from tests.agent.pods import PORT, Pod, pod
from tests.more import sample
from tests.patience import PATIENCE_S

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STEPPING = """
import os, time
from holdfast.page import Page, StepRecord
page = Page(int(os.environ["HOLDFAST_PAGE_FD"]))
page.step_done(5, 0.1, StepRecord(5, time.monotonic(), 1.0, 1.0, 5))
time.sleep(600)
"""
FLOODING = """
import os, sys, time
for _ in range(3000):
    print("x" * 1000)
print("written", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("last words", end="", flush=True)
"""

IMAGE = {"name": "i", "workdir": "/app"}

Make = Callable[..., tuple[StubController, Pod]]


@pytest.fixture
def make(home: Path, nothing_left: None) -> Iterator[Make]:  # noqa: ARG001
    """Make a stub controller and a pod; ended, and checked for leftovers, with the test."""
    with ExitStack() as stack:
        yield lambda source=SLEEP, **job: stack.enter_context(pod(home, source, **job))


# ── the end ──


@pytest.mark.parametrize(("told", "status"), sample([(0, 0), (None, 143)], [(113, 113), (13, 13)]))
def test_a_node_exits_as_the_controller_says_and_else_wants_to_be_replaced(
    make: Make, told: int | None, status: int
) -> None:
    controller, pod = make()
    pod.start()
    controller.ready()
    controller.start()
    (worker,) = controller.started()
    controller.send(Leave(reason="test", exit_code=told))
    assert pod.ended() == status
    assert controller.wait_for(NodeLeft) and not is_alive(worker)


def test_sigterm_is_an_orderly_leave(make: Make) -> None:
    controller, pod = make(
        "import os, signal, sys, time\n"
        "def bye(*_): time.sleep(0.3); os.write(1, b'saved\\n'); sys.exit(0)  # within print()\n"
        "signal.signal(signal.SIGTERM, bye)\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.05)  # one long one may begin after the signal was looked for\n",
        recovery={"stop_grace_s": PATIENCE_S},
    )
    pod.start()
    controller.ready()
    controller.start()
    until(lambda: pod.log() == "up\n", "the worker runs")
    pod.signal(signal.SIGTERM)
    assert pod.ended() == 143
    controller.wait_for(NodeLeft)
    assert controller.of_kind(NodeLeft) == [NodeLeft(node=pod.node)]
    assert pod.read()[0] == "[rank 0] up\n[rank 0] saved\n"


def test_sigterm_ends_a_node_that_no_controller_has_welcomed(make: Make) -> None:
    controller, pod = make()
    controller.close()
    pod.start(HOLDFAST_CONTROLLER="no-such-name.invalid:7071")
    pod.answers("/live", 200)
    pod.signal(signal.SIGTERM)
    assert pod.ended() == 143


def test_a_node_that_was_given_up_is_replaced(make: Make) -> None:
    controller, pod = make()
    controller.known = False
    pod.start()
    assert pod.ended() == 143


@pytest.mark.parametrize(
    ("said", "told"),
    [("", "exit status 9"), ("ImportError: no libc\\n\\nNothing more\\n", "ImportError: no libc")],
)
def test_a_node_that_cannot_start_workers_is_replaced(
    make: Make, home: Path, said: str, told: str
) -> None:
    dying = "if 'holdfast.agent.forkserver' in sys.orig_argv: "
    dying += f"os.write(2, b'{said}'), os._exit(9)"
    (home / "sitecustomize.py").write_text(f"import os, sys\n{dying}\n")
    controller, pod = make()
    pod.fresh = True
    pod.start(PYTHONPATH=os.pathsep.join([str(home), os.environ.get("PYTHONPATH", "")]))
    assert pod.ended() == 143
    why = f"the forkserver died 4 times while it started: {told}"
    controller.wait_for(NodeLeft)
    assert controller.of_kind(NodeLeft) == [NodeLeft(node=pod.node, failed=why)]
    assert why in pod.read()[1]


def test_the_end_of_the_job_counts_also_for_a_node_that_leaves_already(make: Make) -> None:
    controller, pod = make(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'asked\\n'))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(1)\n",
        recovery={"stop_grace_s": 2.0},
    )
    pod.start()
    controller.ready()
    controller.start()
    until(lambda: "up" in pod.log(), "the worker runs")
    pod.signal(signal.SIGTERM)
    until(lambda: "asked" in pod.log(), "the worker is asked to end")
    controller.send(Leave(reason="the job has succeeded", exit_code=0))
    assert pod.ended() == 0


def test_a_container_that_starts_again_in_its_pod_is_another_node(make: Make) -> None:
    controller, pod = make()
    for node in (pod.node, f"{pod.node}.2", f"{pod.node}.3"):
        controller.facts.clear()
        pod.start()
        controller.ready()
        assert controller.hellos[-1].node == node
        assert (controller.hellos[-1].name, controller.hellos[-1].address) == (
            "test-0",
            pod.address,
        )
        pod.signal(signal.SIGTERM)
        assert pod.ended() == 143


def test_as_first_process_it_hears_signals_and_reaps_what_nobody_else_does(make: Make) -> None:
    controller, pod = make(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); print('orphan', os.getpid(), flush=True); os._exit(0)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(600)\n"
    )
    pod.first_process = True
    if not pod.can_unshare():
        pytest.skip("no process namespace can be made here")
    pod.start()
    controller.ready()
    controller.start()
    until(lambda: "orphan" in pod.log(), "the orphan has lived")
    until(lambda: len(pod.children()) == 1, "only the forkserver is left below the agent")
    pod.signal(signal.SIGTERM)
    assert pod.ended() == 143
    controller.wait_for(NodeLeft)


# ── bad input ──


def test_what_the_manifests_did_not_say_is_named(make: Make) -> None:
    _, pod = make()
    pod.start(HOLDFAST_NODE=None, HOLDFAST_HOME="")
    assert pod.ended() == 2
    words = pod.read()[1]
    assert words.startswith("error[pod-incomplete]") and "HOLDFAST_NODE, HOLDFAST_HOME" in words


@pytest.mark.parametrize("controller", ["run-controller", ":7071", "run:port", "run:"])
def test_an_address_that_is_none_is_refused(make: Make, controller: str) -> None:
    _, pod = make()
    pod.start(HOLDFAST_CONTROLLER=controller)
    assert pod.ended() == 2
    assert "HOST:PORT" in pod.read()[1]


def test_a_job_file_that_cannot_be_read_is_an_error_that_no_new_pod_mends(make: Make) -> None:
    _, pod = make()
    pod.start(HOLDFAST_JOB_FILE="/no/such/job.yaml")
    assert pod.ended() == 2
    assert pod.read()[1].startswith("error[job-file-unreadable]")


def test_a_port_that_is_taken_is_named_and_the_pod_replaced(make: Make) -> None:
    _, pod = make()
    with socket.create_server((pod.address, PORT)):
        pod.start()
        assert pod.ended() == 143
    words = pod.read()[1]
    assert "error[port-unusable]" in words and f"{pod.address}, port {PORT}" in words


# ── probes ──


def test_ready_is_who_was_welcomed_and_stays_so_without_a_controller(make: Make) -> None:
    controller, pod = make()
    controller.close()
    pod.start()
    pod.answers("/live", 200)
    assert pod.get("/ready")[0] == 503
    controller.open(same_port=True)
    pod.answers("/ready", 200)
    assert _figures(pod)["holdfast_node_up"] == "1.0"
    controller.close()
    until(lambda: _figures(pod)["holdfast_node_up"] == "0.0", "the agent misses the controller")
    assert pod.get("/ready")[0] == pod.get("/live")[0] == 200


def test_figures_say_what_the_workers_do(make: Make) -> None:
    controller, pod = make(STEPPING)
    pod.start()
    controller.ready()
    assert not [name for name in _figures(pod) if "timestamp" in name]
    began = time.time()
    controller.start(attempt=4)
    until(lambda: _figures(pod).get("holdfast_node_step") == "5.0", "a step is done")
    figures = _figures(pod)
    assert figures["holdfast_node_attempt"] == "4.0"
    assert figures["holdfast_node_workers"] == "1.0"
    at = float(figures["holdfast_node_last_step_timestamp_seconds"])
    assert began - 1 < at < time.time() + 1


def _figures(pod: Pod) -> dict[str, str]:
    """Every series of the node, without its labels."""
    lines = (line for line in pod.get("/metrics")[1].splitlines() if line[:1] not in ("", "#"))
    return {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /live?a=b HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"POST /live HTTP/1.1\r\n\r\n", b"405"),
        (b"\r\n\r\n", b"405"),
    ],
)
def test_anything_else_is_answered_in_a_word(make: Make, request_: bytes, status: bytes) -> None:
    _, pod = make()
    pod.start()
    pod.answers("/live", 200)
    with socket.create_connection((pod.address, PORT), 10) as sock:
        sock.sendall(request_)
        assert sock.recv(1000).split()[1] == status
    with socket.create_connection((pod.address, PORT), 10) as sock:
        sock.sendall(b"x" * 200_000)  # no end of it
        sock.settimeout(20)
        with suppress(ConnectionResetError):
            assert sock.recv(1000) == b""


# ── output ──


def test_output_is_shown_with_the_rank_and_written_to_its_file(make: Make) -> None:
    controller, pod = make(
        "import os; print('rank', os.environ['RANK']); print('a' * 40000); print('end', end='')",
        workers_per_node=2,
    )
    pod.start()
    controller.ready()
    controller.start(node_rank=1, node_count=2)
    for rank in (2, 3):
        assert controller.exited(rank=rank).exit_code == 0
    controller.send(Leave(reason="test", exit_code=0))
    shown = pod.read()[0]
    for rank in (2, 3):
        lines = [line for line in shown.splitlines() if line.startswith(f"[rank {rank}] ")]
        texts = [line.removeprefix(f"[rank {rank}] ") for line in lines]
        assert (texts[0], texts[-1]) == (f"rank {rank}", "end")
        assert "".join(texts[1:-1]) == "a" * 40000
        assert pod.log(rank) == f"rank {rank}\n{'a' * 40000}\nend"


def test_of_a_progress_bar_the_newest_state_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends its line after the last step: until then `kubectl logs` would show nothing."""
    now, said = 100.0, list[bytes]()
    monkeypatch.setattr("time.monotonic", lambda: now)
    lines = RankedLines(Mock(write=said.append), 3)
    for step in range(12):
        lines.write(b"\r%d/12" % step)
        now += STATE_S / 4
    lines.write(b"\r12/12\r\nnext\r\n")
    assert b"".join(said).splitlines() == [
        b"[rank 3] %s" % text for text in (b"4/12", b"8/12", b"12/12", b"next")
    ]


def test_a_standard_output_that_nobody_reads_holds_nothing_up(make: Make, home: Path) -> None:
    controller, pod = make(FLOODING)
    pod.start()
    controller.ready()
    controller.start()
    until(lambda: pod.log().endswith("written\n"), "the worker has written it all")
    controller.lives("while its output is not read")
    shown = bytearray()

    def read() -> None:
        for part in pod.output():
            shown.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: len(shown) > HELD_BYTES / 2, "there is room for more")
    (home / "go").touch()
    controller.exited()
    controller.send(Leave(reason="test", exit_code=0))
    reader.join()
    assert pod.ended() == 0
    assert len(pod.log()) == 3000 * 1001 + len("written\nlast words")
    assert shown.count(b"\n") < 3000 and b"bytes are not shown here]\n" in shown
    assert shown.endswith(b"[rank 0] last words\n")


# ── the journal ──


def test_a_keeper_holds_the_journal_over_controllers_and_gives_it_back(make: Make) -> None:
    controller, pod = make()
    pod.start()
    controller.connected()
    assert controller.hellos[-1].kept == -1
    lines = _sealed(b'{"line":%d}' % n for n in range(5))
    controller.send(Keep(first=0, lines=tuple(lines[:3]), term=1))
    controller.send(Keep(first=4, lines=(lines[4],), term=1))  # 3 is missing
    controller.send(Keep(first=3, lines=(b"half a line",), term=1))
    controller.send(Keep(first=3, lines=tuple(lines[3:]), term=1))
    until(lambda: len(controller.answers) == 4, "each is answered")
    assert controller.answers == [Kept(seq=n, term=1) for n in (2, 2, 2, 4)]
    controller.close()
    controller.open(same_port=True)
    controller.connected()
    assert (controller.hellos[-1].kept, controller.hellos[-1].term) == (4, 1)
    controller.answers.clear()
    controller.send(GiveJournal())
    (copy,) = until(lambda: list(controller.answers), "the copy comes back")
    assert copy == JournalCopy(offset=0, data=b"".join(lines), size=sum(map(len, lines)))


def test_a_journal_larger_than_a_message_comes_back_in_parts(make: Make) -> None:
    controller, pod = make()
    pod.start()
    controller.connected()
    lines = _sealed(b'{"line":"%s"}' % (bytes([65 + n]) * 2_000_000) for n in range(3))
    for number, line in enumerate(lines):
        controller.send(Keep(first=number, lines=(line,)))
    controller.send(GiveJournal())
    whole = sum(map(len, lines))
    until(lambda: sum(len(part.data) for part in _parts(controller)) == whole, "all parts come")
    parts = _parts(controller)
    assert b"".join(part.data for part in parts) == b"".join(lines)
    assert [part.offset for part in parts] == list(
        itertools.accumulate((len(part.data) for part in parts[:-1]), initial=0)
    )
    controller.lives("after all of it was sent")


def _sealed(documents: Iterable[bytes]) -> list[bytes]:
    """Lines of a journal."""
    found, checksum = [], 0
    for line in map(bytearray, documents):
        checksum = seal(line, checksum)
        found.append(bytes(line))
    return found


def _parts(controller: StubController) -> list[JournalCopy]:
    return [answer for answer in list(controller.answers) if isinstance(answer, JournalCopy)]


# ── what its workers find ──


def test_stores_listen_on_the_pods_address_and_on_the_ports_of_the_job(make: Make) -> None:
    controller, pod = make(
        "import torch.distributed as d; d.init_process_group('gloo'); print('met', flush=True)",
        framework="pytorch",
        network={"ports": {"stores": 31000}},
    )
    pod.start()
    store = controller.ready()
    ports = [store.port]
    for attempt in (1, 2):
        controller.start(attempt=attempt, store=store)
        assert controller.exited(attempt=attempt).exit_code == 0, pod.log(attempt=attempt)
        fresh = controller.stop(attempt=attempt).store
        assert fresh is not None and fresh.host == pod.address
        store = fresh
        ports.append(store.port)
    assert len(set(ports)) == 3 and set(ports) <= set(range(31000, 31016))


def test_a_taken_port_of_the_range_is_passed_over(make: Make) -> None:
    controller, pod = make(network={"ports": {"stores": 31000}})
    with ExitStack() as stack:
        for port in range(31000, 31015):
            stack.enter_context(socket.create_server((pod.address, port)))
        pod.start()
        assert controller.ready().port == 31015


def test_logs_of_old_attempts_are_dropped(make: Make) -> None:
    controller, pod = make("pass", warm={"mode": "off"})
    pod.start()
    store = controller.ready()
    for attempt in (1, 2, 22):
        controller.start(attempt=attempt, store=store)
        controller.exited(attempt=attempt)
        fresh = controller.stop(attempt=attempt).store
        assert fresh is not None
        store = fresh
    logs = pod.home / "jobs" / "test" / "logs"
    assert [path.name for path in logs.iterdir()] == ["attempt-22"]


def test_what_an_engine_says_of_ranks_is_kept_from_workers() -> None:
    engine = {"PET_NNODES": "2", "OMPI_MCA_x": "1", "TF_CONFIG": "{}", "VC_TASK_INDEX": "1"}
    assert without_engine({**engine, "PATH": "/bin", "PETS": "2"}) == {"PATH": "/bin", "PETS": "2"}


@pytest.mark.parametrize(
    ("keys", "started_in", "workdir", "script"),
    [
        ({}, "/app", "/app", "/app/a.py"),
        ({"workdir": "b/c"}, "/app/b/c", "/app/b/c", "/app/a.py"),
        ({"workdir": "b"}, "/b", "/b", "/a.py"),
        ({"workdir": "/data"}, "/data", "/data", "/data/a.py"),
        ({"workdir": "b"}, "/app", "/app/b", "/app/a.py"),
        ({"workdir": "/data", "image": IMAGE}, "/data", "/data", "/app/a.py"),
        ({"workdir": "b", "image": IMAGE}, "/app/b", "/app/b", "/app/a.py"),
        ({"script": "/x/a.py"}, "/app", "/app", "/x/a.py"),
    ],
)
def test_paths_start_where_those_of_the_image_do(
    tmp_path: Path, keys: dict[str, Any], started_in: str, workdir: str, script: str
) -> None:
    job = Job.model_validate({"name": "j", "script": "a.py", **keys})
    (tmp_path / "job.yaml").write_text(to_yaml(job))
    found = job_in(tmp_path / "job.yaml", Path(started_in))
    assert (found.workdir, found.script) == (workdir, script)


def test_gloo_and_nccl_are_told_the_interface_of_the_pods_address() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        address = sock.getsockname()[0]
    name = interfaces.interface_of(address)
    assert name in {name for _, name in socket.if_nameindex()} - {"lo"}
    told = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    assert interfaces.socket_variables(address) == told


@pytest.mark.parametrize("address", ["127.3.4.5", "::1", "192.0.2.7", "2001:db8::7", "a-name"])
def test_no_interface_is_named_for_loopback_or_an_address_of_others(address: str) -> None:
    assert interfaces.socket_variables(address) == {}


# ── a launcher ──


@pytest.mark.parametrize(
    ("engine", "outcome", "status"),
    sample(
        [("mpijob", "gave_up", 113), ("jaxjob", "failed", 13)],
        [("mpijob", "succeeded", 0), ("mpijob", "stopped", 113)],
    ),
)
def test_who_waits_ends_when_the_job_does_and_registers_nowhere(
    make: Make, engine: str, outcome: str, status: int
) -> None:
    controller, pod = make()
    pod.start("--wait", HOLDFAST_ENGINE=engine)
    until(lambda: controller.asked_count >= 2, "it asks and asks again")
    controller.close()
    controller.outcome = outcome
    controller.open(same_port=True)
    assert pod.ended() == status
    assert not controller.hellos


def test_who_waits_for_ever_is_replaced(make: Make) -> None:
    controller, pod = make(recovery={"controller_absence_s": 1.0})
    controller.close()
    pod.start("--wait")
    assert pod.ended() == 143
    assert "controller_absence_s" in pod.read()[1]


def test_who_waits_hears_sigterm(make: Make) -> None:
    controller, pod = make()
    pod.start("--wait")
    until(lambda: controller.asked_count, "it waits")
    pod.signal(signal.SIGTERM)
    assert pod.ended() == 143
