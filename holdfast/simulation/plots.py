"""Answers as pictures: where the time goes, and how ETTR depends on what was varied.

Matplotlib is an extra and is imported only here, when a plot is wanted; it draws into a file and
opens no window. Every picture says that it shows results of a model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import Error
from holdfast.simulation.result import Summary
from holdfast.simulation.sweep import Axis, Point

NOTE = "model result"
KINDS = (".png", ".svg")
SHARE_MIN = 1e-4
LOST_COLORS = (
    "#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948",
    "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac", "#86bcb6", "#d37295",
)  # fmt: skip


def check(path: Path) -> None:
    """Raise `Error` plot-unavailable now if nothing could be drawn into this file later."""
    if path.suffix.lower() not in KINDS:
        raise _unavailable(f"unsupported plot format: {path}", "name a file that ends with .png")
    if not path.parent.is_dir():
        raise _unavailable(f"there is no folder {path.parent}", f"mkdir -p {path.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        why = "matplotlib is not installed"
        raise _unavailable(why, "python -m pip install 'holdfast[plot]'") from None


def draw_ledgers(path: Path, title: str, ways: Mapping[str, Summary]) -> None:
    """One bar for each way: its lost time, split by where it went."""
    figure, axes = _figure(title, 1.2 + 0.8 * len(ways))
    names = list(ways)
    for index, bucket in enumerate(_lost_buckets(list(ways.values()))):
        shares = [_share(ways[name], bucket) * 100 for name in names]
        lefts = [_lost_before(ways[name], bucket, list(ways.values())) * 100 for name in names]
        color = LOST_COLORS[index % len(LOST_COLORS)]
        axes.barh(names, shares, left=lefts, label=bucket, color=color)
    for row, name in enumerate(names):
        lost = 1 - _share(ways[name], "productive")
        axes.text(lost * 100, row, f"  ETTR {ways[name].ettr.mean:.1%}", va="center")
    axes.set_xlim(0, 130 * max(1e-3, *(1 - _share(s, "productive") for s in ways.values())))
    axes.set_xlabel("lost time, % of wall time")
    axes.invert_yaxis()
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _save(figure, path)


def draw_lines(
    path: Path,
    title: str,
    words: tuple[str, str],
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    log: bool,
) -> None:
    """A line for each name; `words` are those of both axes, `log`: both are logarithmic."""
    figure, axes = _figure(title, 4.0)
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel(words[0])
    axes.set_ylabel(words[1])
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    _save(figure, path)


def draw_sweep(path: Path, title: str, axes_swept: Sequence[Axis], points: Sequence[Point]) -> None:
    """ETTR with its confidence interval over the first axis; a line for each of the others."""
    figure, axes = _figure(title, 4.0)
    first, *others = axes_swept
    numbers = all(isinstance(value, (int, float)) for value in first.values)
    for rest in dict.fromkeys(point.values[1:] for point in points):
        line = [point for point in points if point.values[1:] == rest]
        label = ", ".join(f"{a.key}={v}" for a, v in zip(others, rest, strict=True)) or None
        places = [p.values[0] if numbers else str(p.values[0]) for p in line]
        means = [100 * p.summary.ettr.mean for p in line]
        (drawn,) = axes.plot(places, means, marker="o", markersize=3, label=label)
        if all(p.summary.seeds > 1 for p in line):
            low, high = zip(*((p.summary.ettr.low, p.summary.ettr.high) for p in line), strict=True)
            band = [[100 * x for x in edge] for edge in (low, high)]
            axes.fill_between(places, *band, alpha=0.2, color=drawn.get_color())
    if numbers and _wide(first.values):
        axes.set_xscale("log")
    axes.set_xlabel(first.key)
    axes.set_ylabel("ETTR, % (band: 95 % confidence)")
    if others:
        axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    _save(figure, path)


def draw_steps(path: Path, title: str, steps: Mapping[str, Mapping[str, float]]) -> None:
    """One bar for each layout: the seconds of its step, split by where they go."""
    figure, axes = _figure(title, 1.2 + 0.4 * len(steps))
    names = list(steps)
    parts = [part for part in steps[names[0]] if any(step[part] for step in steps.values())]
    lefts = [0.0] * len(names)
    for index, part in enumerate(parts):
        seconds = [steps[name][part] for name in names]
        axes.barh(names, seconds, left=lefts, label=part, color=LOST_COLORS[index])
        lefts = [left + more for left, more in zip(lefts, seconds, strict=True)]
    axes.set_xlabel("seconds of a step")
    axes.invert_yaxis()
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _save(figure, path)


def _wide(values: Sequence[Any]) -> bool:
    return bool(min(values) > 0 and max(values) / min(values) >= 20)


def _lost_buckets(summaries: Sequence[Summary]) -> list[str]:
    names = dict.fromkeys(name for s in summaries for name in s.buckets if name != "productive")
    kept = [n for n in names if any(_share(s, n) >= SHARE_MIN for s in summaries)]
    return sorted(kept, key=lambda n: -max(_share(s, n) for s in summaries))


def _share(summary: Summary, bucket: str) -> float:
    return summary.buckets.get(bucket, 0.0) / sum(summary.buckets.values())


def _lost_before(summary: Summary, bucket: str, summaries: Sequence[Summary]) -> float:
    """Where this part of the bar begins: after the parts drawn before it."""
    names = _lost_buckets(summaries)
    return sum(_share(summary, name) for name in names[: names.index(bucket)])


def _figure(title: str, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(f"{title} ({NOTE})", fontsize="medium", loc="left")
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    """The same answer gives the same file: no dates, no random ids."""
    import matplotlib

    svg = path.suffix.lower() == ".svg"
    try:
        with matplotlib.rc_context({"svg.hashsalt": "holdfast"}):
            figure.savefig(path, dpi=140, metadata={"Date": None} if svg else {"Software": None})
    except OSError as exc:
        raise _unavailable(f"{path} cannot be written: {exc.strerror}", "df -h .") from None


def _unavailable(why: str, remedy: str) -> Error:
    return Error("plot-unavailable", "the plot cannot be drawn", why=why, help=remedy)
