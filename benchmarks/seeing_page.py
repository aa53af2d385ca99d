"""The page of a job of 30 days: how long it takes to read, to answer and to be seen.

Part of `seeing.py`. The job is recorded (`recorded_job.py`): its journal tells progress once a
minute, its curve has ten million steps, its heat map 16,384 ranks.
"""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import recorded_job
from headless import FOUND, Chromium
from holdfast.dashboard.job_record import JobRecord
from holdfast.reporting.changes import what_to_change
from holdfast.reporting.gather import gathered
from holdfast.reporting.page import page
from table import Row

DAYS, QUICK_DAYS = 30, 3
DRAWN = "document.getElementById('main')?.dataset.drawn === 'job/gpt'"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
HEAT = "document.querySelector('#slow .legend')?.innerText.length > 0"


def page_rows(quick: bool) -> dict[str, Row]:
    """All figures; those of the browser only where there is one."""
    days, steps, ranks = (QUICK_DAYS, 100_000, 2_048) if quick else (DAYS, 10_000_000, 16_384)
    with tempfile.TemporaryDirectory() as home:
        folder, now = Path(home, "gpt"), time.time()
        nodes = ranks // 8
        entries = recorded_job.record(folder, days=days, nodes=nodes, until=now, rate=2.0)
        recorded_job.draw_curve(folder, steps, begin=now - days * 86_400, end=now)
        recorded_job.draw_ranks(folder, ranks, 260, end=now)
        what = f"{days} days, {entries} lines"
        rows = {f"page: first look, {what}": _row(_once(lambda: JobRecord(folder).look()))}
        rows |= _reported(folder, now)
        rows |= _served(Path(home), steps, ranks)
        return rows


def _reported(folder: Path, now: float) -> dict[str, Row]:
    """`holdfast report` of it, in this process, which has not read the job before."""
    began = time.perf_counter()
    found, look = gathered(JobRecord(folder), now)
    size = len(page(found).encode())
    told = time.perf_counter()
    what_to_change(look)
    return {
        "report: facts and page": _row(told - began, size),
        "report: what to change": _row(time.perf_counter() - told),
    }


def _row(seconds: float, size: int | None = None) -> Row:
    return {"us": seconds * 1e6, "share": None, "series": None, "bytes": size}


def _once(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _served(home: Path, steps: int, ranks: int) -> dict[str, Row]:
    """By a process of its own, whose memory is told as bytes."""
    command = [sys.executable, "-m", "holdfast.cli", "dashboard", str(home), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r":(\d+)/", process.stderr.readline())
        assert found is not None
        port = int(found[1])
        rows = _seen(port, home) if FOUND is not None else {}
        zoomed = f"{steps // 2}/{steps // 2 + 900}"
        questions = {
            "page: look again": "/api/jobs/gpt",
            f"page: curve of {steps} steps": "/api/jobs/gpt/figures/curve/0/end/1500",
            "page: a zoomed curve": f"/api/jobs/gpt/figures/curve/{zoomed}/1500",
            f"page: times of {ranks} ranks": "/api/jobs/gpt/figures/ranks/late/0",
        }
        for name, path in questions.items():
            answers = [_asked(port, path) for _ in range(5)]
            rows[name] = _row(median(seconds for seconds, _ in answers), answers[-1][1])
        rows["page: memory at most"] = {
            "us": None, "share": None, "series": None, "bytes": _peak_bytes(process.pid),
        }  # fmt: skip
        process.send_signal(signal.SIGINT)
    return rows


def _asked(port: int, path: str) -> tuple[float, int]:
    """Seconds and bytes of an answer."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.perf_counter()
    line.request("GET", path)
    answer = line.getresponse()
    body = answer.read()
    assert answer.status == 200, json.loads(body)
    line.close()
    return time.perf_counter() - began, len(body)


def _peak_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def _seen(port: int, home: Path) -> dict[str, Row]:
    """In Chromium: from the beginning of the navigation. The server has not read the job before."""
    browser = Chromium(home / ".chromium")
    try:
        rows = {}
        for name in ("first", "second"):
            tab = browser.page()
            began = time.perf_counter()
            tab.open(f"http://127.0.0.1:{port}/#/job/gpt")
            tab.wait(DRAWN)
            drawn_s = time.perf_counter() - began
            rows[f"page: {name} paint"] = _row(float(tab.wait(PAINT)) / 1000)
            rows[f"page: {name} time, all five pictures"] = _row(drawn_s)
            tab.wait(HEAT)
            tab.close()
        return rows
    finally:
        browser.close()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for label, figures in page_rows("--quick" in sys.argv).items():
        print(label, figures)
