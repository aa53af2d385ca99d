"""`make gpu`: run the tests of a GPU, print what they measured as one table, and keep it.

    make gpu                        torch and everything else from `make setup`
    make gpu PYTHON=python3         an interpreter that has them already; nothing is installed
    make gpu REHEARSE=1             on the CPU, to see that the tests work; nothing is kept

Ends with pytest's status; with 2 where there is no GPU.
"""

import argparse
import importlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.gpu.figures import FIGURES, REHEARSAL, keep, load, table

ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    *("torch", "numpy", "pytest", "pydantic", "msgspec", "websockets", "psutil", "xxhash"),
    *("typer", "rich", "yaml"),
)
TORCH_MIN = (2, 11)
INTERRUPTED = 2  # pytest's status


def main() -> int:
    """Check, run, report; the exit status."""
    args = _arguments()
    why = _why_not(rehearse=args.rehearse)
    if why:
        print(f"make gpu: {why}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="holdfast-gpu-") as folder:
        path = Path(folder, "figures.jsonl")
        began = time.monotonic()
        status = _run(args.pytest, {FIGURES: str(path)} | _rehearsal(args.rehearse))
        took_s = time.monotonic() - began
        ended = f"ended with status {status}" if status != INTERRUPTED else "was interrupted"
        outcome = f"pytest {ended} after {took_s:.0f} s."
        figures = load(path)
    print(f"\n{table(figures)}\n\n{outcome}")
    if figures and not args.rehearse:
        today = datetime.now(UTC).date()
        for kept in keep(args.folder, today, where(), outcome, figures):
            print(f"kept: {kept}")
    return status


def _rehearsal(wanted: bool) -> dict[str, str]:
    return {REHEARSAL: "1"} if wanted else {}


def _run(more: list[str], environment: dict[str, str]) -> int:
    """The tests, in a process of their own: a fault of a test may leave CUDA unusable. What was
    measured until somebody interrupts them is kept."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-v", "-rs"]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | environment | {"PYTHONPATH": os.pathsep.join(paths)}
    # Each job imports PyTorch anew: many times as long where its bytecode may be kept nowhere.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env.setdefault("PYTHONPYCACHEPREFIX", str(Path(environment[FIGURES]).with_name("bytecode")))
    tests = subprocess.Popen([*command, *more, "tests/gpu"], cwd=ROOT, env=env)
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda *_: tests.send_signal(signal.SIGINT))
    return tests.wait()


def _why_not(*, rehearse: bool) -> str:
    """What is missing; empty if nothing is."""
    missing = [name for name in NEEDED if not _has(name)]
    if missing:
        return f"{sys.executable} lacks {', '.join(missing)} (docs/measurements/README.md)"
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < TORCH_MIN:
        return f"torch {torch.__version__} is too old, 2.11 or later is needed"
    if rehearse or torch.cuda.is_available():
        return ""
    return "torch.cuda.is_available() is False: no GPU, or a torch that is built without CUDA"


def _has(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def where() -> dict[str, str]:
    """What the figures were taken on."""
    import torch

    device = torch.cuda.get_device_properties(0)
    nccl: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return {
        "device": torch.cuda.get_device_name(0),
        "memory": f"{device.total_memory >> 30} GiB",
        "driver": _driver(),
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, NCCL {'.'.join(map(str, nccl))}",
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": str(len(os.sched_getaffinity(0))),
        "commit": _said(["git", "rev-parse", "--short", "HEAD"]),
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return _said(query).partition("\n")[0]


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "not known"
    return done.stdout.strip()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Tests of a GPU.")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU; nothing is kept")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "measurements")
    parser.add_argument("pytest", nargs="*", help="more arguments for pytest, after --")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
