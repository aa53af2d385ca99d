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
PCIE = "PCIe throughput, measured for 20 ms every few seconds."
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
    _job("gauge", "phase", "1 for the phase of the job.", "phase"),
    _job("gauge", "attempt", "Number of the attempt."),
    _job("gauge", "nodes", "Nodes that train."),
    _job("gauge", "nodes_wanted", "Nodes that should train."),
    _job("gauge", "workers", "Workers of the attempt."),
    _job("gauge", "spares", "Warm standby nodes without a fault."),
    _job("gauge", "spares_wanted", "Spares that the job requests."),
    _job("gauge", "node_state", "1 for the state of a node.", "node", "state"),
    _job(
        "gauge", "node_condition",
        "1 for each current condition of a node's GPUs, machine or network: "
        "docs/concepts/diagnosis.md lists them.",
        "node", "condition", "severity",
    ),
)  # fmt: skip
_TRAINING = (
    _job("gauge", "step", "Last step that all ranks have completed."),
    _job("gauge", "last_planned_step", "Step after which training ends, if the script says so."),
    _job("counter", "steps", "Steps completed; a redone step counts once."),
    _job("counter", "steps_redone", "Steps redone because of incidents that are over."),
    _job(
        "gauge", "last_step_timestamp_seconds",
        "When a rank last completed a step; before the first one, when the job began.",
    ),
    _job("gauge", "last_step_duration_seconds", "Duration of the newest step of rank 0."),
    _job("gauge", "tokens_per_second", "Tokens that all ranks consumed in the last minute."),
    _job("gauge", "worker_tokens_per_second", "Tokens per second of one worker (one GPU, if any)."),
    _job("gauge", "loss", "Loss of rank 0 in its newest step. May be NaN."),
    _job("gauge", "grad_norm", "Gradient norm of rank 0 in its newest step. May be NaN."),
    _job("gauge", "cost_per_hour", "Cost per hour of all workers and spares, by `cost.gpu_hour`."),
    _job("gauge", "cost_per_step", "Cost of the newest step, by `cost.gpu_hour`."),
    _job("gauge", "cost_per_billion_tokens", "Cost of 1e9 tokens now, by `cost.gpu_hour`."),
    _job(
        "gauge", "straggler_ratio",
        "Share of the time that all other ranks wait for this one; slowest ranks only.",
        "node", "rank",
    ),
)  # fmt: skip
_GOODPUT = (
    _job(
        "counter", "time_seconds",
        "Time by bucket of the goodput ledger. Time of a running attempt is added when it makes "
        "progress or ends.",
        "bucket",
    ),
    _job(
        "gauge", "ettr_ratio",
        "Effective training time ratio of the whole time (`all`) or the last hour (`1h`).",
        "window",
    ),
    _job("counter", "restarts", "Attempts after the first."),
    _job("counter", "batches_skipped", "Batches skipped by recovery.skip_batches."),
    _job("counter", "incidents", "Incidents that are over, by cause.", "cause"),
    _job("gauge", "incident_open", "1 while an incident is not over."),
    _job(
        "histogram", "detect_seconds", "From a fault to its detection; incidents that are over."
    )._replace(bounds=INCIDENT_BOUNDS),
    _job(
        "histogram", "recover_seconds", "From detection until training was productive again."
    )._replace(bounds=INCIDENT_BOUNDS),
)  # fmt: skip
_TIERS = (
    _job("gauge", "snapshot_step", "Step of the newest snapshot in memory that all ranks have."),
    _job("gauge", "snapshot_interval_steps", "Steps from one snapshot to the next."),
    _job("gauge", "snapshot_age_seconds", "Time since all ranks have had the newest snapshot."),
    _job(
        "gauge", "snapshot_duration_seconds", "Time that training waited for the newest snapshot."
    ),
    _job("gauge", "snapshot_bytes", "Memory of snapshots on all nodes, including copies."),
    _job("counter", "checkpoints", "Durable checkpoints committed.", "tier"),
    _job("counter", "checkpoint_failures", "Durable checkpoints that failed.", "tier"),
    _job("gauge", "checkpoint_failing", "1 if the newest save failed.", "tier"),
    _job("gauge", "checkpoint_step", "Step of the newest committed checkpoint.", "tier"),
    _job("gauge", "checkpoint_age_seconds", "Time since the newest one was committed.", "tier"),
    _job("gauge", "checkpoint_interval_seconds", "Planned time between checkpoints.", "tier"),
    _job("gauge", "checkpoint_duration_seconds", "Duration of the newest save.", "tier"),
    _job("gauge", "checkpoint_bytes", "New bytes in the newest checkpoint.", "tier"),
)
_WORKERS = (
    _node("gauge", "node_up", "1 while its agent is connected to a controller."),
    _node("gauge", "node_info", "1; the machine of the node.", "machine"),
    _node("gauge", "node_attempt", "Newest attempt that the node has run."),
    _node("gauge", "node_workers", "Live workers."),
    _node("gauge", "node_step", "Newest step of its workers."),
    _node("gauge", "node_last_step_timestamp_seconds", "When its newest step was completed."),
    _node("counter", "node_steps", "Steps of one of its workers, including redone ones."),
    _node("counter", "node_tokens", "Tokens of all its workers, including redone steps."),
    _node("counter", "node_data_wait_seconds", "Time its workers waited for data, in sum."),
    _node(
        "counter", "node_checkpoint_stall_seconds",
        "Time its workers waited for snapshots and checkpoints, in sum.",
    ),
    _node(
        "histogram", "step_duration_seconds",
        "From the end of one step to the end of the next; on the node of rank 0.",
    )._replace(bounds=STEP_BOUNDS),
    _node("counter", "samples", "Sum of what rank 0 logged as `samples`."),
    _node("gauge", "learning_rate", "Last value that rank 0 logged as `lr` or `learning_rate`."),
    _node(
        "gauge", "mfu_ratio",
        "Model FLOPs utilisation of rank 0: `flops` that it logs / peak FLOPS of the GPU.",
    ),
    _node(
        "gauge", "update_to_weight_ratio",
        "Last value that rank 0 logged as `update_ratio`: size of an update / size of the weights.",
    ),
    _node("gauge", "script_metric", "Other numbers that rank 0 logs, 32 at most.", "name"),
)  # fmt: skip
_GPUS = (
    _node("gauge", "gpu_info", "1; the UUID, as in dcgm-exporter.", "gpu", "UUID"),
    _node("gauge", "gpu_temperature_celsius", "Temperature.", "gpu"),
    _node("gauge", "gpu_utilization_ratio", "Share of time in which a kernel ran.", "gpu"),
    _node(
        "gauge",
        "gpu_memory_utilization_ratio",
        "Share of time in which memory was read or written.",
        "gpu",
    ),
    _node("gauge", "gpu_memory_used_bytes", "Memory in use.", "gpu"),
    _node("gauge", "gpu_memory_total_bytes", "Total memory.", "gpu"),
    _node("gauge", "gpu_power_watts", "Power draw.", "gpu"),
    _node(
        "counter",
        "gpu_energy_joules",
        "Since the driver was loaded; sum of power readings if the GPU does not count energy.",
        "gpu",
    ),
    _node("gauge", "gpu_throttled", "1 while it is throttled.", "gpu"),
    _node("gauge", "gpu_slow_clocks", "1 for each clock throttle reason.", "gpu", "reason"),
    _node("counter", "gpu_ecc_errors", "Uncorrectable errors since the driver was loaded.", "gpu"),
    _node(
        "counter",
        "gpu_ecc_corrected_errors",
        "Corrected errors since the driver was loaded.",
        "gpu",
    ),
    _node("counter", "gpu_nvlink_sent_bytes", "Sent over all its NVLinks.", "gpu"),
    _node("counter", "gpu_nvlink_received_bytes", "Received over all its NVLinks.", "gpu"),
    _node("counter", "gpu_nvlink_errors", "Errors of all its NVLinks, by kind.", "gpu", "kind"),
    _node("gauge", "gpu_pcie_sent_bytes_per_second", PCIE, "gpu"),
    _node("gauge", "gpu_pcie_received_bytes_per_second", PCIE, "gpu"),
    _node("counter", "gpu_pcie_replays", "PCIe replays.", "gpu"),
    _node("gauge", "gpu_nvlinks_down", "NVLinks that were up before and are down.", "gpu"),
    _node(
        "gauge", "gpu_pcie_lanes_missing", "PCIe lanes missing from the possible link width.", "gpu"
    ),
    _node("counter", "gpu_xid_errors", "XID errors reported by the driver.", "gpu", "xid"),
)
_HOST = (
    _node("gauge", "memory_pressure_ratio", "PSI of memory: full avg10.", "of"),
    _node("gauge", "io_pressure_ratio", "PSI of I/O: full avg10."),
    _node("gauge", "cpu_pressure_ratio", "PSI of CPU: avg10 of full, else of some."),
    _node("gauge", "cpu_stolen_ratio", "CPU steal: time taken by other virtual machines."),
    _node("gauge", "cpu_throttled_ratio", "Share of CFS periods throttled in the cgroup."),
    _node("counter", "cpu_seconds", "CPU time of the cgroup."),
    _node("gauge", "memory_used_bytes", "Memory of the cgroup, including page cache."),
    _node("gauge", "memory_limit_bytes", "Memory limit of the cgroup, if any."),
    _node("counter", "disk_read_bytes", "Read by the cgroup."),
    _node("counter", "disk_written_bytes", "Written by the cgroup."),
    _node("gauge", "disk_free_bytes", "Free space where the job writes.", "folder"),
    _node("gauge", "disk_used_ratio", "Used share of the disk where the job writes.", "folder"),
    _node("counter", "link_downs", "Times that a network link went down.", "device"),
    _node("counter", "link_errors", "Transmission errors of a network link.", "device"),
    _node("counter", "link_drops", "Packets that a network link dropped.", "device"),
    _node("counter", "link_received_bytes", "Received over a network link.", "device"),
    _node("counter", "link_sent_bytes", "Sent over a network link.", "device"),
    _node("counter", "rdma_received_bytes", "Received over an RDMA port.", "device"),
    _node("counter", "rdma_sent_bytes", "Sent over an RDMA port.", "device"),
    _node("counter", "rdma_retries", "Sequence errors and timeouts of an RDMA port.", "device"),
    _node(
        "counter",
        "rdma_congestion_notifications",
        "CNPs that an RDMA port has sent or handled.",
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
