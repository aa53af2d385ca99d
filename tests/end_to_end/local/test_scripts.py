"""Scripts that misbehave: each ends as its user would expect, with the reason on the screen."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.local import in_group
from tests.end_to_end.local.jobs import TOGETHER, RunningJob, program
from tests.memory_group import limited
from tests.patience import PATIENCE_S, until
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left", "own_temporary_folder")]

TWO = {"nodes": {"count": 2}}
RANK = "import os, sys, time\nrank = int(os.environ['RANK'])\n"


def why(job: RunningJob) -> str:
    told = holdfast("why", job.name)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_a_job_that_does_nothing_says_little(home: Path) -> None:
    job = program(home, "pass").start()
    job.wait_end()
    assert len(job.said().splitlines()) < 10, job.said()


@pytest.mark.parametrize(
    ("text", "kind"),
    [("def f(:\n", "SyntaxError"), ("import no_such_module_xyz\n", "ModuleNotFoundError")],
)
def test_a_script_that_cannot_run_fails_after_the_second_time(
    home: Path, text: str, kind: str
) -> None:
    job = program(home, text).start()
    job.wait_end(1)
    assert len(job.incidents()) == 2
    told = why(job)
    assert kind in told and "script.py" in told
    assert ("known  module-missing (environment)" in told) == (kind == "ModuleNotFoundError")


@pytest.fixture
def memory() -> Iterator[Path]:
    yield from limited(400 << 20)


def test_a_worker_that_uses_up_its_memory_is_told_from_one_that_is_killed(
    home: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills it, which nobody sees but the counter of its control group."""
    text = RANK + "eaten = []\nwhile rank == 1: eaten.append(b'x' * (1 << 22))\ntime.sleep(600)"
    monkeypatch.setenv(in_group.VARIABLE, str(memory))
    job = program(home, text, **TOGETHER)
    job.by = in_group.InGroup
    job.start().wait_end(1)
    assert [(i.cause, i.rank) for i in job.incidents()] == [("out-of-memory", 1)] * 2
    assert "Rank 1 was killed by the kernel's out-of-memory killer (memory limit 400 MiB)" in why(
        job
    )


def test_an_exception_on_one_rank_is_shown_with_its_traceback(home: Path) -> None:
    text = RANK + "if rank == 1:\n    {}['missing key']\ntime.sleep(60)\n"
    job = program(home, text, **TWO).start()
    job.wait_end(1)
    assert [i.rank for i in job.incidents()] == [1, 1]
    assert "KeyError: 'missing key'" in why(job)


def test_a_warm_script_shows_the_same_traceback(home: Path) -> None:
    text = RANK + "def f():\n    raise ValueError('bad value')\nif rank == 1:\n    f()\n"
    job = program(home, text + "time.sleep(60)\n", warm={"mode": "imports"}, **TWO).start()
    job.wait_end(1)
    found = why(job)
    assert "ValueError: bad value" in found
    assert "runpy" not in found
    assert "forkserver" not in found


def test_an_exit_status_is_reported_and_ends_the_job(home: Path) -> None:
    job = program(home, RANK + "sys.exit(3 if rank else 0)\n", **TWO).start()
    job.wait_end(1)
    assert {i.exit_code for i in job.incidents()} == {3}


def test_a_rank_that_leaves_early_while_another_works_is_awaited(home: Path) -> None:
    job = program(home, RANK + "if rank:\n    time.sleep(3)\n", **TWO).start()
    job.wait_end(0)
    assert job.incidents() == []


def test_a_segfault_is_called_by_its_name(home: Path) -> None:
    text = "import ctypes\nctypes.string_at(0)\n"
    job = program(home, text, recovery={"max_restarts": 1}).start()
    job.wait_end(5)
    assert {i.signal for i in job.incidents()} == {signal.SIGSEGV}
    assert {i.cause for i in job.incidents()} == {"worker-crashed"}


def test_children_of_a_script_do_not_outlive_it(home: Path) -> None:
    text = (
        "import os, subprocess, sys\n"
        "hold = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "subprocess.Popen(hold)\n"
        "subprocess.Popen(hold, start_new_session=True)\n"
        "print('children', flush=True)\n"
    )
    job = program(home, text).start()
    job.wait_end()
    assert "children" in job.said()


def test_endless_output_neither_stalls_the_job_nor_fills_the_disk(home: Path) -> None:
    text = "while True: print('x' * 200)\n"
    limit = 256 * 1024
    logs = {"max_bytes": limit, "terminal": "none"}
    job = program(home, text, logs=logs).start()
    job.wait_until(lambda s: s.phase == "running", "running")
    log = job.folder / "logs" / "attempt-1"
    assert until(lambda: len(list(log.glob("rank-0.log*"))) == 2), "never rotated"
    assert sum(f.stat().st_size for f in log.iterdir()) < 3 * limit
    assert job.process is not None
    job.process.send_signal(signal.SIGTERM)
    job.wait_end(130)


def test_any_program_can_be_run(home: Path) -> None:
    job = RunningJob(home, command=["/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE"], **TWO)
    job.start().wait_end()
    assert "rank 0 of 2" in job.said()
    assert "rank 1 of 2" in job.said()


def test_a_missing_program_is_named(home: Path) -> None:
    job = RunningJob(home, command=["/no/such/program"]).start()
    assert job.process is not None
    assert job.process.wait(PATIENCE_S) in (1, 2)
    assert "/no/such/program" in job.said()


def test_a_port_that_the_script_wants_twice_is_the_scripts_own_error(home: Path) -> None:
    text = (
        "import os, socket, time\n"
        "s = socket.socket(); s.bind(('127.0.0.1', int(os.environ['WANTED'])))\n"
        "s.listen(); time.sleep(30)\n"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        job = program(home, text, env={"WANTED": str(taken.getsockname()[1])}).start()
        job.wait_end(1)
    assert "Address already in use" in why(job)


def test_the_environment_is_as_torchrun_gives_it(home: Path) -> None:
    names = (
        "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME WORLD_SIZE LOCAL_WORLD_SIZE "
        "GROUP_WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID "
        "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS"
    )
    text = f"import os\nprint([os.environ[n] for n in '{names}'.split()])\n"
    with_torch = {"framework": "pytorch", "workers_per_node": 2, **TWO}
    program(home, text, **with_torch).start().wait_end()


def test_a_fork_that_takes_the_terminal_away_is_survived(home: Path) -> None:
    job = program(home, "import os\nos.close(1)\nos.close(2)\n").start()
    job.wait_end()


def test_two_jobs_run_side_by_side(home: Path) -> None:
    first = program(home, "import time; time.sleep(2)", name="first").start()
    second = program(home, "import time; time.sleep(2)", name="second").start()
    first.wait_end()
    second.wait_end()


def test_a_finished_name_is_not_overwritten_by_accident(home: Path) -> None:
    program(home, "pass").start().wait_end()
    again = program(home, "pass").start()
    assert again.process is not None
    assert again.process.wait(PATIENCE_S) == 2
    assert "error[job-exists]" in again.said()
    program(home, "pass").start("--replace").wait_end()


def test_a_home_that_cannot_be_written_is_an_error(home: Path) -> None:
    (home / "jobs").write_text("in the way")
    job = program(home, "pass").start()
    assert job.process is not None
    assert job.process.wait(PATIENCE_S) == 3
    assert "error[path-unusable]" in job.said()
    assert os.listdir(home) == ["jobs"]
