"""`join()` and what it gives, in processes of their own: alone, warm, with torchrun's variables."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from torch._C._distributed_c10d import TCPStore

from holdfast.checkpoint.arena import Arena
from holdfast.events import Milestone
from holdfast.messages import Assignment
from holdfast.page import Page
from tests import warm
from tests.patience import PATIENCE_S
from tests.train.conftest import Make, Undisturbed

WITHOUT_LIBRARY = (Milestone.OUTPUT, Milestone.STEPPED)  # milestones of other scripts


def start(code: str, env: dict[str, str], *fds: int) -> warm.Script:
    """A script in an interpreter of its own, which has torch already."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST")}
    return warm.Script(
        [code],
        env={**clean, "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=fds,
    )


def run(code: str, **env: str) -> tuple[int, str]:
    """Exit status and output of a script."""
    with start(code, env) as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, output


TRAIN = "from tests.train.workload import main; main()"


def losses(folder: Path) -> list[str]:
    lines = (folder / "rank-0.jsonl").read_text().splitlines()
    return [entry["loss"] for line in lines if "loss" in (entry := json.loads(line))]


def test_plain_python_gives_the_same_losses(tmp_path: Path, undisturbed: Undisturbed) -> None:
    code, output = run(TRAIN, RESULTS=str(tmp_path))
    assert code == 0, output
    assert output == ""
    assert losses(tmp_path) == undisturbed(1, 1)[0][0]


def test_two_ranks_with_only_torchruns_variables_train_alike(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Without Holdfast there is nothing to restore, and nothing else differs."""
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    env |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "RESULTS": str(tmp_path)}
    ranks = [start(TRAIN, {**env, "RANK": r, "LOCAL_RANK": r}) for r in "01"]
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    assert losses(tmp_path) == undisturbed(1, 2)[0][0]


WARM = """
print("warm", flush=True)
import torch.distributed as dist
from holdfast.train import join
run = join()
print("rank", run.rank, run.world_size, run.attempt, dist.is_initialized(), run.is_main)
"""


def control() -> tuple[int, int]:
    """What an agent passes: the worker's end and its own."""
    theirs, ours = socket.socketpair()
    return theirs.detach(), ours.detach()


def test_a_warm_worker_waits_for_its_rank_and_then_has_it() -> None:
    reading, writing = control()
    page = Page.create()
    env = {"HOLDFAST_CONTROL_FD": str(reading), "HOLDFAST_PAGE_FD": str(page)}
    with start(WARM, env, reading, page) as process:
        os.close(reading)
        assert process.stdout is not None and process.stdout.readline() == "warm\n"
        given = {"HOLDFAST_ATTEMPT": "4", "HOLDFAST_REDO_UNTIL": "9", "WORLD_SIZE": "1"}
        order = Assignment(attempt=4, rank=0, local_rank=0, world_size=1, redo_until=9, env=given)
        os.write(writing, msgspec.json.encode(order) + b"\n")
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert output == "rank 0 1 4 False True\n"
    reached = Page(page).report(0, 1, time.monotonic()).milestones
    assert list(reached) == [Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED]


@pytest.mark.parametrize("torn", [b"", b'{"attempt": 1'])
def test_a_warm_worker_that_is_not_needed_ends_quietly(torn: bytes) -> None:
    reading, writing = control()
    with start(WARM, {"HOLDFAST_CONTROL_FD": str(reading)}, reading) as process:
        os.close(reading)
        os.write(writing, torn)
        os.close(writing)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (0, "warm\n")


@pytest.mark.parametrize("name", ["PAGE", "ARENA", "STORAGE_PAGE", "CONTROL"])
@pytest.mark.parametrize("closed", [False, True])
def test_what_has_the_number_of_something_the_agent_gave_is_never_written_to(
    tmp_path: Path, name: str, closed: bool
) -> None:
    """In children of a worker the variables are there and the descriptors are not."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"of the script")
    fd = os.open(precious, os.O_RDWR)
    number = 900 if closed else fd
    code = "from holdfast.train import join\njoin()\n"
    with start(code, {f"HOLDFAST_{name}_FD": str(number)}, fd) as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
    os.close(fd)
    assert process.returncode == 1
    assert "error[run-unavailable]: this process is not the worker" in output
    assert precious.read_bytes() == b"of the script"


@pytest.mark.parametrize(
    ("line", "slug", "words"),
    [
        ("join()", "run-unavailable", "called twice"),
        ("run.track(thing=3)", "not-tracked", "thing (int)"),
        ("run.track(); run.track()", "run-unavailable", "called twice"),
        ("next(run.track(loader=Empty()).steps(1))", "loader-empty", "no batch"),
    ],
)
def test_misuse_is_explained(line: str, slug: str, words: str) -> None:
    code, output = run(
        "from holdfast.train import join\n"
        "class Empty(list):\n"
        "    def state_dict(self): return {}\n"
        "    def load_state_dict(self, state): pass\n"
        f"run = join()\n{line}\n"
    )
    assert code == 1
    assert f"error[{slug}]" in output and words in output


def test_what_a_schedule_cannot_keep_is_named_by_its_path() -> None:
    fd = Arena.create()
    code = (
        "import torch\nfrom holdfast.train import join\nrun = join()\n"
        "class Odd:\n"
        "    def state_dict(self): return {'inner': [1, open('/dev/null')]}\n"
        "    def load_state_dict(self, state): pass\n"
        "for step, batch in run.track(odd=Odd()).steps(3): pass\n"
    )
    with start(code, {"HOLDFAST_ARENA_FD": str(fd)}, fd) as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "]: odd.inner[1] is a _io.TextIOWrapper" in output


def test_a_mesh_is_there_even_alone() -> None:
    code, output = run(
        "from holdfast.train import join\nrun = join()\n"
        "print(run.mesh.mesh_dim_names, run.mesh.size(), run.mesh is run.mesh)\n"
    )
    assert (code, output) == (0, "('dp_replicate',) 1 True\n")


LAST_WORDS = """
import os, signal, torch, torch.distributed as dist
from holdfast.train import join
run = join()
dist.all_reduce(torch.zeros(1))
if run.rank == 1:
    print("stopping", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
work = dist.all_reduce(torch.zeros(1), async_op=True)
print("leaving", flush=True)
"""


def test_a_worker_can_end_although_its_peer_is_stopped() -> None:
    """With a collective under way that will never be answered."""
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    env |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    ranks = [start(LAST_WORDS, {**env, "RANK": r, "LOCAL_RANK": r}) for r in "01"]
    try:
        output, _ = ranks[0].communicate(timeout=PATIENCE_S)
        assert "leaving" in output
    finally:
        os.kill(ranks[1].pid, signal.SIGKILL)
        ranks[1].communicate()


def test_the_page_tells_the_story_of_a_run(make: Make) -> None:
    cluster = make(1, 2)
    cluster.run("1:1:step:4")
    second = cluster.finish()
    for rank, page in enumerate(second.pages):
        records, count = page.records(0)
        lines = [e for e in cluster.lines(rank) if e.get("attempt") == 2 and "loss" in e]
        assert [r.step for r in records] == [e["step"] + 1 for e in lines]
        assert [(r.loss or 0.0).hex() for r in records] == [e["loss"] for e in lines]
        assert all(r.tokens == 96 for r in records) and count == len(records)
        report = page.report(rank, 1, time.monotonic())
        assert list(report.milestones) == [m for m in Milestone if m not in WITHOUT_LIBRARY]
        ages = list(report.milestones.values())
        assert ages == sorted(ages, reverse=True), "milestones are reached in their order"
        assert report.progress.step == 8 and report.progress.finished
        assert (report.snapshot_step, report.snapshot_every) == (8, 1)
        assert report.snapshot_ago_s is not None and report.snapshot_took_s is not None
        assert 0 < report.snapshot_took_s <= report.progress.snapshot_s
        assert report.steps_total == 8
        assert report.restored_step == second.restored[rank]


def test_caught_up_is_the_first_step_that_nobody_had_done(make: Make) -> None:
    cluster = make(1, 1, HOLDFAST_SNAPSHOT_EVERY="100")
    cluster.run("0:1:step:6")
    cluster.run("0:2:step:6")
    reached = cluster.attempts[1].pages[0].report(0, 1, 0.0).milestones
    assert Milestone.FIRST_STEP in reached and Milestone.CAUGHT_UP not in reached
    last = cluster.finish().pages[0].report(0, 1, 0.0).milestones
    assert Milestone.CAUGHT_UP in last
