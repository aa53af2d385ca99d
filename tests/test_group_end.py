"""A script that leaves its process group to the interpreter ends well all the same."""

import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S

SCRIPT = """
import atexit, sys, threading
from holdfast.group_end import leave_at_exit
atexit.register(lambda: print("left" if not dist.is_initialized() else "still there", flush=True))
leave_at_exit(tuple(sys.argv[1:]))
import torch, torch.distributed as dist
assert threading.active_count() == 1
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
"""


@pytest.mark.parametrize(
    ("backends", "end"), [(("gloo",), "left"), ((), "left"), (("nccl",), "still there")]
)
def test_a_group_that_the_script_has_left_behind_is_destroyed_by_its_own_process(
    backends: tuple[str, ...], end: str
) -> None:
    words = [sys.executable, "-c", SCRIPT, *backends]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.stdout.splitlines() == [end], ran.stderr
    assert end != "left" or ran.returncode == 0, ran.stderr
