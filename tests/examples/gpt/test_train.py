"""The same training script runs alone, under torchrun and under Holdfast."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch

from tests.more import long
from tests.patience import PATIENCE_S
from tests.warm import PIPE, Script, holdfast

SCRIPT = Path(__file__).parents[3] / "examples" / "gpt" / "train.py"
BIN = Path(sys.executable).parent
SIZES = {"layers": 1, "width": 32, "heads": 2, "context": 32, "batch-size": 2, "print-every": 1}
SMALL = [f"--{name}={value}" for name, value in SIZES.items()]
STEPS = 6


def script(target: Path) -> list[str]:
    """The script and its arguments."""
    return [str(SCRIPT), *SMALL, "--steps", str(STEPS), "--save", str(target)]


def trained(launcher: list[str], target: Path) -> tuple[list[str], dict[str, torch.Tensor]]:
    """The losses it printed and the parameters it saved."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = Script.of_file(
        [*launcher, *script(target)], env=environment, stdout=PIPE, stderr=PIPE, text=True
    )
    said, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return re.findall(r"loss (\S+)", said), torch.load(target, weights_only=True)


@long
def test_runs_alone_and_is_the_same_each_time(tmp_path: Path) -> None:
    losses, parameters = trained([], tmp_path / "first.pt")
    losses_again, parameters_again = trained([], tmp_path / "second.pt")
    assert len(losses) == STEPS
    assert losses == losses_again
    assert all(torch.equal(parameters[name], parameters_again[name]) for name in parameters)
    assert {path.name for path in tmp_path.iterdir()} == {"first.pt", "second.pt"}


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left", "own_temporary_folder")
def test_gives_under_holdfast_what_it_gives_under_torchrun(tmp_path: Path) -> None:
    logs = ("--log-dir", str(tmp_path / "logs"))
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", *logs]
    losses, parameters = trained(torchrun, tmp_path / "torchrun.pt")
    target = tmp_path / "holdfast.pt"
    ran = holdfast("run", "--nproc-per-node", "2", *script(target), OMP_NUM_THREADS="1")
    assert ran.returncode == 0, ran.stderr
    ours = torch.load(target, weights_only=True)
    assert len(losses) == STEPS
    assert all(torch.equal(parameters[name], ours[name]) for name in parameters)
