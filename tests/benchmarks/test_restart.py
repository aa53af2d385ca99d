"""The benchmark of restarts leaves nothing behind, whatever ends it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

import restart
from tests.patience import PATIENCE_S, until

RUNS = """
import sys, time
from pathlib import Path
from restart import Contestant, running
job = Contestant(["sh", "-c", "sleep 600 & echo $! > new; mv new child; wait"])
with running(job, Path(sys.argv[1])):
    time.sleep(600)
"""


def test_who_is_terminated_ends_the_job_and_all_that_it_has_started(tmp_path: Path) -> None:
    """Found by hand: trainings went on for an hour beside other measurements."""
    path = f"{Path(restart.__file__).parent}:{Path(restart.__file__).parents[1]}"
    command = [sys.executable, "-c", RUNS, str(tmp_path)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    child = tmp_path / "child"
    until(lambda: process.poll() is not None or child.exists())
    pid = int(child.read_text())
    process.terminate()
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert until(lambda: not psutil.pid_exists(pid))
