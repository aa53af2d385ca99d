"""The controller may die, be stopped or be asked twice; training does not notice."""

import json
import os
import signal
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.end_to_end.local.jobs import ENDLESS, TOGETHER, RunningJob, program, small
from tests.more import long
from tests.patience import PATIENCE_S, until
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def endless(home: Path, first: str = "", **spec: Any) -> RunningJob:
    """A job of two nodes, up and without an end of its own."""
    text = f"{first}import time\nprint('up', flush=True)\nwhile True: time.sleep(0.1)\n"
    job = program(home, text, nodes={"count": 2}, **spec).start()
    job.wait_until(lambda s: s.phase == "running" and job.said().count("up") == 2, "running")
    return job


def test_stacks_show_which_rank_the_others_wait_for(home: Path) -> None:
    """One rank sleeps where the others are in a collective; a third is stopped by a signal."""
    script = """
        import os, time
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        def read_batch():
            print("reading", flush=True)
            time.sleep(1e6)
        if dist.get_rank() == 1:
            read_batch()
        print("waiting", flush=True)
        dist.all_reduce(torch.ones(1))
    """
    job = program(home, textwrap.dedent(script), nodes={"count": 3}).start()
    job.wait_until(lambda _: job.said().count("ing") == 3, "all to be there")
    os.kill(job.worker(2), signal.SIGSTOP)

    def shown() -> str:
        return holdfast("stacks", job.name).stdout

    assert until(lambda: "read_batch" in shown() and ", stopped" in shown()), shown()
    text = shown()
    assert "3 ranks at 3 places" in text
    assert text.index("= 1 rank (1)") < text.index("all_reduce"), "the odd one first"
    whole = holdfast("stacks", job.name, "--rank", "1").stdout
    assert "thread MainThread" in whole and "time.sleep" not in whole
    native = holdfast("stacks", job.name, "--native", "--rank", "1").stdout
    assert "sleep (libc" in native or "no frames of C: py-spy did not answer" in native, native
    wrong = holdfast("stacks", job.name, "--rank", "7")
    assert wrong.returncode != 0 and "error[rank-not-found]" in wrong.stderr
    os.kill(job.worker(2), signal.SIGCONT)
    holdfast("stop", job.name, "--now")
    over = holdfast("stacks", job.name)
    assert over.returncode != 0 and "error[job-not-running]" in over.stderr


def test_a_killed_controller_does_not_disturb_training_and_resume_goes_on(home: Path) -> None:
    job = small(home, args=[*ENDLESS, "--pause", "0.1"]).start()
    job.wait_step(5)
    workers = [job.worker(0), job.worker(1)]
    job.kill_controller()
    assert job.status().controller == "away"
    before = len(job.metrics())
    assert until(lambda: len(job.metrics()) > before + 10), "training stopped"
    job.resume()
    job.wait_step(before + 15)
    assert [job.worker(0), job.worker(1)] == workers
    job.finish()
    assert job.incidents() == []
    steps = [*job.losses()]
    assert steps == [*range(1, len(steps) + 1)]


@long
def test_a_fault_while_the_controller_is_away_is_repaired_when_it_is_back(home: Path) -> None:
    job = small(home, args=["--steps", "80"]).start()
    job.wait_step(10)
    worker = job.worker(1)
    job.kill_controller()
    os.kill(worker, signal.SIGKILL)
    assert until(lambda: not psutil.pid_exists(worker))
    job.resume().wait_end()
    assert [i.cause for i in job.incidents()] == ["worker-killed"]
    assert len(job.losses()) == 80


@long
def test_a_job_that_ended_while_the_controller_was_away_ends_as_if_nothing_had_happened(
    home: Path,
) -> None:
    may_end = home / "may-end"
    words = ["--steps", "30", "--last-waits-for", str(may_end)]
    job = small(home, args=words, **TOGETHER).start()
    job.wait_step(10)
    job.kill_controller()
    may_end.touch()
    assert until(lambda: (job.out / "final.pt").exists())
    job.resume().wait_end()
    assert job.status().outcome == "succeeded"


def test_a_second_controller_is_refused_and_the_first_is_scraped_where_its_status_says(
    home: Path,
) -> None:
    job = endless(home, monitoring={"port": 0})
    for verb in (["resume", job.name], ["run", str(job.file)]):
        second = holdfast(*verb)
        assert second.returncode == 2, second
        assert "error[job-running]" in second.stderr
    assert job.status().attempt == 1
    url = job.status().metrics or ""
    assert b'holdfast_phase{phase="running"} 1.0' in _read(url)
    [found] = json.loads(_read(url.replace("/metrics", "/targets")))
    agents = [_read(f"http://{target}/metrics") for target in found["targets"][1:]]
    assert all(b"holdfast_node_workers" in page for page in agents) and len(agents) == 2
    assert url in holdfast("status", job.name).stdout
    _stop(job.name, "--now")
    job.wait_end(130)


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        found: bytes = answer.read()
        return found


def test_a_stop_is_clean_and_the_exit_status_says_so(home: Path) -> None:
    job = endless(home)
    _stop(job.name)
    job.wait_end(130)
    assert job.status().outcome == "stopped"
    assert job.incidents() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_to_the_job_stops_it(home: Path, number: int) -> None:
    job = endless(home)
    assert job.process is not None
    job.process.send_signal(number)
    job.wait_end(130)
    assert job.status().outcome == "stopped"


def test_a_second_signal_does_not_wait_for_the_grace_time(home: Path) -> None:
    ignore = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    job = endless(home, ignore, recovery={"stop_grace_s": 10 * PATIENCE_S})
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.wait_until(lambda s: s.phase == "closing", "closing")
    job.process.send_signal(signal.SIGINT)
    job.wait_end(130)


def test_a_replaced_job_whose_controller_was_killed_leaves_nothing(home: Path) -> None:
    job = small(home, args=[*ENDLESS, "--pause", "0.1"]).start()
    job.wait_step(5)
    job.kill_controller()
    (job.folder / "nodes" / "node-0" / "agent.json").unlink()
    (job.folder / "nodes" / "node-1" / "agent.json").write_text("{")
    words = ["run", "--replace", "--name", job.name, "--no-python", "true"]
    assert holdfast(*words).returncode == 0


def test_neither_a_closed_terminal_nor_a_signal_that_asks_for_nothing_stops_the_job(
    home: Path,
) -> None:
    job = small(home, args=[*ENDLESS, "--pause", "0.1"], **TOGETHER).start()
    done = job.wait_step(5).step or 0
    assert job.process is not None
    for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN, signal.SIGHUP):
        job.process.send_signal(number)
    job.wait_step(done + 5)
    job.finish()
    assert job.incidents() == []


@long
def test_a_controller_that_was_paused_does_not_blame_the_nodes(home: Path) -> None:
    recovery = {"heartbeat_timeout_s": 1.0}
    job = small(home, args=["--steps", "40", "--pause", "0.2"], recovery=recovery).start()
    job.wait_step(5)
    assert job.process is not None
    job.process.send_signal(signal.SIGSTOP)
    before = len(job.metrics())
    assert until(lambda: len(job.metrics()) > before + 10)
    job.process.send_signal(signal.SIGCONT)
    job.wait_end()
    assert job.incidents() == []


def _stop(name: str, *more: str) -> None:
    told = holdfast("stop", name, *more)
    assert told.returncode == 0, told.stderr
