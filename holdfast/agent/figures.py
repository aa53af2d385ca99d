"""A node's figures for Prometheus: what its agent knows anyhow, put into series of the table."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from holdfast.agent.counters import MFU, NO_METRIC, RATE_NAMES, UPDATE_RATIO, NodeCounters
from holdfast.detection.health import GPU, Reading
from holdfast.scrape import Exposition

if TYPE_CHECKING:
    from holdfast.agent.probes import Health

PERCENT = 0.01


class ReadingSeries(NamedTuple):
    """The series that a kind of reading is served as."""

    metric: str
    label: str = ""  # that its device becomes; of several, the words of the device become one each
    factor: float = 1.0


SERIES: dict[str, ReadingSeries] = {
    GPU: ReadingSeries("holdfast_gpu_temperature_celsius", "gpu"),
    "gpu-utilization": ReadingSeries("holdfast_gpu_utilization_ratio", "gpu", PERCENT),
    "gpu-info": ReadingSeries("holdfast_gpu_info", "gpu UUID"),
    "gpu-memory-utilization": ReadingSeries(
        "holdfast_gpu_memory_utilization_ratio", "gpu", PERCENT
    ),
    "gpu-memory-used": ReadingSeries("holdfast_gpu_memory_used_bytes", "gpu"),
    "gpu-memory-total": ReadingSeries("holdfast_gpu_memory_total_bytes", "gpu"),
    "gpu-power": ReadingSeries("holdfast_gpu_power_watts", "gpu"),
    "gpu-energy": ReadingSeries("holdfast_gpu_energy_joules", "gpu"),
    "gpu-throttled": ReadingSeries("holdfast_gpu_throttled", "gpu"),
    "gpu-slow-clocks": ReadingSeries("holdfast_gpu_slow_clocks", "gpu reason"),
    "gpu-ecc": ReadingSeries("holdfast_gpu_ecc_errors", "gpu"),
    "gpu-ecc-corrected": ReadingSeries("holdfast_gpu_ecc_corrected_errors", "gpu"),
    "gpu-nvlink-sent": ReadingSeries("holdfast_gpu_nvlink_sent_bytes", "gpu"),
    "gpu-nvlink-received": ReadingSeries("holdfast_gpu_nvlink_received_bytes", "gpu"),
    "gpu-nvlink-crc": ReadingSeries("holdfast_gpu_nvlink_errors", "gpu kind"),
    "gpu-nvlink-errors": ReadingSeries("holdfast_gpu_nvlink_errors", "gpu kind"),
    "gpu-pcie-sent": ReadingSeries("holdfast_gpu_pcie_sent_bytes_per_second", "gpu"),
    "gpu-pcie-received": ReadingSeries("holdfast_gpu_pcie_received_bytes_per_second", "gpu"),
    "gpu-pcie-replays": ReadingSeries("holdfast_gpu_pcie_replays", "gpu"),
    "gpu-nvlink": ReadingSeries("holdfast_gpu_nvlinks_down", "gpu"),
    "gpu-pcie": ReadingSeries("holdfast_gpu_pcie_lanes_missing", "gpu"),
    "memory-pressure": ReadingSeries("holdfast_memory_pressure_ratio", "of", PERCENT),
    "io-pressure": ReadingSeries("holdfast_io_pressure_ratio", factor=PERCENT),
    "cpu-pressure": ReadingSeries("holdfast_cpu_pressure_ratio", factor=PERCENT),
    "cpu-stolen": ReadingSeries("holdfast_cpu_stolen_ratio"),
    "cpu-throttled": ReadingSeries("holdfast_cpu_throttled_ratio"),
    "cpu-seconds": ReadingSeries("holdfast_cpu_seconds"),
    "memory-used": ReadingSeries("holdfast_memory_used_bytes"),
    "memory-limit": ReadingSeries("holdfast_memory_limit_bytes"),
    "disk-read": ReadingSeries("holdfast_disk_read_bytes"),
    "disk-written": ReadingSeries("holdfast_disk_written_bytes"),
    "disk-filling": ReadingSeries("holdfast_disk_free_bytes", "folder"),
    "disk-full": ReadingSeries("holdfast_disk_used_ratio", "folder"),
    "link-down": ReadingSeries("holdfast_link_downs", "device"),
    "link-errors": ReadingSeries("holdfast_link_errors", "device"),
    "link-drops": ReadingSeries("holdfast_link_drops", "device"),
    "link-received": ReadingSeries("holdfast_link_received_bytes", "device"),
    "link-sent": ReadingSeries("holdfast_link_sent_bytes", "device"),
    "rdma-received": ReadingSeries("holdfast_rdma_received_bytes", "device"),
    "rdma-sent": ReadingSeries("holdfast_rdma_sent_bytes", "device"),
    "rdma-retries": ReadingSeries("holdfast_rdma_retries", "device"),
    "rdma-congestion": ReadingSeries("holdfast_rdma_congestion_notifications", "device"),
    "rdma-down": ReadingSeries("holdfast_rdma_downs", "device"),
    "rdma-errors": ReadingSeries("holdfast_rdma_errors", "device"),
}


def figures(health: "Health", now: float) -> Exposition:
    """All of them; `now` in seconds since the epoch."""
    found = Exposition({"node": health.name})
    found.add("holdfast_node_up", int(health.connected))
    found.add("holdfast_node_info", 1, machine=health.machine)
    found.add("holdfast_node_attempt", health.attempt)
    found.add("holdfast_node_workers", health.workers)
    if health.step is not None:
        found.add("holdfast_node_step", health.step)
    if health.step:
        found.add("holdfast_node_last_step_timestamp_seconds", now - health.step_ago_s)
    _add_work(found, health.counters)
    add_readings(found, health.readings, health.xids)
    return found


def _add_work(found: Exposition, counters: NodeCounters) -> None:
    done = counters.total
    found.add("holdfast_node_steps", done.steps)
    found.add("holdfast_node_tokens", done.tokens)
    found.add("holdfast_node_data_wait_seconds", done.data_wait_s)
    found.add("holdfast_node_checkpoint_stall_seconds", done.stall_s)
    found.add_tally("holdfast_step_duration_seconds", counters.step_s)
    found.add("holdfast_samples", counters.samples)
    logged = counters.logged
    rate = next((logged[name] for name in RATE_NAMES if name in logged), None)
    found.add("holdfast_learning_rate", rate)
    found.add("holdfast_mfu_ratio", logged.get(MFU))
    found.add("holdfast_update_to_weight_ratio", logged.get(UPDATE_RATIO))
    for name, value in logged.items():
        if name not in NO_METRIC:
            found.add("holdfast_script_metric", value, name=name)


def add_readings(
    found: Exposition, readings: Iterable[Reading], xids: Mapping[tuple[str, int], int]
) -> None:
    """What was read of the machine last, and how often each GPU told of which XID."""
    for reading in readings:
        if (series := SERIES.get(reading.kind)) is not None:
            names = series.label.split()
            values = (
                reading.device.split(" ", len(names) - 1) if len(names) > 1 else [reading.device]
            )
            labels = dict(zip(names, values, strict=False))
            found.add(series.metric, reading.value * series.factor, **labels)
    for (gpu, number), count in xids.items():
        found.add("holdfast_gpu_xid_errors", count, gpu=gpu, xid=str(number))
