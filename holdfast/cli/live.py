"""The page of `holdfast watch` on a terminal: status, how far it is, how it goes, what happened."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.cli import story
from holdfast.cli.incidents import HEADER, row
from holdfast.cli.output import table
from holdfast.cli.trend import KeptCourse, Trend, can_draw, filled

if TYPE_CHECKING:
    from holdfast.status import Incident, JobStatus

INCIDENTS_SHOWN = 8
BAR_CHARS = 30
NODES_SHOWN = 16
NOTHING = KeptCourse()


class LiveView:
    """What has been seen of one job since somebody watches it, and before if that is kept."""

    def __init__(self, words: str) -> None:
        """`words` mean the job, in a command."""
        self._words = words
        self._loss, self._pace = Trend(), Trend()
        self._draws = can_draw()

    def page(
        self, status: "JobStatus", incidents: Sequence["Incident"], kept: KeptCourse = NOTHING
    ) -> str:
        """The whole page, as of now."""
        if status.phase == "running":
            self._loss.add(status.loss)
            self._pace.add(1 / status.step_time_s if status.step_time_s else None)
        lines = story.status_lines(_shortened(status), self._words)
        place = next((i for i, (label, _) in enumerate(lines) if label == "training"), len(lines))
        lines[place + 1 : place + 1] = self._course(status, kept)
        if (more := len(status.nodes) - NODES_SHOWN) > 0 and status.outcome is None:
            lines.append(("", f"and {more} more: holdfast status {status.job}{self._words}"))
        text = story.labelled(lines)
        newest = incidents[-INCIDENTS_SHOWN:]
        return f"{text}\n\n{table(HEADER, map(row, newest))}" if newest else text

    def _course(self, status: "JobStatus", kept: KeptCourse) -> list[tuple[str, str]]:
        lines = [("progress", self._progress(status))]
        if self._draws:
            lines += [
                ("loss", _told(self._loss, kept.loss, "")),
                ("speed", _told(self._pace, kept.speed, " steps/s")),
            ]
        return [(label, text) for label, text in lines if text]

    def _progress(self, status: "JobStatus") -> str:
        if not status.steps_total or status.step is None:
            return ""
        share = status.step / status.steps_total
        bar = f"{filled(share, BAR_CHARS)} " if self._draws else ""
        left = story.time_left(status)
        return f"{bar}{story.share(share)}" + (f", {left}" if left else "")


def _told(trend: Trend, kept: Sequence[float], unit: str) -> str:
    newest = kept[-1] if trend.newest is None and kept else trend.newest
    drawn = trend.drawn(kept)
    return f"{drawn} {newest:.4g}{unit}" if drawn else ""


def _shortened(status: "JobStatus") -> "JobStatus":
    """With as many nodes as fit, those in trouble first, then by rank."""
    import msgspec

    if len(status.nodes) <= NODES_SHOWN:
        return status
    first = sorted(status.nodes, key=lambda node: not node.conditions)
    return msgspec.structs.replace(status, nodes=tuple(first[:NODES_SHOWN]))
