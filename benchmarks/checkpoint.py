"""What saving costs: the stall of a step, the steps after it, the time until it is safe on disk.

    .venv/bin/python benchmarks/checkpoint.py [--quick] [--json] [--parameters 50,200]

Each contestant saves the same state, a stack of linear layers with Adam's moments, on one thread.
Contestants take turns, each in a process of its own that can be ended when it hangs; every save is
measured beside a memcpy of the same bytes into touched shared memory, just before, in the same
process, and every figure is the median over saves of the ratio to it, the first ones left out.
`stall` is the wait of the training thread, `durable` the time until everything is committed on
disk, `load` the time to read it back into the same tensors (`load_ahead`: without the checksums,
which a worker takes while its script builds the model), all in copies; `stall_s` and `durable_s` in
seconds; `next_five` is the excess of the next five steps of training over the five
before the save; `cost` is what the save took from training altogether: the stall and that excess,
in copies. DLRover and NVRx take part where they are installed; `why` says what kept a contestant
from it. On a machine without a GPU all of them copy from memory to memory.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from table import Row, report

SCRIPT = Path(__file__).parent / "scripts" / "saver.py"
CONTESTANTS = (
    *("memcpy", "torch_save", "dcp_save", "dcp_async_thread", "dcp_async_process"),
    *("dlrover", "nvrx", "holdfast", "holdfast_at_once", "holdfast_durable"),
)
PATH = f"{SCRIPT.parents[2]}:{SCRIPT.parents[1]}"
BATCH = 32  # samples of a step: as few as leave its forward and backward pass most of the time
ALONE = {"OMP_NUM_THREADS": "1", "ELASTIC_JOB_NAME": f"benchmark-{os.getpid()}"} | {
    name: value
    for value, names in {
        "0": ("RANK", "LOCAL_RANK", "GROUP_RANK"),
        "1": ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    }.items()
    for name in names
}
DLROVER = (Path("/dev/shm/ckpt_shm_*"), Path("/tmp/ckpt_sock/*"))  # outlive it on purpose
WARM_UP = 3  # saves of each process left out: memory is touched, modules are loaded
TIMEOUT_S = 300.0


def main() -> None:
    args = _arguments()
    sizes = [5] if args.quick else [int(size) for size in args.parameters.split(",")]
    rounds, saves = (1, 5) if args.quick else (args.rounds, args.saves)
    result: dict[str, Row] = {}
    for size in sizes:
        found: dict[str, list[Any]] = {name: [] for name in CONTESTANTS}
        for number in range(rounds):
            for name in CONTESTANTS:
                print(f"{size} M, round {number + 1}: {name}", file=sys.stderr, flush=True)
                found[name].append(measured(name, size * 1_000_000, saves))
        rows = {name: row(found[name]) for name in CONTESTANTS}
        report(f"Saving {size} M parameters with Adam", rows, as_json=False)
        result |= {f"{name}_{size}m": line for name, line in rows.items()}
    if args.json:
        print(json.dumps(result))


def measured(name: str, parameters: int, saves: int) -> list[dict[str, Any]] | str:
    """The saves of one process, or what kept it from saving."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        command = [sys.executable, str(SCRIPT), name, str(parameters), str(saves), folder]
        # files and not pipes: processes that a contestant leaves behind would keep a pipe open
        output, errors = Path(folder, "output"), Path(folder, "errors")
        _forget()
        with output.open("w") as out, errors.open("w") as err:
            process = subprocess.Popen(
                [*command, str(BATCH)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                env=os.environ | ALONE | {"PYTHONPATH": PATH},
            )  # fmt: skip
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT_S)
            _end(process)
            _forget()
        lines = output.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        said = errors.read_text().strip().splitlines()
    return found if len(found) == saves else (said or ["it ended without a word"])[-1]


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Some contestants leave processes behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _forget() -> None:
    for left in DLROVER:
        for path in left.parent.glob(left.name):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def row(processes: list[list[dict[str, Any]] | str]) -> Row:
    """One contestant's line."""
    saves = [
        one for found in processes if not isinstance(found, str) for one in found[WARM_UP - 1 :]
    ]
    why = next((found for found in processes if isinstance(found, str)), None)
    return {
        "n": len(saves),
        "stall": _ratio(saves, "stall_s", "floor_s"),
        "durable": _ratio(saves, "durable_s", "floor_s"),
        "stall_s": _median(saves, "stall_s"),
        "durable_s": _median(saves, "durable_s"),
        "floor_s": _median(saves, "floor_s"),
        "load": _ratio(saves, "load_s", "floor_s"),
        "load_ahead": _ratio(saves, "load_ahead_s", "floor_s"),
        "next_five": _excess(saves),
        "cost": _cost(saves),
        "why": None if why is None else why[:60],
    }


def _ratio(saves: list[dict[str, Any]], name: str, floor: str) -> float | None:
    known = [one[name] / one[floor] for one in saves if one[name] is not None]
    return round(median(known), 3) if known else None


def _median(saves: list[dict[str, Any]], name: str) -> float | None:
    known = [one[name] for one in saves if one[name] is not None]
    return round(median(known), 4) if known else None


def _excess(saves: list[dict[str, Any]]) -> float | None:
    known = [one["next_s"] / one["before_s"] - 1 for one in saves]
    return round(median(known), 4) if known else None


def _cost(saves: list[dict[str, Any]]) -> float | None:
    known = [(one["stall_s"] + one["next_s"] - one["before_s"]) / one["floor_s"] for one in saves]
    return round(median(known), 3) if known else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5 M parameters, one round")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--parameters", default="50,200", help="millions, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--saves", type=int, default=8, help="of each process")
    return parser.parse_args()


if __name__ == "__main__":
    main()
