"""What watching the health of a machine costs an agent: processor time of each provider's look.

    .venv/bin/python benchmarks/health.py [--looks N] [--workers N] [--threads N] [--children N]
        [--json]

Each provider of this machine is read N times on one thread; `look_us` is the processor time of one
look, `judge_us` that of deciding what it means, `core_share` what both take of a core at the pace
of an agent. The row `all` is their sum: what a node pays.

Below it stands what agents pay beside that for workers of which no steps are seen: for real
programs with that many threads and children, that of counting what they do, and of counting what
each of their threads does, once they seem to do nothing (`agent/idleness.py`).
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast.agent.health.find import find
from holdfast.agent.health.provider import Provider
from holdfast.agent.idleness import SAMPLE_S, counts_of
from holdfast.agent.processes import signal_group
from holdfast.detection.health import Conditions
from table import Row, report

WORKER = """
import os, signal, sys, threading
for _ in range(int(sys.argv[2])):
    if not os.fork():
        signal.pause()
for _ in range(int(sys.argv[1]) - 1):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("up", flush=True)
signal.pause()
"""


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--looks", type=int, default=300)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--threads", type=int, default=64, help="of each worker")
    parser.add_argument("--children", type=int, default=4, help="of each worker")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = find(Path("/"), [folder])
        kinds = [one.name.partition(" /")[0] for one in found.present]
        costs = [_cost(provider, options.looks) for provider in found.present]
    rows: dict[str, Row] = {name: _row(*cost) for name, cost in zip(kinds, costs, strict=True)}
    share = sum(_share(*cost) for cost in costs)
    look_s, judge_s = (sum(cost[place] for cost in costs) for place in (0, 1))
    rows["all"] = {"look_us": look_s * 1e6, "judge_us": judge_s * 1e6, "core_share": share}
    rows |= _without_steps(options)
    missing = "; ".join(f"{one.name}: {one.why}" for one in found.missing)
    report("Health of a node", rows, as_json=options.json, note=f"missing: {missing or 'none'}")


def _without_steps(options: argparse.Namespace) -> dict[str, Row]:
    """Of the workers of a node."""
    shape = options.threads, options.children
    name = "{} workers of {} threads and {} children, no steps".format(options.workers, *shape)
    with ExitStack() as stack:
        pids = [stack.enter_context(_worker(*shape)) for _ in range(options.workers)]
        acts = _each(options.looks, lambda _: [counts_of(pid) for pid in pids])
        idle = _each(options.looks, lambda _: [counts_of(pid, threads=True) for pid in pids])
    return {name: _row(acts, 0.0, SAMPLE_S), f"{name}, idle": _row(idle, 0.0, SAMPLE_S)}


@contextmanager
def _worker(threads: int, children: int) -> Iterator[int]:
    words = [sys.executable, "-c", WORKER, str(threads), str(children)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as ran:
        try:
            assert ran.stdout is not None and ran.stdout.readline()
            yield ran.pid
        finally:
            signal_group(ran.pid, signal.SIGKILL)


def _cost(provider: Provider, looks: int) -> tuple[float, float, float]:
    """Seconds of processor time for one look and for judging it, and seconds between two looks."""
    conditions, readings = Conditions("node"), provider.read()
    look_s = _each(looks, lambda _: provider.read())
    judge_s = _each(looks, lambda turn: conditions.hear(readings, float(turn)))
    return look_s, judge_s, provider.every_s


def _each(times: int, work: Callable[[int], object]) -> float:
    began = time.thread_time()
    for turn in range(times):
        work(turn)
    return (time.thread_time() - began) / times


def _row(look_s: float, judge_s: float, every_s: float) -> Row:
    share = _share(look_s, judge_s, every_s)
    return {"look_us": look_s * 1e6, "judge_us": judge_s * 1e6, "core_share": share}


def _share(look_s: float, judge_s: float, every_s: float) -> float:
    return (look_s + judge_s) / every_s


if __name__ == "__main__":
    main()
