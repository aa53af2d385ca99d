"""The page of metrics and alerts, from their tables."""

from docs.markdown import table
from holdfast.monitoring.alerts import alert_rules
from holdfast.monitoring.table import GROUPS, MetricRow


def metrics() -> str:
    """Every metric and every alert."""
    header = ("metric", "type", "labels", "served by", "meaning")
    body = "\n\n".join(
        f"## {title}\n\n" + table(header, [_metric(row) for row in rows])
        for title, rows in GROUPS.items()
    )
    rows = [(f"[{r.name}](../guides/alerts.md#{r.name.lower()})", r.severity, f"{r.lasting_s} s",
             f"`{r.query.replace('$S', '').replace(',}', '}').replace('{}', '')}`")
            for r in alert_rules()]  # fmt: skip
    return f"""# Metrics

What `/metrics` of a controller and of an agent answers: OpenMetrics, or Prometheus' older text
format, as the scraper asks for. How to have it scraped: [monitoring.md](../guides/monitoring.md).
Targets have the label `holdfast_dev_job`. Counters of a controller come from the journal, those of
an agent from its workers: both go on over restarts, and nothing is counted twice. Histograms are
native ones by protobuf, and have classic buckets by text. A series is left out where its value is
not known.

{body}

## Alerts

{table(("alert", "severity", "for", "query"), rows)}
"""


def _metric(row: MetricRow) -> tuple[str, ...]:
    name = f"{row.name}_total" if row.kind == "counter" else row.name
    labels = ", ".join(f"`{label}`" for label in row.labels)
    return f"`{name}`", row.kind, labels, row.server, row.help
