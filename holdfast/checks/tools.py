"""Checks by the tools of others, where they are installed: DCGM's diagnosis and nccl-tests.

python -m holdfast.checks.tools '{"check": "dcgmi diag"}'
"""

import shutil
import subprocess
from collections.abc import Sequence

from holdfast import devices
from holdfast.checks.host import order
from holdfast.checks.outcome import CheckFinding, tell

LINES = 3  # of a tool's output that are shown


def main() -> None:
    """Run the tool that is asked for."""
    told = order()
    checks = {"dcgmi diag": dcgmi, "nccl-tests": nccl_tests}
    tell(told.check, checks[told.check])


def dcgmi() -> CheckFinding:
    """NVIDIA's diagnosis of level 1, which takes seconds."""
    if shutil.which("dcgmi") is None:
        return CheckFinding("skipped", "dcgmi is not installed")
    help_ = "dcgmi diag -r 2   (looks longer); drain the node if it fails again"
    return _ran(["dcgmi", "diag", "-r", "1"], help_)


def nccl_tests() -> CheckFinding:
    """All-reduce over the GPUs of this machine, with its results compared."""
    if shutil.which("all_reduce_perf") is None:
        return CheckFinding("skipped", "nccl-tests (all_reduce_perf) is not installed")
    count = devices.present("cuda")
    if count < 2:
        return CheckFinding("skipped", f"all_reduce_perf needs 2 GPUs, this machine has {count}")
    command = ["all_reduce_perf", "-b", "8M", "-e", "64M", "-f", "2", "-g", str(count), "-c", "1"]
    return _ran(command, "nvidia-smi topo -m; nvidia-smi nvlink --status")


def _ran(command: Sequence[str], help_: str) -> CheckFinding:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )
    lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines()]
    last = "; ".join([line for line in lines if line][-LINES:])[:400]
    if done.returncode:
        return CheckFinding("failed", f"exit status {done.returncode}: {last}", help=help_)
    return CheckFinding("ok", last or "exit status 0")


if __name__ == "__main__":
    main()
