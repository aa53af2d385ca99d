"""A report as one page of HTML that needs nothing else: no script, no other file, no network.

What is quoted (logs, tracebacks, names) was written by others and is escaped, and the page's own
policy forbids scripts and requests besides. Colours follow the reader's system, and paper.
"""

from collections.abc import Iterable, Iterator, Sequence
from importlib import resources

from holdfast.errors import clipped
from holdfast.reporting import words
from holdfast.reporting.charts import escaped, loss_chart, ribbon_chart
from holdfast.reporting.shapes import JobReport, ReportedIncident
from holdfast.status import Incident

STYLE = (resources.files("holdfast.reporting") / "page.css").read_text()
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
TOLD_MAX = 20  # incidents that are told at length
LINES_MAX, LINE_CHARS, OUTPUT_MAX = 40, 400, 5
Rows = Iterable[Sequence[str]]


def page(report: JobReport) -> str:
    """The document."""
    title = escaped(f"{report.job}: report")
    body = "\n".join(part for part in _sections(report) if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,"><title>{title}</title>\n<style>\n{STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _sections(report: JobReport) -> Iterator[str]:
    yield f"<header><h1>{escaped(report.job)}</h1><p>{escaped(words.headline(report))}</p></header>"
    if report.incomplete:
        yield f'<p class="alarm">Incomplete: {escaped(report.incomplete)}</p>'
    yield _section("In short", _pairs(words.facts(report)))
    yield _section("What was trained", _pairs(words.setup(report)))
    yield _section("How it learned", _learning(report))
    yield _section("Where the time went", _time(report))
    yield _section("What went wrong", _incidents(report))
    yield _section("What it cost", _cost(report))
    yield _section("Where its state was kept", _state(report))
    yield _section("What to change", _changes(report))
    yield (
        f'<p class="soft">Made {words.moment(report.made_at)} from the journal of the job, which '
        "has every fact and decision. ETTR is productive time by wall time; a step that is done "
        "again counts once.</p>"
    )


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{title}</h2>\n{inside}</section>" if inside else ""


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    inside = "".join(f"<div><dt>{escaped(n)}</dt><dd>{escaped(v)}</dd></div>" for n, v in pairs)
    return f"<dl>{inside}</dl>"


def _table(header: Sequence[str], rows: Rows, numbers: Sequence[int] = ()) -> str:
    """Columns of `numbers` are set right."""
    kind = [' class="n"' if place in numbers else "" for place in range(len(header))]
    head = "".join(f"<th{kind[n]}>{escaped(text)}</th>" for n, text in enumerate(header))
    lines = (
        "<tr>"
        + "".join(f"<td{kind[n]}>{escaped(text)}</td>" for n, text in enumerate(row))
        + "</tr>"
        for row in rows
    )
    body = "\n".join(lines)
    inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{inside}</table></div>'


def _learning(report: JobReport) -> str:
    if report.curve is None:
        return f'<p class="soft">There is no curve: {escaped(report.curve_missing or "")}.</p>'
    width = report.curve.width
    each = f"A point stands for up to {width} steps, the band for their least and greatest. "
    return (
        f"{loss_chart(report, report.curve)}\n"
        f'<p class="soft">Loss over time. {each if width > 1 else ""}Red lines: incidents. '
        "Dashed: updates. Triangles: checkpoints. Circles: spikes and plateaus.</p>"
    )


def _time(report: JobReport) -> str:
    blind = "" if report.goodput.observed else (
        '<p class="soft">The script reports no steps, so all running time of its workers counts as '
        "productive.</p>"
    )  # fmt: skip
    lines = []
    for name, *rest in words.buckets(report):
        swatch = f'<i class="swatch b-{name}"></i>' if name in report.goodput.buckets else ""
        cells = "".join(f'<td class="n">{escaped(text)}</td>' for text in rest)
        lines.append(f"<tr><td>{swatch}{escaped(name)}</td>{cells}</tr>")
    return f"{ribbon_chart(report)}\n{blind}<table><tbody>{''.join(lines)}</tbody></table>"


def _incidents(report: JobReport) -> str:
    if not report.incidents:
        return '<p class="soft">Nothing: there were no incidents.</p>'
    hidden = len(report.incidents) - words.INCIDENTS_SHOWN
    parts = [_table(words.CAUSES, words.causes(report), (1, 2, 3, 4))]
    if hidden > 0:
        parts.append(f'<p class="soft">Of {len(report.incidents)} incidents the newest follow.</p>')
    parts.append(_table(words.INCIDENTS, words.incidents(report), (0, 4, 5, 6, 7)))
    costly = sorted(report.incidents, key=lambda one: -one.incident.lost_s)[:TOLD_MAX]
    if len(costly) < len(report.incidents):
        parts.append(f'<p class="soft">The {TOLD_MAX} that cost most time:</p>')
    parts += [_told(one) for one in sorted(costly, key=lambda one: one.incident.id)]
    return "\n".join(parts)


def _told(found: ReportedIncident) -> str:
    one = found.incident
    bill = ", ".join(
        f"{name} {words.length(s)}"
        for name, s in sorted(one.bill.items(), key=lambda item: -item[1])
        if s >= 0.0005
    )
    known = found.known_problem
    lines = [
        ("when", words.moment(one.started_at + one.ahead_s)),
        ("where", _place(one)),
        ("did", "; ".join(dict.fromkeys(f"{a.action}: {a.reason}" for a in one.actions))),
        ("paid", f"{words.length(one.lost_s)} ({bill})" if bill else ""),
        ("known", f"{known['slug']}: {known['cause']}" if known else ""),
        ("help", known["remedy"] if known else found.advice),
    ]
    told = "".join(f"<p><small>{n}</small> {escaped(clipped(v, 2000))}</p>" for n, v in lines if v)
    return f"<h3>{one.id}. {escaped(one.summary)}</h3>{told}{_quoted(one)}"


def _place(one: Incident) -> str:
    rank = f"rank {one.rank} on " if one.rank is not None else ""
    more = "1 rank" if one.also_failed == 1 else f"{one.also_failed} ranks"
    followed = f"; {more} followed" if one.also_failed else ""
    nodes = ", ".join(dict.fromkeys((one.node, *one.nodes)))
    return f"{rank}{nodes}, attempt {one.attempt}, version {one.version}{followed}"


def _quoted(one: Incident) -> str:
    """The traceback, or who stood where, or what was seen of its nodes."""
    lines = one.traceback.splitlines() if one.traceback else list(one.evidence or _seen(one))
    if not lines:
        return ""
    kept = [escaped(clipped(line, LINE_CHARS)) for line in lines[-LINES_MAX:]]
    return "<pre>" + "\n".join(kept) + "</pre>"


def _seen(one: Incident) -> Iterator[str]:
    """What workers had printed last, and what the kernel had logged, node by node."""
    for node in one.collected:
        for rank in node.ranks:
            yield f"{node.node}, rank {rank.rank}: {rank.ended or rank.page or 'it was alive'}"
            yield from (f"    {line}" for line in rank.output[-OUTPUT_MAX:])
        yield from (f"{node.node}, kernel: {line}" for line in node.kernel[-OUTPUT_MAX:])


def _cost(report: JobReport) -> str:
    cost = report.cost
    if cost is None:
        return (
            '<p class="soft">The job file names no price: <code>cost: {gpu_hour: 2.5}</code>.</p>'
        )
    return _pairs(
        (
            ("in all", words.money(cost.total)),
            ("productive", words.money(cost.productive)),
            ("not productive", words.money(cost.unproductive)),
            ("an hour", words.money(cost.per_hour)),
        )
    )


def _state(report: JobReport) -> str:
    rows = words.tiers(report)
    if not rows:
        return '<p class="soft">In memory only: nothing was saved to a durable tier.</p>'
    return _table(words.TIERS, rows, (1, 2, 3, 4, 5))


def _changes(report: JobReport) -> str:
    found = report.changes
    if found is None:
        why = report.changes_missing
        return f'<p class="soft">{escaped(why)}.</p>' if why else ""
    settings = "\n".join(words.settings(found.changes))
    return "\n".join(
        [
            f'<p class="advised">{escaped(found.verdict)}</p>',
            f"<pre>{escaped(settings)}</pre>" if settings else "",
            _table(words.CHANGES, words.changes(found.changes), (1, 2, 3, 4)),
            f'<p class="soft">{escaped(words.measured(report))}</p>',
            _pairs(words.inputs(report)),
        ]
    )
