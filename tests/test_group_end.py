"""A script that leaves its process group to the interpreter ends well all the same."""

import subprocess
import sys

import pytest

from tests.more import long, sample
from tests.patience import PATIENCE_S
from tests.warm import PIPE, Script

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
    ("backends", "end"),
    sample([(("gloo",), "left"), (("nccl",), "still there")], [((), "left")]),
)
def test_a_group_that_the_script_has_left_behind_is_destroyed_by_its_own_process(
    backends: tuple[str, ...], end: str
) -> None:
    text = f"import sys; sys.argv = {['-c', *backends]}\n{SCRIPT}"
    process: subprocess.Popen[str] = (
        subprocess.Popen([sys.executable, "-c", text], stdout=PIPE, stderr=PIPE, text=True)
        if end == "left"  # as an interpreter ends, with all that PyTorch has there
        else Script([text], stdout=PIPE, stderr=PIPE, text=True)
    )
    said, errors = process.communicate(timeout=PATIENCE_S)
    assert said.splitlines() == [end], errors
    assert end != "left" or process.returncode == 0, errors


LATE = """
import sys, time
from holdfast.group_end import leave_at_exit
leave_at_exit(("gloo",))
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
def works(_):
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
    print("over", flush=True)
work = dist.all_reduce(torch.ones(3), async_op=True)
future = work.get_future()
future.then(works)
if "itself" in sys.argv:
    dist.destroy_process_group()
"""


@long
@pytest.mark.parametrize("who", sample(["nobody"], ["itself"]))
def test_threads_of_a_group_that_a_model_still_holds_come_to_rest_before_the_end(who: str) -> None:
    words = [sys.executable, "-c", LATE, who]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.returncode, ran.stdout) == (0, "over\n"), ran.stderr
