"""Whatever is killed is of this job, all of it is, and what cannot be killed is told."""

import asyncio
import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from holdfast.actions import Fence, Outcome
from holdfast.agent import cleaners, node_memory
from holdfast.cli.locate import job_folder
from holdfast.controller import Limits
from holdfast.drivers import fencing, local, records
from holdfast.drivers.engines import Processes
from holdfast.drivers.fencing import fence_job, fence_nodes, living
from holdfast.drivers.local import LocalDriver, stop_abandoned
from holdfast.drivers.nodes import AgentProcess
from holdfast.drivers.records import controller_alive, create, locked
from holdfast.errors import Error, ExitStatus
from holdfast.events import AnyEvent, NodeLost, NodeLostReason
from holdfast.journal import read_header
from holdfast.replay import replay
from holdfast.spec import Job
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("nothing_left")
FREEZER = Path("/sys/fs/cgroup/freezer")
Node = Callable[..., "subprocess.Popen[bytes]"]
JOB = Job(name="job", command=("true",))
CLEANER = "from multiprocessing.resource_tracker import main; import time; time.sleep(600)"


def id_of(number: int) -> str:
    """Of a node of this process's tests: by it processes are killed and memory is removed, which
    must not be those of the same test elsewhere."""
    return f"node-{number}-{os.getpid():08x}"


@pytest.fixture
def node(home: Path) -> Iterator[Node]:  # noqa: ARG001
    """Start a process that carries the marks of a node of the job in `folder`."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        folder: Path, number: int = 0, *, card: bytes | None = None
    ) -> "subprocess.Popen[bytes]":
        node, path = id_of(number), folder / "nodes" / f"node-{number}"
        path.mkdir(parents=True, exist_ok=True)
        marks = {"HOLDFAST_NODE": node, "HOLDFAST_JOB": "job", "HOLDFAST_JOB_DIR": str(folder)}
        started.append(subprocess.Popen(["sleep", "600"], env={**os.environ, **marks}))
        told = {"node": node, "name": f"node-{number}", "pid": started[-1].pid, "started": 1.0}
        if card != b"":
            (path / "agent.json").write_bytes(card or json.dumps(told).encode())
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Freeze a process, which is then in uninterruptible sleep until the test is over."""
    group = FREEZER / f"holdfast-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as why:
        pytest.skip(f"no process can be frozen here: {why}")
    monkeypatch.setattr(fencing, "KILL_TIMEOUT_S", 0.1)

    def freeze(pid: int) -> None:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")

    yield freeze
    (group / "freezer.state").write_text("THAWED")
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
            while _read_state(int(pid)) not in ("Z", ""):
                pass
    while (group / "cgroup.procs").read_text():
        pass
    group.rmdir()


def _read_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def made(home: Path) -> Path:
    folder = home / "jobs" / "job"
    os.close(create(JOB, folder, now=1.0))
    return folder


@contextlib.contextmanager
def driver_of(folder: Path) -> Iterator[LocalDriver]:
    """The engine of the job in this folder; needs a loop."""
    controller, book = replay(folder / "journal.jsonl", Limits.of(JOB))
    try:
        yield LocalDriver(JOB, folder, controller, book, Processes(folder))
    finally:
        book.close()


def ended(process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() == -signal.SIGKILL


def test_before_a_record_goes_every_process_of_its_job_is_dead_whatever_its_card_says(
    home: Path, node: Node
) -> None:
    folder = made(home)
    known, damaged, missing = (
        node(folder, 0),
        node(folder, 1, card=b'{"node": "no'),
        node(folder, 2, card=b""),
    )
    token = records.read_secret(folder)
    os.close(create(JOB, folder, replace=True, now=2.0))
    assert ended(known) and ended(damaged) and ended(missing)
    assert records.read_secret(folder) != token
    assert [path.name for path in folder.parent.iterdir()] == ["job"]


def test_who_is_forked_after_a_look_and_does_not_say_whose_it_is_goes_with_its_group(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by hand: 128 processes that fork another and end were there after ten seconds. It was
    told that SIGKILL does not end some zombies, and the next attempt began beside the others. And
    one that was forked while its parent was killed stayed behind, stopped."""
    folder = made(home)
    marks = {"HOLDFAST_NODE": id_of(0), "HOLDFAST_JOB": "job", "HOLDFAST_JOB_DIR": str(folder)}
    env, look = {**os.environ, **marks}, fencing._marks
    with subprocess.Popen(["sleep", "600"], env=env, process_group=0) as leader:
        late = subprocess.Popen(["sleep", "600"], process_group=leader.pid)
        cleaner = subprocess.Popen([sys.executable, "-c", CLEANER], process_group=leader.pid)

        def found() -> dict[int, fencing._Marks]:
            """Neither of the two: they are younger than this look."""
            while not cleaners.among([cleaner.pid]):  # until it is the program
                pass
            return {pid: one for pid, one in look().items() if pid not in (late.pid, cleaner.pid)}

        monkeypatch.setattr(fencing, "_marks", found)
        with late, cleaner:
            try:
                assert fence_nodes(folder, [id_of(0)]) == fencing.Fenced(1, ())
                assert late.wait(PATIENCE_S) == -signal.SIGKILL
                assert _read_state(cleaner.pid) in ("S", "R"), "it goes on"
            finally:
                late.kill()
                cleaner.kill()


def test_a_group_that_others_belong_to_is_not_stopped(home: Path, node: Node) -> None:
    folder = made(home)
    mine = node(folder)
    group = os.getpgid(mine.pid)
    assert group == os.getpgrp(), "that of the tests"
    assert fence_nodes(folder, [id_of(0)]).stuck == () and ended(mine)
    with subprocess.Popen(["sleep", "600"], process_group=0) as other:
        marks = {"HOLDFAST_NODE": id_of(1), "HOLDFAST_JOB": "job", "HOLDFAST_JOB_DIR": str(folder)}
        env = {**os.environ, **marks}
        with subprocess.Popen(["sleep", "600"], env=env, process_group=other.pid) as ours:
            try:
                assert fence_nodes(folder, [id_of(1)]).stuck == ()
                assert ours.wait() == -signal.SIGKILL
                assert _read_state(other.pid) in ("S", "R"), "it was not even stopped"
            finally:
                ours.kill()
                other.kill()


def test_a_job_of_the_same_name_below_another_home_is_never_touched(
    home: Path, node: Node, tmp_path: Path
) -> None:
    folder = made(home)
    theirs = tmp_path / "other" / "jobs" / "job"
    process = node(theirs)
    shutil.copytree(theirs / "nodes", folder / "nodes")  # even its very own cards are here
    assert living(folder) == [] and [n.name for n in living(theirs)] == ["node-0"]
    assert fence_nodes(folder, [id_of(0)]).killed == 0
    os.close(create(JOB, folder, replace=True, now=2.0))
    assert stop_abandoned(folder, "a test").killed == 0
    assert process.poll() is None


def test_a_home_that_is_named_by_a_link_or_was_moved_is_the_same(
    home: Path, node: Node, tmp_path: Path
) -> None:
    folder = made(home)
    link, moved = tmp_path / "link", tmp_path / "moved"
    link.symlink_to(home)
    through_link = node(link / "jobs" / "job", 0, card=b"")
    assert fence_job(folder).killed == 1 and ended(through_link)
    before = node(folder, 1)
    home.rename(moved)
    assert fence_job(moved / "jobs" / "job").killed == 1 and ended(before)


TITLED = """
import ctypes, subprocess, sys, time
from pathlib import Path
start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
ctypes.memset(start, ord("x"), end - start - 1)
inner = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
nested = subprocess.Popen(["sleep", "600"], env={"HOLDFAST_NODE": "node-0-nested"})
print(inner.pid, nested.pid, flush=True)
time.sleep(600)
"""
AGENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {TITLED!r}])
"""


def test_what_hides_its_environment_is_of_its_parents_node_and_a_nested_jobs_node_is_not(
    home: Path, node: Node
) -> None:
    """Found by hand: `holdfast chaos` did not know workers that had set their title."""
    folder = made(home)
    beside = node(folder, 1)
    marks = {"HOLDFAST_NODE": id_of(0), "HOLDFAST_JOB_DIR": str(folder)}
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT], env={**os.environ, **marks}, stdout=subprocess.PIPE
    )
    assert agent.stdout is not None
    inner, nested = map(int, agent.stdout.readline().split())
    [titled] = [child.pid for child in psutil.Process(agent.pid).children()]
    try:
        found = fencing.Search(folder, set()).processes()
        assert found == dict.fromkeys((agent.pid, titled, inner), id_of(0)) | {beside.pid: id_of(1)}
        assert fence_nodes(folder, [id_of(0)]).killed == 3
        assert beside.poll() is None and _read_state(nested) == "S"
        assert ended(agent) and {_read_state(pid) for pid in (titled, inner)} <= {"", "Z"}
    finally:
        for pid in (nested, inner, titled, agent.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.communicate()


def test_nothing_is_killed_where_numbers_of_processes_may_mean_others(
    home: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(home)
    process = node(folder)
    monkeypatch.setattr(os, "readlink", lambda _path: str(os.getpid() + 1))
    for act in (fence_job, living):
        with pytest.raises(Error) as raised:
            act(folder)
        assert raised.value.slug == "platform-unsupported"
    assert process.poll() is None


def test_spared_nodes_stay_and_so_does_whoever_asks(
    home: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(home)
    kept, stray = node(folder, 0), node(folder, 1, card=b"")
    monkeypatch.setenv("HOLDFAST_NODE", id_of(1))
    assert fence_job(folder, spared=frozenset({id_of(0)})).killed == 1
    assert kept.poll() is None and ended(stray)


def test_what_cannot_be_killed_is_named_and_nothing_is_removed(
    home: Path, node: Node, unkillable: Callable[[int], None]
) -> None:
    folder = made(home)
    process = node(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    unkillable(process.pid)
    acts: list[Callable[[], object]] = [
        lambda: create(JOB, folder, replace=True, now=2.0),
        lambda: stop_abandoned(folder, "a test").killed,
    ]
    for act in acts:
        with pytest.raises(Error) as raised:
            act()
        assert raised.value.slug == "process-stuck" and raised.value.status == ExitStatus.PLATFORM
        assert f"process {process.pid} of {id_of(0)}" in raised.value.why
        assert "uninterruptible sleep (state D)" in raised.value.why
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["job"]
    assert not controller_alive(folder)


def test_a_node_is_given_up_for_good_whatever_cannot_be_killed_of_it(
    home: Path,
    node: Node,
    unkillable: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = made(home)
    process = node(folder)
    unkillable(process.pid)

    async def fenced() -> Sequence[AnyEvent]:
        with driver_of(folder) as driver:
            found: asyncio.Future[Sequence[AnyEvent]] = asyncio.get_running_loop().create_future()
            driver.remove(Fence(node=id_of(0), reason="it is late"), found.set_result)
            return await found

    (told,) = asyncio.run(fenced())
    assert isinstance(told, NodeLost) and told.reason is NodeLostReason.STUCK
    assert f"process {process.pid} " in told.detail
    assert told.detail in capsys.readouterr().err


def test_named_memory_of_a_node_goes_with_it(home: Path, node: Node) -> None:
    folder = made(home)
    processes = [node(folder, number) for number in range(2)]
    kept = [node_memory.made(id_of(number)) for number in range(2)]
    for memory in kept:
        assert memory is not None
        (memory / "vader_segment.0").write_bytes(b"x")
    assert fence_nodes(folder, [id_of(0)]).killed == 1
    assert [memory.exists() for memory in kept if memory] == [False, True]
    assert fence_job(folder).killed == 1
    assert [memory.exists() for memory in kept if memory] == [False, False]
    assert all(ended(process) for process in processes)


def test_the_end_of_a_job_does_not_wait_for_an_agent_that_has_not_said_hello(
    home: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LEAVE_S", math.inf)
    folder = made(home)
    process = node(folder)

    async def end() -> None:
        with driver_of(folder) as driver:
            driver._add(AgentProcess(id_of(0), "node-0", process.pid, process), 60.0)
            await asyncio.wait_for(driver._end(Outcome.STOPPED), PATIENCE_S)

    asyncio.run(end())
    assert ended(process)


def test_of_two_jobs_of_one_name_that_are_made_at_once_one_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "jobs" / "job"
    fill, first = records._fill, []

    def slow_fill(job: Job, temporary: Path, now: float) -> None:
        monkeypatch.setattr(records, "_fill", fill)
        first.append(create(JOB, folder, now=1.0))  # somebody else, between look and rename
        fill(job, temporary, now)

    monkeypatch.setattr(records, "_fill", slow_fill)
    with pytest.raises(Error) as raised:
        create(JOB, folder, now=2.0)
    assert (raised.value.slug, raised.value.status) == ("job-exists", ExitStatus.USAGE)
    assert read_header(folder / "journal.jsonl").created_at == 1.0
    assert [path.name for path in folder.parent.iterdir()] == ["job"]
    os.close(first[0])


def test_a_job_is_locked_from_its_first_moment(home: Path) -> None:
    folder = home / "jobs" / "job"
    lock = create(JOB, folder, now=1.0)
    for replace in (False, True):
        with pytest.raises(Error) as raised:
            create(JOB, folder, replace=replace, now=2.0)
        assert raised.value.slug == "job-running"
    with locked(folder, lock):
        assert controller_alive(folder)
    assert not controller_alive(folder)


def test_who_only_looks_for_a_controller_keeps_nobody_from_being_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine `holdfast status` may be held up while it shares the lock."""
    folder = home / "jobs" / "job"
    os.close(create(JOB, folder, now=1.0))
    asker = os.open(folder / "lock", os.O_RDWR)
    fcntl.flock(asker, fcntl.LOCK_SH)
    pauses = iter(range(100))

    def pause(_seconds: float) -> None:
        if next(pauses) == 99:
            os.close(asker)

    monkeypatch.setattr(time, "sleep", pause)
    with locked(folder):
        assert controller_alive(folder)
        with pytest.raises(Error) as raised, locked(folder):
            pass
    assert raised.value.slug == "job-running"
    assert not list(pauses), "as long as it took"


HOLDS_LOCK = """
import os, sys, time
fd = os.open(sys.argv[1] + "/lock", os.O_RDWR)
print("has it", flush=True)
time.sleep(600)
"""


def test_of_a_job_whose_folder_was_removed_the_controller_that_still_runs_is_named(
    home: Path,
) -> None:
    """Found by hand: it trained on, and no command would tell how to stop it."""
    folder = made(home)
    words = [sys.executable, "-c", HOLDS_LOCK, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"has it\n"
            assert fencing.controllers_without_folder(folder) == [], "it is there"
            shutil.rmtree(folder)
            with pytest.raises(Error) as raised:
                job_folder("job")
            assert raised.value.slug == "job-not-found"
            assert raised.value.help.startswith(f"kill {holder.pid} ")
            with pytest.raises(Error) as raised:
                job_folder("jo")
            assert "kill" not in raised.value.help
        finally:
            holder.kill()


def test_a_record_that_cannot_be_replaced_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(home)
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if target == folder and len(os.listdir(folder.parent)) == 2 and not folder.exists():
            monkeypatch.setattr(Path, "rename", rename)
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    token = records.read_secret(folder)
    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(Error, match="Input/output error"):
        create(JOB, folder, replace=True, now=2.0)
    assert records.read_secret(folder) == token
    assert [path.name for path in folder.parent.iterdir()] == ["job"]
