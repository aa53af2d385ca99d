"""The pictures of a report as SVG, drawn here: a curve of the loss, and the ledger as a ribbon.

Colours are classes, which the page's style sheet fills in for light, dark and paper. Pure text; all
of it that is not ours is escaped.
"""

import html
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from holdfast.errors import visible
from holdfast.reporting.shapes import JobReport, ReportedCurve, ReportedMark

WIDTH, HEIGHT = 960, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 22, 24
RIBBON_HEIGHT = 44
TICKS = 5
LABEL_PX = 15  # between two numbers, so that both can be read
NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
SPANS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
DAY_S = 86_400.0
GREYS = ("productive", "other")


def escaped(text: object) -> str:
    """As HTML has it; what nobody can see is made visible."""
    return html.escape(visible(str(text)), quote=True)


class ChartFrame(NamedTuple):
    """Where values stand in a picture."""

    begin: float
    end: float
    low: float
    high: float

    def x(self, at: float) -> float:
        """From a moment."""
        share = (at - self.begin) / ((self.end - self.begin) or 1.0)
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """From a value; what is outside stands at the edge."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return HEIGHT - BOTTOM - min(1.0, max(0.0, share)) * (HEIGHT - TOP - BOTTOM)


def loss_chart(report: JobReport, curve: ReportedCurve) -> str:
    """The loss over the time, with the band that each point stands for, and what happened."""
    known = sorted(
        (at, low, mean, high)
        for at, low, mean, high in zip(curve.at, curve.low, curve.mean, curve.high, strict=True)
        if low is not None and mean is not None and high is not None
    )
    frame = _frame(report, [row[2] for row in known])
    points = [(frame.x(at), frame.y(mean)) for at, _, mean, _ in known]
    band = [(frame.x(at), frame.y(high)) for at, _, _, high in known]
    band += [(frame.x(at), frame.y(low)) for at, low, _, _ in reversed(known)]
    inside = "".join(
        [
            *_grid(frame),
            f'<polygon class="band" points="{_points(band)}"/>' if curve.width > 1 else "",
            f'<polyline class="line" points="{_points(points)}"/>',
            *_marks(report, frame),
            *_incidents(report, frame),
        ]
    )
    return _svg(HEIGHT, f"Loss of {report.job} over time", inside)


def _frame(report: JobReport, means: Sequence[float]) -> ChartFrame:
    low, high = min(means), max(means)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return ChartFrame(report.began_at, report.until, low - margin, high + margin)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _grid(frame: ChartFrame) -> Iterator[str]:
    for value in _nice(frame.low, frame.high):
        y = frame.y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text("tick", LEFT - 6, y + 4, "end", f"{value:.4g}")
    yield from _times(frame, HEIGHT - BOTTOM)


def _times(frame: ChartFrame, bottom: float) -> Iterator[str]:
    whole_s = frame.end - frame.begin
    every_s = next((s for s in SPANS_S if whole_s / s <= 2 * TICKS), 0.0)
    every_s = every_s or max(1, round(whole_s / TICKS / DAY_S)) * DAY_S
    for number in range(int(whole_s / every_s) + 1):
        x = frame.x(frame.begin + number * every_s)
        anchor = "start" if number == 0 else "end" if x > WIDTH - 40 else "middle"
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield _text("tick", x, bottom + 17, anchor, span(number * every_s))


def span(seconds: float) -> str:
    """A round length of time, short."""
    for size, unit in ((DAY_S, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size and (unit != "d" or seconds % DAY_S == 0):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:g} s"


def _nice(low: float, high: float) -> list[float]:
    """Round values between two others."""
    rough = (high - low) / TICKS
    if not rough > 0 or not math.isfinite(rough):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(one * power for one in NICE if one * power >= rough * 0.999)
    first = math.ceil(low / step)
    return [number * step for number in range(first, first + 2 * TICKS) if number * step <= high]


def _marks(report: JobReport, frame: ChartFrame) -> Iterator[str]:
    """Checkpoints below, updates across, what was noticed above."""
    bottom = HEIGHT - BOTTOM
    shapes: dict[str, Callable[[float], str]] = {
        "checkpoint": lambda x: (
            f'<path class="save" d="M{x:.1f} {bottom - 7}l3.5 7h-7z">{{}}</path>'
        ),
        "update": lambda x: (
            f'<line class="update" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}">{{}}</line>'
        ),
        "spike": lambda x: f'<circle class="noted" cx="{x:.1f}" cy="{TOP + 4}" r="3">{{}}</circle>',
        "plateau": lambda x: (
            f'<circle class="noted" cx="{x:.1f}" cy="{TOP + 4}" r="3">{{}}</circle>'
        ),
    }
    for one in report.marks:
        if one.kind in shapes:
            yield shapes[one.kind](frame.x(one.at)).format(_title(one))


def _title(one: ReportedMark) -> str:
    step = f", step {one.step}" if one.step is not None else ""
    return f"<title>{escaped(one.text)}{step}</title>"


def _incidents(report: JobReport, frame: ChartFrame) -> Iterator[str]:
    last = -math.inf
    for found in report.incidents:
        one = found.incident
        x = frame.x(one.started_at)
        title = f"<title>incident {one.id}: {escaped(one.summary)}</title>"
        line = f'x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{HEIGHT - BOTTOM}"'
        yield f'<line class="incident" {line}>{title}</line>'
        if x - last >= LABEL_PX:
            yield _text("number", x, TOP - 8, "middle", str(one.id))
            last = x


def ribbon_chart(report: JobReport) -> str:
    """Every second of the job in the colour of where it went."""
    length = report.until - report.began_at
    frame = ChartFrame(0.0, length, 0.0, 1.0)
    parts = []
    for one in report.ribbon:
        x, end = frame.x(one.start_s), frame.x(one.end_s)
        least = 0.0 if one.bucket in GREYS else 1.0  # what was lost is looked for
        title = f"{one.bucket}, {span(round(one.end_s - one.start_s, 1))}"
        title += f", incident {one.incident}" if one.incident is not None else ""
        parts.append(
            f'<rect class="b-{one.bucket}" x="{x:.2f}" y="4" width="{max(least, end - x):.2f}"'
            f' height="{RIBBON_HEIGHT - 8}"><title>{title}</title></rect>'
        )
    inside = "".join([*parts, *_times(frame, RIBBON_HEIGHT)])
    return _svg(RIBBON_HEIGHT + BOTTOM, f"Where the time of {report.job} went", inside)


def _text(kind: str, x: float, y: float, anchor: str, text: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{text}</text>'


def _svg(height: int, label: str, inside: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escaped(label)}">'
        f"{inside}</svg>"
    )
