"""Four dashboards for Grafana, as data: all jobs, one job, its incidents, its hardware.

A panel is a title and queries. Its unit follows from the name of the metric and its description is
what the table says of it, so that a panel cannot show what is not served, nor in another unit.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.monitoring.table import JOB_LABEL, SCRAPED

WIDTH = 24  # of Grafana's grid
HEIGHT = 8
UNITS = {
    "seconds": "s",
    "timestamp": "dateTimeAsIso",
    "bytes": "bytes",
    "ratio": "percentunit",
    "celsius": "celsius",
    "watts": "watt",
    "joules": "joule",
}
METRIC = re.compile(r"holdfast_(?!dev_job)\w+")
OF_JOB = f'{JOB_LABEL}=~"$job"'


class PanelSpec(NamedTuple):
    """One panel. `$S` in a query stands for what selects the jobs, without braces."""

    title: str
    queries: tuple[tuple[str, str], ...]  # with the legend of each
    unit: str = ""  # "": that of the first metric
    kind: str = "timeseries"
    columns: int = 12
    stacked: bool = False


def _one(title: str, query: str, legend: str = "", unit: str = "") -> PanelSpec:
    return PanelSpec(title, ((query, legend or f"{{{{{JOB_LABEL}}}}}"),), unit)


def _stat(title: str, query: str, unit: str = "") -> PanelSpec:
    return PanelSpec(title, ((query, ""),), unit, "stat", 4)


def _quantile(part: float, change: str) -> str:
    """Of classic buckets or, where Prometheus takes native histograms, of those."""
    classic = change.replace("_seconds{", "_seconds_bucket{")
    return (
        f"histogram_quantile({part}, sum by (le) ({classic})) "
        f"or histogram_quantile({part}, sum({change}))"
    )


NODE, GPU = "{{node}}", "{{node}} {{gpu}}"
RATE = "$__rate_interval"
BY_JOB = f"by ({JOB_LABEL})"
BUCKETS = PanelSpec(
    "Where the time went",
    (("sum by (bucket) (increase(holdfast_time_seconds_total{$S}[1h])) / 3600", "{{bucket}}"),),
    "percentunit",
    stacked=True,
)
FLEET = (
    _stat("Jobs", f"count(count {BY_JOB} (holdfast_attempt{{$S}}))", "short"),
    _stat("Workers", "sum(holdfast_workers{$S})", "short"),
    _stat("ETTR of the last hour, lowest", 'min(holdfast_ettr_ratio{window="1h",$S})'),
    _stat("Open incidents", "sum(holdfast_incident_open{$S})", "short"),
    _stat("Spares missing", "sum(holdfast_spares_wanted{$S} - holdfast_spares{$S})", "short"),
    _stat("Cost per hour", "sum(holdfast_cost_per_hour{$S})", "short"),
    _one("ETTR of the last hour", 'holdfast_ettr_ratio{window="1h",$S}'),
    _one("Tokens per second", "holdfast_tokens_per_second{$S}"),
    _one("Restarts in an hour", "increase(holdfast_restarts_total{$S}[1h])"),
    _one("Time since the last step", "time() - holdfast_last_step_timestamp_seconds{$S}", unit="s"),
    BUCKETS,
    _one("Phase", "holdfast_phase{$S} == 1", f"{{{{{JOB_LABEL}}}}} {{{{phase}}}}", "short"),
)
JOB = (
    _stat("Step", "holdfast_step{$S}"),
    _stat("Attempt", "holdfast_attempt{$S}"),
    _stat("ETTR", 'holdfast_ettr_ratio{window="all",$S}'),
    _stat("MFU", "max(holdfast_mfu_ratio{$S})"),
    _stat("Cost of a step", "holdfast_cost_per_step{$S}"),
    _stat("Cost of a billion tokens", "holdfast_cost_per_billion_tokens{$S}"),
    _one("Loss", "holdfast_loss{$S}"),
    _one("Gradient norm", "holdfast_grad_norm{$S}"),
    PanelSpec(
        "Throughput",
        (
            ("holdfast_tokens_per_second{$S}", "tokens of all"),
            ("holdfast_worker_tokens_per_second{$S}", "tokens of a GPU"),
            (f"rate(holdfast_samples_total{{$S}}[{RATE}])", "samples of rank 0"),
        ),
    ),
    PanelSpec(
        "Step time",
        tuple(
            (
                _quantile(quantile, f"rate(holdfast_step_duration_seconds{{$S}}[{RATE}])"),
                name,
            )
            for quantile, name in ((0.5, "median"), (0.99, "99th percentile"))
        ),
    ),
    BUCKETS,
    _one("Model FLOPs utilisation", "holdfast_mfu_ratio{$S}", NODE),
    _one("Learning rate", "holdfast_learning_rate{$S}", NODE),
    _one("Update-to-weight ratio", "holdfast_update_to_weight_ratio{$S}", NODE, "none"),
    PanelSpec(
        "Wait time per worker",
        (
            (
                f"rate(holdfast_node_data_wait_seconds_total{{$S}}[{RATE}]) / "
                "holdfast_node_workers{$S}",
                f"data, {NODE}",
            ),
            (
                f"rate(holdfast_node_checkpoint_stall_seconds_total{{$S}}[{RATE}]) / "
                "holdfast_node_workers{$S}",
                f"checkpoints, {NODE}",
            ),
        ),
        "percentunit",
    ),
    PanelSpec("Nodes", (("holdfast_nodes{$S}", "training"), ("holdfast_spares{$S}", "spare"))),
    _one("Slowest ranks", "holdfast_straggler_ratio{$S}", "rank {{rank}} on {{node}}"),
    *(
        PanelSpec(
            f"{title} the newest snapshot and checkpoints",
            (
                (f"holdfast_snapshot_{what}{{$S}}", "memory"),
                (f"holdfast_checkpoint_{what}{{$S}}", "{{tier}}"),
            ),
        )
        for title, what in (
            ("Age of", "age_seconds"),
            ("Duration of", "duration_seconds"),
            ("Size of", "bytes"),
        )
    ),
    _one("Metrics of the script", "holdfast_script_metric{$S}", "{{name}}"),
    PanelSpec(
        "Steps",
        (
            (f"rate(holdfast_steps_total{{$S}}[{RATE}])", "new"),
            (f"rate(holdfast_node_steps_total{{$S}}[{RATE}])", f"done, {NODE}"),
        ),
    ),
)
INCIDENT = (
    _stat("Incidents", "sum(holdfast_incidents_total{$S})"),
    _stat("Restarts", "sum(holdfast_restarts_total{$S})"),
    _stat("Steps redone", "sum(holdfast_steps_redone_total{$S})"),
    _stat("Open", "sum(holdfast_incident_open{$S})", "short"),
    PanelSpec(
        "Incidents by cause in a day",
        (("sum by (cause) (increase(holdfast_incidents_total{$S}[1d]))", "{{cause}}"),),
        stacked=True,
    ),
    PanelSpec(
        "Time to detect and to recover, 90th percentile",
        tuple(
            (
                _quantile(0.9, f"increase(holdfast_{what}_seconds{{$S}}[1d])"),
                what,
            )
            for what in ("detect", "recover")
        ),
    ),
    PanelSpec(
        "Lost time",
        (
            (
                'sum by (bucket) (rate(holdfast_time_seconds_total{bucket!="productive",$S}[1h]))',
                "{{bucket}}",
            ),
        ),
        "percentunit",
        stacked=True,
    ),
    _one("Phase", "holdfast_phase{$S} == 1", "{{phase}}", "short"),
    _one("Conditions of nodes", "holdfast_node_condition{$S}", "{{node}} {{condition}}", "short"),
    _one("Connected agents", f"sum {BY_JOB} (holdfast_node_up{{$S}})", unit="short"),
)
HARDWARE = (
    _one("GPU utilisation", "holdfast_gpu_utilization_ratio{$S}", GPU),
    _one(
        "SM active (by dcgm-exporter)",
        f"DCGM_FI_PROF_SM_ACTIVE * on (UUID) group_left (node, gpu, {JOB_LABEL}) "
        "holdfast_gpu_info{$S}",
        GPU,
        "percentunit",
    ),
    _one(
        "GPU memory",
        "holdfast_gpu_memory_used_bytes{$S} / holdfast_gpu_memory_total_bytes{$S}",
        GPU,
        "percentunit",
    ),
    _one("GPU memory bandwidth", "holdfast_gpu_memory_utilization_ratio{$S}", GPU),
    _one("GPU temperature", "holdfast_gpu_temperature_celsius{$S}", GPU),
    _one("GPU power", "holdfast_gpu_power_watts{$S}", GPU),
    _one("Energy per hour", "increase(holdfast_gpu_energy_joules_total{$S}[1h])", GPU),
    _one("GPU throttling", "holdfast_gpu_throttled{$S}", GPU),
    _one("Clock throttle reasons", "holdfast_gpu_slow_clocks{$S} == 1", f"{GPU} {{{{reason}}}}"),
    PanelSpec(
        "GPU traffic",
        tuple(
            (asked.format(way=way), f"{words} {way}, {GPU}")
            for words, asked in (
                ("NVLink", f"rate(holdfast_gpu_nvlink_{{way}}_bytes_total{{{{$S}}}}[{RATE}])"),
                ("PCIe", "holdfast_gpu_pcie_{way}_bytes_per_second{{$S}}"),
            )
            for way in ("sent", "received")
        ),
        "Bps",
    ),
    _one("XID errors", "increase(holdfast_gpu_xid_errors_total{$S}[1h])", f"{GPU} XID {{{{xid}}}}"),
    PanelSpec(
        "ECC errors",
        (
            ("holdfast_gpu_ecc_errors_total{$S}", f"uncorrectable, {GPU}"),
            ("holdfast_gpu_ecc_corrected_errors_total{$S}", f"corrected, {GPU}"),
        ),
    ),
    PanelSpec(
        "GPU link errors in an hour",
        (
            ("increase(holdfast_gpu_nvlink_errors_total{$S}[1h])", f"{{{{kind}}}}, {GPU}"),
            ("increase(holdfast_gpu_pcie_replays_total{$S}[1h])", f"PCIe replays, {GPU}"),
        ),
        "short",
    ),
    PanelSpec(
        "GPU links",
        (
            ("holdfast_gpu_nvlinks_down{$S}", f"NVLinks down, {GPU}"),
            ("holdfast_gpu_pcie_lanes_missing{$S}", f"PCIe lanes missing, {GPU}"),
        ),
    ),
    PanelSpec(
        "Pressure",
        (
            ("holdfast_memory_pressure_ratio{$S}", f"memory {{{{of}}}}, {NODE}"),
            ("holdfast_io_pressure_ratio{$S}", f"disks, {NODE}"),
            ("holdfast_cpu_pressure_ratio{$S}", f"CPU, {NODE}"),
        ),
    ),
    PanelSpec(
        "CPU steal and throttling",
        (
            ("holdfast_cpu_stolen_ratio{$S}", f"steal, {NODE}"),
            ("holdfast_cpu_throttled_ratio{$S}", f"throttled, {NODE}"),
        ),
    ),
    _one("CPUs in use", f"rate(holdfast_cpu_seconds_total{{$S}}[{RATE}])", NODE, "short"),
    PanelSpec(
        "Memory",
        (
            ("holdfast_memory_used_bytes{$S}", f"used, {NODE}"),
            ("holdfast_memory_limit_bytes{$S}", f"limit, {NODE}"),
        ),
    ),
    PanelSpec(
        "Disk and network traffic",
        (
            (f"rate(holdfast_disk_read_bytes_total{{$S}}[{RATE}])", f"read, {NODE}"),
            (f"rate(holdfast_disk_written_bytes_total{{$S}}[{RATE}])", f"written, {NODE}"),
            *(
                (
                    f"rate(holdfast_{link}_{way}_bytes_total{{$S}}[{RATE}])",
                    f"{way}, {{{{node}}}} {{{{device}}}}",
                )
                for link in ("link", "rdma")
                for way in ("sent", "received")
            ),
        ),
        "Bps",
    ),
    _one("Free disk space", "holdfast_disk_free_bytes{$S}", "{{node}} {{folder}}"),
    _one("Disk usage", "holdfast_disk_used_ratio{$S}", "{{node}} {{folder}}"),
    PanelSpec(
        "Network link errors in an hour",
        (
            ("increase(holdfast_link_errors_total{$S}[1h])", "{{node}} {{device}}"),
            ("increase(holdfast_link_drops_total{$S}[1h])", "{{node}} {{device}} drops"),
            ("increase(holdfast_rdma_errors_total{$S}[1h])", "{{node}} {{device}} RDMA"),
            ("increase(holdfast_rdma_retries_total{$S}[1h])", "{{node}} {{device}} retries"),
        ),
        "short",
    ),
    PanelSpec(
        "Network link downs in an hour",
        (
            ("increase(holdfast_link_downs_total{$S}[1h])", "{{node}} {{device}}"),
            ("increase(holdfast_rdma_downs_total{$S}[1h])", "{{node}} {{device}} RDMA"),
        ),
        "short",
    ),
)
DASHBOARDS = {"fleet": FLEET, "job": JOB, "incident": INCIDENT, "hardware": HARDWARE}


def queries_of(panels: tuple[PanelSpec, ...], selector: str = OF_JOB) -> Iterator[str]:
    """Every query, with what selects the jobs."""
    for panel in panels:
        for query, _ in panel.queries:
            yield _selected(query, selector)


def as_json(name: str) -> str:
    """The dashboard as Grafana imports it."""
    panels = list(_placed(DASHBOARDS[name]))
    board = {
        "uid": f"holdfast-{name}",
        "title": f"Holdfast: {name}",
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": [_restarts()]},
        "panels": panels,
    }
    return json.dumps(board, indent=1) + "\n"


def _selected(query: str, selector: str) -> str:
    return query.replace("$S", selector).replace(",}", "}").replace("{}", "")


def _variables() -> list[dict[str, Any]]:
    jobs = f"label_values(holdfast_attempt, {JOB_LABEL})"
    return [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"},
        {
            "name": "job",
            "type": "query",
            "label": "Job",
            "query": jobs,
            "refresh": 2,
            "datasource": _source(),
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
        },
    ]


def _restarts() -> dict[str, Any]:
    query = _selected("changes(holdfast_attempt{$S}[1m]) > 0", OF_JOB)
    colour = {"enable": True, "iconColor": "red"}
    return {"name": "Restarts", "datasource": _source(), "expr": query, **colour}


def _source() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${source}"}


def _placed(specs: tuple[PanelSpec, ...]) -> Iterator[dict[str, Any]]:
    """From left to right, then down."""
    x = y = 0
    for number, spec in enumerate(specs, 1):
        height = HEIGHT if spec.kind == "timeseries" else HEIGHT // 2
        if x + spec.columns > WIDTH:
            x, y = 0, y + HEIGHT
        yield _panel(number, spec, {"x": x, "y": y, "w": spec.columns, "h": height})
        x += spec.columns


def _panel(number: int, spec: PanelSpec, place: dict[str, int]) -> dict[str, Any]:
    style = {"stacking": {"mode": "normal"}, "fillOpacity": 60} if spec.stacked else {}
    return {
        "id": number,
        "type": spec.kind,
        "title": spec.title,
        "description": _described(spec),
        "datasource": _source(),
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": spec.unit or unit_of(spec), "custom": style}},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": _selected(query, OF_JOB), "legendFormat": text}
            for place, (query, text) in enumerate(spec.queries)
        ],
    }


def _described(spec: PanelSpec) -> str:
    named = dict.fromkeys(name for query, _ in spec.queries for name in METRIC.findall(query))
    return "\n".join(f"{name}: {SCRAPED[name].help}" for name in named if name in SCRAPED)


def unit_of(spec: PanelSpec) -> str:
    """Grafana's word for the unit of the first metric."""
    [name, *_] = METRIC.findall(spec.queries[0][0])
    words = SCRAPED[name].name.split("_")
    if "per_second" in name or "per_hour" in name:
        return "short"
    return next((UNITS[word] for word in words if word in UNITS), "short")
