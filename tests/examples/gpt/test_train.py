"""The same training script runs alone, under torchrun and under Holdfast."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.patience import PATIENCE_S
from tests.warm import Script, Warm

SCRIPT = Path(__file__).parents[3] / "examples" / "gpt" / "train.py"
BIN = Path(sys.executable).parent
SIZES = {"layers": 1, "width": 32, "heads": 2, "context": 32, "batch-size": 2, "print-every": 1}
SMALL = [f"--{name}={value}" for name, value in SIZES.items()]
STEPS = 6
HOLDFAST = "holdfast"


def trained(launcher: list[str], target: Path) -> tuple[list[str], dict[str, torch.Tensor]]:
    """The losses it printed and the parameters it saved."""
    with _started([*launcher, *words(target)]) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return re.findall(r"loss (\S+)", out), torch.load(target, weights_only=True)


def words(target: Path) -> list[str]:
    return [str(SCRIPT), *SMALL, "--steps", str(STEPS), "--save", str(target)]


def _started(command: list[str]) -> "subprocess.Popen[str]":
    """Forked where that is the same: the launcher is Python alone, or our command line."""
    how: dict[str, Any] = {"env": os.environ | {"OMP_NUM_THREADS": "1"}, "text": True}
    how |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if command[0] == str(SCRIPT):
        return Script.of_file(command, **how)
    return Warm(command[1:], **how) if command[0] == HOLDFAST else subprocess.Popen(command, **how)


def test_runs_alone_and_is_the_same_each_time(tmp_path: Path) -> None:
    losses, parameters = trained([sys.executable], tmp_path / "first.pt")
    losses_again, parameters_again = trained([], tmp_path / "second.pt")
    assert len(losses) == STEPS
    assert losses == losses_again
    assert all(torch.equal(parameters[name], parameters_again[name]) for name in parameters)
    assert {path.name for path in tmp_path.iterdir()} == {"first.pt", "second.pt"}


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_gives_under_holdfast_what_it_gives_under_torchrun(tmp_path: Path) -> None:
    logs = ("--log-dir", str(tmp_path / "logs"))
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", *logs]
    losses, parameters = trained(torchrun, tmp_path / "torchrun.pt")
    _, ours = trained([HOLDFAST, "run", "--nproc-per-node", "2"], tmp_path / "holdfast.pt")
    assert len(losses) == STEPS
    assert all(torch.equal(parameters[name], ours[name]) for name in parameters)
