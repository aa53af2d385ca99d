"""The training script of the recipes saves itself when a machine goes, and goes on from there."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from tests.more import long
from tests.patience import PATIENCE_S, until
from tests.tidy.source import ROOT
from tests.warm import Script

SCRIPT = ROOT / "recipes" / "kubernetes" / "train.py"
NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
}


@contextmanager
def ranks(folder: Path, launcher: str, *options: str) -> Iterator[list[Script]]:
    """Two ranks as a launcher starts them; killed at the end if they still run. The launcher has
    the store, as torchrun's agent does: a port that is only looked for may be another's by then."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started = [_rank(folder, launcher, rank, str(store.port), options) for rank in (0, 1)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def _rank(folder: Path, launcher: str, rank: int, port: str, options: tuple[str, ...]) -> Script:
    place = dict(zip(NAMES[launcher], (str(rank), "2", str(rank)), strict=True))
    env = {
        **{k: v for k, v in os.environ.items() if k not in sum(NAMES.values(), ())},
        **place,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
        "HOLDFAST_CHECKPOINT_LOCAL": str(folder / "local"),
        "HOLDFAST_CHECKPOINT_SHARED": str(folder / "shared"),
    }
    with (folder / f"rank-{rank}.log").open("ab") as log:
        words = [str(SCRIPT), "--width", "32", "--print-every", "5", *options]
        return Script.of_file(words, env=env, stdout=log, stderr=log)


def log(folder: Path) -> str:
    return (folder / "rank-0.log").read_text()


def steps(folder: Path) -> list[int]:
    """Steps of which there is a checkpoint."""
    return sorted(int(path.stem[5:]) for path in folder.glob("step-*.pt"))


@pytest.mark.slow
def test_sigterm_to_one_rank_saves_the_step_of_all_and_the_next_start_goes_on(
    tmp_path: Path,
) -> None:
    with ranks(tmp_path, "torchrun", "--steps", "1000000", "--shared-every", "900000") as first:
        assert until(lambda: "step     10" in log(tmp_path))
        first[1].send_signal(signal.SIGTERM)
        assert [process.wait(PATIENCE_S) for process in first] == [143, 143]
    told = re.search(r"leaving after step (\d+)", log(tmp_path))
    assert told is not None
    last = int(told[1])
    assert steps(tmp_path / "shared") == [last]
    with ranks(tmp_path, "Open MPI", "--steps", str(last + 3)) as second:
        assert [process.wait(PATIENCE_S) for process in second] == [0, 0]
    assert f"from step {last}" in log(tmp_path)
    assert steps(tmp_path / "shared") == [last, last + 3]


@long
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["Open MPI", "MPICH"])
def test_ranks_of_mpirun_find_each_other_and_keep_the_newest_checkpoints(
    tmp_path: Path, launcher: str
) -> None:
    with ranks(tmp_path, launcher, "--steps", "12", "--local-every", "4") as started:
        assert [process.wait(PATIENCE_S) for process in started] == [0, 0]
    assert "2 ranks on" in log(tmp_path)
    assert steps(tmp_path / "local") == [8, 12]
    state = torch.load(tmp_path / "shared" / "step-000000012.pt", weights_only=True)
    assert state["step"] == 12
