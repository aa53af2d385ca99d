"""What this node tells of an incident: the last words of its workers, and how it is itself.

Asked for when an attempt is being stopped, so workers are alive, dying or dead, and their output
and pages are at hand; of an attempt that another one has followed nothing is told. Bounded in size
and time, and masked here: no secret leaves the node.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.agent.health.telling import gpus_in_words
from holdfast.agent.host_state import host_state, in_thread
from holdfast.agent.kernel_log import KernelLines, kernel_log
from holdfast.agent.node_attempt import NodeAttempt
from holdfast.agent.workers import Worker
from holdfast.detection.health import Reading
from holdfast.events import LastEntered
from holdfast.evidence import NodeEvidence, RankEvidence
from holdfast.messages import WorkerReport

RANKS_MAX = 4
TAIL_BYTES = 16 * 1024  # that are looked at
LINES_MAX = 20
LINE_CHARS = 300
HOST_S = 3.0
TIMER_S = 0.02

Mask = Callable[[str], str]


async def evidence_of(
    name: str,
    run: NodeAttempt | None,
    since_s: float,
    places: Iterable[Path],
    mask: Mask,
    readings: Iterable[Reading] = (),
) -> NodeEvidence:
    """What there is to tell within a few seconds; `run` is the attempt that was asked for,
    `mask` takes secrets out, `readings` are the newest of the machine's health."""
    host, kernel = await _host(since_s, list(places))
    look = run.native_look if run is not None else None
    stack = await look.stack if look is not None else ()
    now, ranks = time.monotonic(), []
    if run is not None:
        for one in _chosen(run):
            seen = stack if look is not None and one is look.worker else ()
            ranks.append(_rank(one, run, mask, now, seen))
    return NodeEvidence(
        node=name,
        ranks=tuple(ranks),
        host=tuple(_cut(mask(line)) for line in (*host, *gpus_in_words(readings))),
        kernel=tuple(_cut(mask(line)) for line in kernel.lines),
        kernel_unread=kernel.unread,
    )


async def _host(since_s: float, places: list[Path]) -> tuple[tuple[str, ...], KernelLines]:
    """The event loop goes on meanwhile; whatever hangs is left behind."""
    waits = in_thread(lambda: host_state(places)), in_thread(lambda: kernel_log(since_s))
    end = asyncio.get_running_loop().time() + HOST_S
    while asyncio.get_running_loop().time() < end and any(wait(0.0) is None for wait in waits):
        await asyncio.sleep(TIMER_S)
    silent = f"no answer within {HOST_S:g} s"
    return waits[0](0.0) or (silent,), waits[1](0.0) or KernelLines(unread=silent)


def _chosen(run: NodeAttempt) -> list[Worker]:
    """The one that hangs, those that have failed, in the order in which they did, then others."""
    hung = run.native_look.worker if run.native_look is not None else None

    def key(worker: Worker) -> tuple[bool, float, int]:
        end = worker.death or worker.ends
        died_at = end.at if end is not None and end.exit_code != 0 else float("inf")
        return (worker is not hung, worker.raised_at or died_at, worker.local_rank)

    ranked = [worker for worker in run.workers.values() if worker.assignment is not None]
    return sorted(ranked, key=key)[:RANKS_MAX]


def _rank(
    worker: Worker, run: NodeAttempt, mask: Mask, now: float, stack: tuple[str, ...]
) -> RankEvidence:
    assert worker.assignment is not None
    rank, error = worker.assignment.rank, worker.page.error()
    entered = run.entered.get(rank) or (error.entered if error is not None else ())
    page = page_in_words(worker.page.report(rank, worker.pid, now))
    return RankEvidence(
        rank=rank,
        ended=_ended(worker),
        page=mask(", ".join(filter(None, (page, *map(_collective, entered))))),
        output=last_lines(worker.output.tail, mask),
        native_stack=tuple(map(_cut, stack)),
    )


def _collective(last: LastEntered) -> str:
    due = f" ({last.due} was due)" if last.due not in ("", last.kind) else ""
    group = last.described or last.group
    return f"last collective in group {group}: number {last.number} {last.kind}{due}"


def _ended(worker: Worker) -> str:
    if worker.death is None and worker.raised_at:
        return "an exception"
    end = worker.death or worker.ends
    return end.words if end is not None else ""


def last_lines(tail: bytes, mask: Mask) -> tuple[str, ...]:
    """The newest lines of an output, masked before they are cut."""
    cut = tail[-TAIL_BYTES:]
    if len(cut) < len(tail):  # it may begin in the middle of a secret
        cut = cut.partition(b"\n")[2]
    lines = mask(cut.decode(errors="replace").replace("\0", "")).splitlines()
    return tuple(_cut(line) for line in lines if line.strip())[-LINES_MAX:]


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}..."


def page_in_words(report: WorkerReport) -> str:
    """What the worker had said of itself; empty if nothing."""
    progress, parts = report.progress, []
    if progress.step is not None:
        parts.append(f"step {progress.step} done {progress.step_ago_s:.1f} s ago")
    if report.phase not in ("", "starting"):
        parts.append(f"in {report.section or report.phase}")
    if report.optimizer_steps:
        ago = f"{report.optimizer_step_ago_s:.1f} s ago"
        parts.append(f"optimizer step {report.optimizer_steps} {ago}")
    if report.printed_step is not None:
        parts.append(f"printed step {report.printed_step}")
    for what, value in (
        ("loss", report.loss if report.loss is not None else report.printed_loss),
        ("gradient norm", report.grad_norm),
    ):
        if value is not None:
            parts.append(f"{what} {value:.6g}")
    if report.step_time_s:
        parts.append(f"{report.step_time_s:.3g} s a step")
    if progress.data_wait_s >= 0.05:
        parts.append(f"waited {progress.data_wait_s:.1f} s for data")
    if progress.snapshot_s >= 0.05:
        parts.append(f"{progress.snapshot_s:.1f} s in snapshots")
    if report.snapshot_step:
        parts.append(f"snapshot of step {report.snapshot_step}")
    return ", ".join(parts)
