"""Every metric there is, as data: what serves it, what it counts, in which unit, by which labels.

One table: series that are not in it cannot be served (`holdfast/scrape.py`), the reference is
written from it, alerts and dashboards may only ask for what it has. Names follow Prometheus'
conventions: base units (seconds, bytes, ratios), and the unit at the end; a counter is scraped with
`_total` behind its name.

Labels are bounded by what a node or the vocabulary has. No series has a label for each rank: at
16,384 ranks that alone would be most of what a Prometheus can hold. Which job it is, is a label of
the target, `holdfast_dev_job`, because the label `job` is Prometheus' own.
"""

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
Server = Literal["controller", "agent"]

JOB_LABEL = "holdfast_dev_job"  # of targets

STEP_BOUNDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0),
    *(7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0),
)
PCIE = "Bytes over PCIe, measured for 20 ms every few seconds."
INCIDENT_BOUNDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


class MetricRow(NamedTuple):
    """One metric."""

    name: str
    kind: Kind
    server: Server
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # of a histogram, ascending

    @property
    def scraped(self) -> str:
        """The name in a query; of a histogram that of its buckets."""
        return self.name + {"counter": "_total", "gauge": "", "histogram": "_bucket"}[self.kind]


def _job(kind: Kind, name: str, told: str, *labels: str) -> MetricRow:
    return MetricRow(f"holdfast_{name}", kind, "controller", told, labels)


def _node(kind: Kind, name: str, told: str, *labels: str) -> MetricRow:
    return MetricRow(f"holdfast_{name}", kind, "agent", told, ("node", *labels))


_STATE = (
    _job("gauge", "phase", "1 for the phase that the job is in.", "phase"),
    _job("gauge", "attempt", "Number of the attempt."),
    _job("gauge", "nodes", "Nodes that train."),
    _job("gauge", "nodes_wanted", "Nodes that should train."),
    _job("gauge", "workers", "Workers of the attempt."),
    _job("gauge", "spares", "Nodes that are warm, wait and have no fault."),
    _job("gauge", "spares_wanted", "Spares that the job asks for."),
    _job("gauge", "node_state", "1 for the state that a node is in.", "node", "state"),
    _job(
        "gauge", "node_condition",
        "1 for each condition of a node's GPUs, machine or network that stands: "
        "docs/concepts/diagnosis.md has them.",
        "node", "condition", "severity",
    ),
)  # fmt: skip
_TRAINING = (
    _job("gauge", "step", "Last step that all ranks have completed."),
    _job("gauge", "last_planned_step", "Step after which training ends, if the script says so."),
    _job("counter", "steps", "Steps completed, each once however often it was redone."),
    _job("counter", "steps_redone", "Steps lost to incidents that are over, and done again."),
    _job(
        "gauge", "last_step_timestamp_seconds",
        "When a rank last completed a step; before the first one, when the job began.",
    ),
    _job("gauge", "last_step_duration_seconds", "Of the newest step of rank 0."),
    _job("gauge", "tokens_per_second", "Tokens that all ranks consumed in the last minute."),
    _job("gauge", "worker_tokens_per_second", "The same for one worker, which is a GPU if any."),
    _job("gauge", "loss", "Of rank 0 in its newest step. May be NaN."),
    _job("gauge", "grad_norm", "Gradient norm of rank 0 in its newest step. May be NaN."),
    _job("gauge", "cost_per_hour", "Of all workers and those of spares, by `cost.gpu_hour`."),
    _job("gauge", "cost_per_step", "Cost of the newest step, by `cost.gpu_hour`."),
    _job("gauge", "cost_per_billion_tokens", "At the present throughput, by `cost.gpu_hour`."),
    _job(
        "gauge", "straggler_ratio",
        "Share of their time that all others wait for this rank: the slowest ones only.",
        "node", "rank",
    ),
)  # fmt: skip
_GOODPUT = (
    _job(
        "counter", "time_seconds",
        "Where the time went: every bucket of the goodput ledger. Booked once it is certain: what "
        "an attempt still does is added when it makes progress, or is over.",
        "bucket",
    ),
    _job(
        "gauge", "ettr_ratio",
        "Effective training time ratio: of the whole time (`all`), of the last hour (`1h`).",
        "window",
    ),
    _job("counter", "restarts", "Attempts after the first."),
    _job("counter", "batches_skipped", "Batches that recovery.skip_batches has left out."),
    _job("counter", "incidents", "Incidents that are over, by cause.", "cause"),
    _job("gauge", "incident_open", "1 while an incident is not over."),
    _job(
        "histogram", "detect_seconds", "From a fault until it was noticed, of incidents over."
    )._replace(bounds=INCIDENT_BOUNDS),
    _job(
        "histogram", "recover_seconds", "From there until training was productive again."
    )._replace(bounds=INCIDENT_BOUNDS),
)  # fmt: skip
_TIERS = (
    _job("gauge", "snapshot_step", "Newest snapshot in memory that all ranks have."),
    _job("gauge", "snapshot_interval_steps", "Steps from one snapshot to the next."),
    _job("gauge", "snapshot_age_seconds", "Since the last rank had its newest."),
    _job("gauge", "snapshot_duration_seconds", "That training waited for the newest."),
    _job("gauge", "snapshot_bytes", "Memory of snapshots on all nodes, copies of others' too."),
    _job("counter", "checkpoints", "Durable checkpoints committed.", "tier"),
    _job("counter", "checkpoint_failures", "Durable checkpoints that failed.", "tier"),
    _job("gauge", "checkpoint_failing", "1 if the newest save has failed.", "tier"),
    _job("gauge", "checkpoint_step", "Of the newest committed one.", "tier"),
    _job("gauge", "checkpoint_age_seconds", "Since the newest was committed.", "tier"),
    _job("gauge", "checkpoint_interval_seconds", "Planned between two of them.", "tier"),
    _job("gauge", "checkpoint_duration_seconds", "That the newest took.", "tier"),
    _job("gauge", "checkpoint_bytes", "New in the newest.", "tier"),
)
_WORKERS = (
    _node("gauge", "node_up", "1 while its agent is connected to a controller."),
    _node("gauge", "node_info", "1; on which machine the node is.", "machine"),
    _node("gauge", "node_attempt", "Newest attempt that the node has run."),
    _node("gauge", "node_workers", "Workers that live."),
    _node("gauge", "node_step", "Newest step of its workers."),
    _node("gauge", "node_last_step_timestamp_seconds", "When that was completed."),
    _node("counter", "node_steps", "Steps of one of its workers, redone ones too."),
    _node("counter", "node_tokens", "Tokens of all its workers, of redone steps too."),
    _node("counter", "node_data_wait_seconds", "Its workers waited for data, added up."),
    _node("counter", "node_checkpoint_stall_seconds", "And for snapshots and checkpoints."),
    _node(
        "histogram", "step_duration_seconds",
        "From the end of one step to that of the next; where rank 0 is.",
    )._replace(bounds=STEP_BOUNDS),
    _node("counter", "samples", "What rank 0 logged as `samples`, added up."),
    _node("gauge", "learning_rate", "What rank 0 logged last as `lr` or `learning_rate`."),
    _node(
        "gauge", "mfu_ratio",
        "Model FLOPs utilisation of rank 0: `flops` that it logs, by the GPU's peak.",
    ),
    _node(
        "gauge", "update_to_weight_ratio",
        "What rank 0 logged last as `update_ratio`: how far the optimizer moves the weights.",
    ),
    _node("gauge", "script_metric", "Other numbers that rank 0 logs, 32 at most.", "name"),
)  # fmt: skip
_GPUS = (
    _node("gauge", "gpu_info", "1; its UUID, by which dcgm-exporter knows it.", "gpu", "UUID"),
    _node("gauge", "gpu_temperature_celsius", "Temperature.", "gpu"),
    _node("gauge", "gpu_utilization_ratio", "Share of time in which a kernel ran.", "gpu"),
    _node(
        "gauge",
        "gpu_memory_utilization_ratio",
        "Share of time in which memory was read or written.",
        "gpu",
    ),
    _node("gauge", "gpu_memory_used_bytes", "Memory in use.", "gpu"),
    _node("gauge", "gpu_memory_total_bytes", "Memory that it has.", "gpu"),
    _node("gauge", "gpu_power_watts", "Power now.", "gpu"),
    _node(
        "counter",
        "gpu_energy_joules",
        "Since the driver was loaded; power added up where the GPU does not count energy.",
        "gpu",
    ),
    _node("gauge", "gpu_throttled", "1 while it slows itself down.", "gpu"),
    _node("gauge", "gpu_slow_clocks", "1 for each reason why its clocks are low.", "gpu", "reason"),
    _node("counter", "gpu_ecc_errors", "Uncorrectable, since the driver was loaded.", "gpu"),
    _node("counter", "gpu_ecc_corrected_errors", "Corrected ones, likewise.", "gpu"),
    _node("counter", "gpu_nvlink_sent_bytes", "Data, over all its NVLinks.", "gpu"),
    _node("counter", "gpu_nvlink_received_bytes", "Data, over all its NVLinks.", "gpu"),
    _node("counter", "gpu_nvlink_errors", "Of all its NVLinks, by kind.", "gpu", "kind"),
    _node("gauge", "gpu_pcie_sent_bytes_per_second", PCIE, "gpu"),
    _node("gauge", "gpu_pcie_received_bytes_per_second", PCIE, "gpu"),
    _node("counter", "gpu_pcie_replays", "Transfers over PCIe that were repeated.", "gpu"),
    _node("gauge", "gpu_nvlinks_down", "NVLinks that were up at first.", "gpu"),
    _node("gauge", "gpu_pcie_lanes_missing", "Of those that it could have.", "gpu"),
    _node("counter", "gpu_xid_errors", "XID errors that the driver told of.", "gpu", "xid"),
)
_HOST = (
    _node("gauge", "memory_pressure_ratio", "Last 10 s in which all waited for memory.", "of"),
    _node("gauge", "io_pressure_ratio", "Last 10 s in which all waited for disks."),
    _node("gauge", "cpu_pressure_ratio", "Last 10 s in which some waited for processors."),
    _node("gauge", "cpu_stolen_ratio", "Processor time taken by other virtual machines."),
    _node("gauge", "cpu_throttled_ratio", "Periods in which the control group's limit held."),
    _node("counter", "cpu_seconds", "Processor time of the control group."),
    _node("gauge", "memory_used_bytes", "Of the control group, with its page cache."),
    _node("gauge", "memory_limit_bytes", "Of the control group, if it has one."),
    _node("counter", "disk_read_bytes", "By the control group."),
    _node("counter", "disk_written_bytes", "By the control group."),
    _node("gauge", "disk_free_bytes", "Free where the job writes.", "folder"),
    _node("gauge", "disk_used_ratio", "Used where the job writes.", "folder"),
    _node("counter", "link_downs", "Times that a network link was lost.", "device"),
    _node("counter", "link_errors", "Transmission errors of a network link.", "device"),
    _node("counter", "link_drops", "Packets that a network link dropped.", "device"),
    _node("counter", "link_received_bytes", "Over a network link.", "device"),
    _node("counter", "link_sent_bytes", "Over a network link.", "device"),
    _node("counter", "rdma_received_bytes", "Over an RDMA port.", "device"),
    _node("counter", "rdma_sent_bytes", "Over an RDMA port.", "device"),
    _node("counter", "rdma_retries", "Sequence errors and timeouts of an RDMA port.", "device"),
    _node(
        "counter",
        "rdma_congestion_notifications",
        "That an RDMA port has sent or heeded.",
        "device",
    ),
    _node("counter", "rdma_downs", "Times that an RDMA port went down.", "device"),
    _node("counter", "rdma_errors", "Transmission errors of an RDMA port.", "device"),
)

GROUPS: dict[str, tuple[MetricRow, ...]] = {
    "The job and its nodes": _STATE,
    "Training": _TRAINING,
    "Goodput": _GOODPUT,
    "Snapshots and checkpoints": _TIERS,
    "Workers of a node": _WORKERS,
    "GPUs of a node": _GPUS,
    "Machine of a node": _HOST,
}
METRICS: dict[str, MetricRow] = {row.name: row for rows in GROUPS.values() for row in rows}
"""All metrics by name, in the order of the reference."""
SCRAPED: dict[str, MetricRow] = {row.scraped: row for row in METRICS.values()}
"""The same by the name in a query."""
NATIVE: dict[str, MetricRow] = {r.name: r for r in METRICS.values() if r.kind == "histogram"}
"""Histograms, by their names where Prometheus takes native ones."""
