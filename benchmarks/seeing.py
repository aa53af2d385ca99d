"""What it costs to be seen: metrics in a worker's steps, and scrapes of agents and controllers.

    .venv/bin/python benchmarks/seeing.py [--quick] [--json]

`step`: what a worker pays in a step for logging loss, gradient norm, tokens and four metrics of its
own, with MFU; `share` is of a step of 50 ms. `agent`: what the agent of eight such workers adds up
at each of its looks, 20 a second; `share` is of one core. `files`: what it writes of a step to
metrics.jsonl and the curve. `tracking`: what the process beside it takes for a step, to read it
from there and have it in TensorBoard's file. `all, of a step`: the four of a node together, as if
one core did them and training waited, which it does for the first alone; the aim is 0.2 %. `scrape
...`: one answer to Prometheus, text included, by an agent with eight GPUs, and by a controller of
so many workers, a node each, of which every tenth has a condition, when nothing of a node has
changed; `first scrape ...`: before anything was written. `share` is of a core at a scrape each 15
s. All are medians of processor time, so that other work on the machine does not count.

`page: ...`: what `holdfast dashboard` takes for a job of 30 days (`seeing_page.py`), in wall time;
`bytes` are those of an answer, or of its memory. `report: ...`: the same of `holdfast report`.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from holdfast import journal
from holdfast.agent.counters import NodeCounters
from holdfast.agent.figures import SERIES, figures
from holdfast.agent.metrics_file import MetricsFile
from holdfast.agent.probes import Health
from holdfast.controller import Limits, State
from holdfast.controller.phases import Phase
from holdfast.controller.state import HealthRecord, Node, NodeState
from holdfast.detection.health import Reading
from holdfast.detection.progress import ProgressReducer
from holdfast.drivers.job_books import JobBooks
from holdfast.drivers.job_metrics import JobMetrics
from holdfast.events import Progress, Severity
from holdfast.messages import Report, WorkerReport
from holdfast.page import Page, StepRecord
from holdfast.scrape import ScrapePage
from holdfast.spec import job_from_dict
from holdfast.tracking.points import ReadPlace
from holdfast.tracking.points import read as read_points
from holdfast.tracking.trackers import TensorBoard, TrackedRun
from holdfast.train.progress import ProgressReporter
from seeing_page import page_rows
from table import Row, report

STEP_S, SCRAPE_S, LOOKS_S = 0.05, 15.0, 20
BATCH = 200  # steps of one measurement
MODERN = "application/openmetrics-text;version=1.0.0"
OWN = {"lr": 1e-4, "samples": 8.0, "flops": 1e12, "aux": 0.5}


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times = 5 if options.quick else 30
    sizes = (1_000,) if options.quick else (1_000, 16_384)
    rows: dict[str, Row] = {"step": of_step(times), "agent": of_agent(times)}
    rows |= {"files": of_files(times), "tracking": of_tracking(times)}
    rows["all, of a step"] = together(rows)
    rows["scrape agent, 8 workers"] = of_scrape(an_agent(), times)
    for size in sizes:
        rows[f"first scrape, {size} workers"] = of_first_scrape(size, times)
        rows[f"scrape controller, {size} workers"] = of_scrape(a_controller(size), times)
    rows |= page_rows(options.quick)
    report("What it costs to be seen", rows, as_json=options.json)


def spent(
    work: Callable[[], object], times: int, clock: Callable[[], float] = time.thread_time
) -> float:
    """Median processor time of a call, after one that is not counted."""
    found = []
    for _ in range(times + 1):
        began = clock()
        work()
        found.append(clock() - began)
    return median(found[1:])


def row(seconds: float, share: float, series: int | None = None, size: int | None = None) -> Row:
    """The figures of one line."""
    return {"us": seconds * 1e6, "share": share, "series": series, "bytes": size}


def of_step(times: int) -> Row:
    """With a page, as below an agent; what a step costs without one is that of a bare loop."""
    page = Page(Page.create())
    progress, count = ProgressReporter(page, 0, peak_flops=1e15), 1000

    def steps() -> None:
        for step in range(count):
            progress.log(2.5, 0.7, 8192, OWN)
            progress.step_done(step + 1, STEP_S)

    seconds = spent(steps, times) / count
    return row(seconds, seconds / STEP_S)


def worker(rank: int, step: int) -> WorkerReport:
    """What a page says."""
    progress = Progress(step=step, data_wait_s=step * 1e-3, snapshot_s=step * 1e-3)
    return WorkerReport(
        rank=rank, pid=os.getpid(), progress=progress, milestones={}, loss=2.5, grad_norm=0.7,
        step_time_s=STEP_S, tokens=8192 * step, snapshot_step=step, snapshot_every=1,
    )  # fmt: skip


def of_agent(times: int) -> Row:
    """One look: a step of rank 0 and the reports of eight workers, which are made anyhow."""
    counters, count = NodeCounters(), 200
    steps = range(1, count * (times + 1) + 1)
    reports = iter([[worker(rank, step) for rank in range(8)] for step in steps])
    records = iter([[StepRecord(n, n * STEP_S, 2.5, 0.7, 8192, OWN)] for n in steps])

    def looks() -> None:
        for _ in range(count):
            counters.looked(1, next(reports))
            counters.stepped(1, next(records))

    seconds = spent(looks, times) / count
    return row(seconds, seconds * LOOKS_S)


def of_files(times: int) -> Row:
    """One step at a time, as an agent finds them that looks as often as there are steps."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = spent(_written_to(MetricsFile(Path(folder, "metrics.jsonl"))), times) / BATCH
    return row(seconds, seconds / STEP_S)


def of_tracking(times: int) -> Row:
    """A second's steps at a time; threads of TensorBoard's package are counted, too."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder, "metrics.jsonl")
        write = _written_to(MetricsFile(spool, draws=False))
        for _ in range(-(-LOOKS_S * (times + 2) // BATCH)):
            write()
        lines = spool.read_bytes().splitlines(keepends=True)
        board, parts = TensorBoard(TrackedRun("j", "id", Path(folder), -1)), []
        for number in range(times + 1):
            parts.append(Path(folder, f"part-{number}.jsonl"))
            parts[-1].write_bytes(b"".join(lines[number * LOOKS_S : (number + 1) * LOOKS_S]))
        part = iter(parts)
        track = lambda: board.send(read_points(next(part), ReadPlace())[0])  # noqa: E731
        seconds = spent(track, times) / LOOKS_S
        board.close()
    return row(seconds, seconds / STEP_S)


def _written_to(file: MetricsFile) -> Callable[[], None]:
    """What writes a batch of steps, each by itself, and the next ones with the next call."""
    step = 0

    def write() -> None:
        nonlocal step
        for _ in range(BATCH):
            step += 1
            file.append(1, [StepRecord(step, step * STEP_S, 2.5, 0.7, 8192, OWN)])

    return write


def together(rows: Mapping[str, Row]) -> Row:
    """Of the rows so far."""
    seconds = sum(float(one["us"] or 0) for one in rows.values()) / 1e6
    return row(seconds, seconds / STEP_S)


def an_agent() -> Callable[[], ScrapePage]:
    """Of a node with eight GPUs, four links and two disks."""
    counters = NodeCounters()
    counters.looked(1, [worker(rank, 9) for rank in range(8)])
    devices = {"gpu": 8, "device": 4, "folder": 2}
    readings = [
        Reading(kind, 1.0, " ".join(f"{label}-{number}" for label in series.label.split()))
        for kind, series in SERIES.items()
        for number in range(devices.get(series.label.partition(" ")[0], 1))
    ]
    health = Health(
        name="node", machine="m", registered=True, connected=True, attempt=1, workers=8,
        counters=counters, readings=readings, xids={}, step=9,
    )  # fmt: skip
    return lambda: figures(health, time.time()).page(MODERN)


def a_controller(size: int) -> Callable[[], ScrapePage]:
    """Of so many nodes that train, with a worker each."""
    spec = {"name": "j", "script": "t.py", "nodes": size, "cost": {"gpu_hour": 2.5}}
    job = job_from_dict(spec, where="benchmark")
    state = State(
        limits=Limits.of(job), phase=Phase.RUNNING, attempt=1, workers_per_node=1,
        nodes={f"u{n}": _node(n) for n in range(size)},
        ranks={n: f"u{n}" for n in range(size)},
        health={f"u{n}": {"gpu-hot": HOT} for n in range(0, size, 10)},
    )  # fmt: skip
    progress = ProgressReducer()
    progress.begin(1, size, 0.0)
    for n in range(size):
        progress.observe(Report(node=f"u{n}", attempt=1, workers=(worker(n, 9),)), 0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.jsonl")
        spoken = job.model_dump(mode="json")
        header = journal.Header(journal=journal.VERSION, holdfast="0", job=spoken, created_at=0.0)
        journal.Journal.create(path, header).close()
        books = JobBooks("j", path, state, time.time, progress.newest)
    metrics = JobMetrics(job, state, books, progress, time.time)
    return lambda: metrics.exposition().page(MODERN)


HOT = HealthRecord(
    condition="gpu-hot", device="0", severity=Severity.WARN, detail="", advice="", at=1.0
)


def _node(rank: int) -> Node:
    return Node(
        node=f"u{rank}", name=f"job-node-{rank}", address="10.0.0.1", workers=1,
        state=NodeState.MEMBER, node_rank=rank,
    )  # fmt: skip


def of_first_scrape(size: int, times: int) -> Row:
    """By controllers that nobody has scraped yet."""
    fresh = iter([a_controller(size) for _ in range(min(times, 5) + 1)])
    seconds = spent(lambda: next(fresh)(), min(times, 5))
    return row(seconds, seconds / SCRAPE_S)


def of_scrape(answer: Callable[[], ScrapePage], times: int) -> Row:
    """One answer."""
    seconds, body = spent(answer, times), answer().body
    series = sum(not line.startswith(b"#") for line in body.splitlines())
    return row(seconds, seconds / SCRAPE_S, series, len(body))


if __name__ == "__main__":
    main()
