"""`torchrun --rdzv-backend=holdfast`: real torchrun, and a store of its own for each attempt."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from tests.more import sample
from tests.patience import PATIENCE_S
from tests.warm import PIPE, Script

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_temporary_folder")]

SCRIPT = """
import os, torch, torch.distributed as dist
def say(line):  # the ranks share one pipe, and an unbuffered print writes piece by piece
    os.write(1, f"{line}\\n".encode())
dist.init_process_group("gloo")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = torch.ones(1)
dist.all_reduce(total)
store = dist.distributed_c10d._get_default_store()
seen = store.check(["left behind"])
dist.barrier()
say(f"attempt {attempt} store {os.environ['MASTER_PORT']} old {seen}")
dist.PrefixStore("", store.underlying_store).set("left behind", "x")
store.set("left behind", "x")
dist.barrier()
if attempt == 0 and dist.get_rank() == 1:
    os.kill(os.getpid(), 9)
dist.all_reduce(total)
say(f"done {total.item()}")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("fresh", sample([False], [True]))  # interpreters of their own
def test_torchrun_finds_it_and_each_attempt_has_a_fresh_store(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [
        *(str(Path(sys.executable).parent / "torchrun"), "--rdzv-backend=holdfast"),
        *("--rdzv-endpoint=localhost:0", "--nproc-per-node=2", "--max-restarts=2", "script.py"),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    how: dict[str, Any] = {"cwd": tmp_path, "env": env, "stdout": PIPE, "stderr": PIPE}
    process = (
        subprocess.Popen([sys.executable, *command], text=True, **how)
        if fresh
        else Script.of_file(command, text=True, **how)
    )
    said, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    lines = re.findall(r"attempt (\d) store (\d+) old (True|False)", said)
    assert len(lines) == 4 and {old for _, _, old in lines} == {"False"}
    by_attempt = {attempt: store for attempt, store, _ in lines}
    assert by_attempt["0"] != by_attempt["1"]
    assert said.count("done 4.0") == 2


def test_of_what_is_started_unbuffered_only_files_are_forked() -> None:
    words = [sys.executable, "-u", "-c", "print('a module or a command is executed')"]
    process = Script([f"import subprocess; subprocess.run({words!r}, check=True)"], stdout=PIPE)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, b"a module or a command is executed\n")


def test_the_package_says_where_torchrun_finds_it() -> None:
    (found,) = entry_points(group="torchrun.handlers", name="holdfast")
    assert found.value == "holdfast.integrations.torchrun:handler"
