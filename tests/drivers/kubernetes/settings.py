"""Every optional setting of the job file with a value that is not its default, and what it needs.

A value comes with the context in which it can have an effect at all: spares for the priority of
spares, a queue for the priority in it. Both the rendering with the context alone and the one with
the value are made; what counts is whether they differ.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from holdfast.spec import Job


class Setting(NamedTuple):
    """A value for a path, and the job around it."""

    value: Any
    around: Mapping[str, Any] = MappingProxyType({})
    managed: Any = None  # another value for managed mode, where the first one is the default


GPUS: dict[str, Any] = {"resources": {"gpus": 8}}
SPARES: dict[str, Any] = {"nodes": {"count": 4, "spares": 2}}
QUEUE: dict[str, Any] = {"scheduling": {"kueue": {"queue": "team"}}}
IN_REPLICAS: dict[str, Any] = {
    "nodes": {"count": 4},
    "elasticity": {"min_nodes": 2},
    "recovery": {"mode": "replicas"},
}
SHARED: dict[str, Any] = {"checkpoints": {"shared": {"pvc": "ckpt"}}}
LOCAL: dict[str, Any] = {"checkpoints": {"local": {"host_path": "/nvme"}}}
LOCAL_CLASS: dict[str, Any] = {"checkpoints": {"local": {"pvc_class": "nvme"}}}
ARCHIVE: dict[str, Any] = {"checkpoints": {"archive": {"url": "s3://bucket/runs"}}}
MADE: dict[str, Any] = {"checkpoints": {"shared": {"pvc": "ckpt", "storage_class": "rwx"}}}
JOURNAL: dict[str, Any] = {"kubernetes": {"journal": {"pvc": "journals"}}}
JOURNAL_MADE: dict[str, Any] = {
    "kubernetes": {"journal": {"pvc": "journals", "storage_class": "rwx"}}
}
MONITORED: dict[str, Any] = {"monitoring": {"enabled": True}}
CORDONS: dict[str, Any] = {"access": {"cordon": True}}
TIMES: dict[str, Any] = {"schedule": {"cron": "0 3 * * *"}}
DRAWN: dict[str, Any] = {
    "sweep": {"trials": 2, "ranges": {"lr": {"low": 0.1, "high": 0.5}}},
    "nodes": 1,
}
SWEEP: dict[str, Any] = {"sweep": {"trials": 20, "parallel": 4}, "nodes": 1}
REPLICAS: dict[str, Any] = {"parallel": {"dp_replicate": -1}}
PARALLEL: dict[str, Any] = {"parallel": {"dp_replicate": 1}}
ELASTIC: dict[str, Any] = {"elasticity": {"min_nodes": 2}}
EVALUATED: dict[str, Any] = {"roles": {"evaluator": True}}
MPI: dict[str, Any] = {"framework": "mpi"}

SETTINGS: dict[str, Setting] = {
    "args": Setting(["--lr", "3e-4"]),
    "env": Setting({"A": "1"}),
    "workdir": Setting("/work"),
    "code": Setting("."),
    "clusters": Setting([{"context": "east"}]),
    "nodes.count": Setting(7),
    "nodes.spares": Setting(3),
    "workers_per_node": Setting(3),
    "device": Setting("rocm", GPUS),
    "parallel": Setting({"tp": 4}),
    "parallel.dp_replicate": Setting(4, PARALLEL),
    "parallel.dp_shard": Setting(4, PARALLEL),
    "parallel.tp": Setting(4, PARALLEL),
    "parallel.pp": Setting(2, PARALLEL),
    "parallel.cp": Setting(2, PARALLEL),
    "parallel.ep": Setting(2, PARALLEL),
    "parallel.sequence_parallel": Setting(True, PARALLEL),
    "parallel.schedule": Setting("gpipe", PARALLEL),
    "parallel.precision": Setting("bf16", PARALLEL),
    "parallel.activation_checkpointing": Setting("full", PARALLEL),
    "parallel.accumulate": Setting(3, PARALLEL),
    "parallel.gradient_compression": Setting("bf16", REPLICAS),
    "parallel.compile": Setting(True, PARALLEL),
    "warm.mode": Setting("off"),
    "warm.preload": Setting(["numpy"]),
    "warm.preload_imports": Setting(False),
    "instrument": Setting("off"),
    "integrate": Setting("off"),
    "progress.step_pattern": Setting(r"step (\d+)"),
    "progress.loss_pattern": Setting(r"loss (\S+)"),
    "progress.file": Setting("progress.json"),
    "snapshots.every_steps": Setting(7),
    "snapshots.max_overhead": Setting(0.5),
    "snapshots.copies": Setting(2),
    "snapshots.beside": Setting(False),
    "recovery.max_restarts": Setting(3),
    "recovery.window_s": Setting(60),
    "recovery.heartbeat_timeout_s": Setting(9),
    "recovery.restart_grace_s": Setting(9),
    "recovery.stop_grace_s": Setting(90),
    "recovery.node_wait_s": Setting(60),
    "recovery.controller_absence_s": Setting(60),
    "recovery.mttf_h": Setting(12.0),
    "recovery.hangs": Setting("off"),
    "recovery.stragglers": Setting("off"),
    "recovery.hang_timeout_s": Setting(60),
    "recovery.step_timeout_s": Setting(5),
    "recovery.cloud_notices": Setting("off"),
    "recovery.on_nan": Setting("stop"),
    "recovery.skip_batches": Setting(8),
    "recovery.plateau_steps": Setting(1000),
    "recovery.plateau_share": Setting(0.02),
    "recovery.mode": Setting("in_process"),
    "recovery.replicas.nodes_each": Setting(2, IN_REPLICAS),
    "recovery.replicas.sync_every": Setting(8, IN_REPLICAS),
    "recovery.replicas.outer_lr": Setting(0.5, IN_REPLICAS),
    "recovery.replicas.outer_momentum": Setting(0.5, IN_REPLICAS),
    "recovery.check": Setting("quick"),
    "recovery.group_tests": Setting("off"),
    "recovery.check_replicas_every": Setting(10),
    "recovery.update_trial_steps": Setting(10),
    "logs.terminal": Setting("none"),
    "logs.max_bytes": Setting(1 << 20),
    "kubernetes.mpi_version": Setting("v1"),
    "kubernetes.elastic_jobset": Setting(True, ELASTIC),
    "kubernetes.controller_image": Setting("ctl:1"),
    "kubernetes.journal.pvc": Setting("journals"),
    "kubernetes.journal.storage_class": Setting("rwx", JOURNAL),
    "kubernetes.journal.size": Setting("2Gi", JOURNAL_MADE),
    "kubernetes.journal.access_mode": Setting("ReadWriteMany", JOURNAL_MADE),
    "image.pull": Setting("Always"),
    "image.pull_secrets": Setting(["registry"]),
    "image.workdir": Setting("/app"),
    "image.python": Setting("python3.12"),
    "image.root": Setting(False, managed=True),
    "secrets": Setting([{"name": "s", "env": {"A": "a"}}]),
    "resources.gpus": Setting(4),
    "resources.gpu_resource": Setting("amd.com/gpu", GPUS),
    "resources.cpu": Setting("32"),
    "resources.memory": Setting("256Gi"),
    "resources.ephemeral_storage": Setting("50Gi"),
    "resources.hugepages": Setting({"2Mi": "1Gi"}, {"resources": {"memory": "256Gi"}}),
    "resources.extended": Setting({"example.com/x": 1}),
    "resources.claims": Setting([{"name": "gpus", "device_class": "gpu.nvidia.com"}]),
    "resources.shm": Setting("3Gi"),
    "resources.state": Setting("1Gi", {"resources": {"memory": "256Gi"}}),
    "network.host": Setting(True),
    "network.profile": Setting("roce"),
    "network.interface": Setting("eth1"),
    "network.nccl": Setting({"NCCL_DEBUG": "INFO"}),
    "network.rdma_resource": Setting("rdma/hca"),
    "network.rdma_count": Setting(4, {"network": {"rdma_resource": "rdma/hca"}}),
    "network.efa_count": Setting(4, {"network": {"profile": "efa", "efa_count": 1}}),
    "network.tcpx_image": Setting("y", {"network": {"profile": "gke-tcpx", "tcpx_image": "x"}}),
    "network.attach": Setting(["sriov/rail-0"]),
    "network.numa": Setting(True, {"resources": {"cpu": "32", "memory": "256Gi"}}),
    "network.mesh": Setting(True),
    "network.policy": Setting(False),
    "network.ports.rendezvous": Setting(29999),
    "network.ports.agent": Setting(7999),
    "network.ports.stores": Setting(30500),
    "network.ports.storage": Setting(7998),
    "datasets": Setting([{"name": "d", "path": "/data", "pvc": "data"}]),
    "checkpoints.start_from": Setting("s3://bucket/other"),
    "checkpoints.fresh": Setting("second try"),
    "checkpoints.take_over": Setting(True),
    "checkpoints.local": Setting({"host_path": "/nvme"}),
    "checkpoints.local.path": Setting("/fast", LOCAL),
    "checkpoints.local.host_path": Setting("/disk", LOCAL),
    "checkpoints.local.pvc_class": Setting("other", LOCAL_CLASS),
    "checkpoints.local.size": Setting("1Ti", LOCAL_CLASS),
    "checkpoints.local.every_s": Setting(90, LOCAL),
    "checkpoints.local.keep": Setting(9, LOCAL),
    "checkpoints.local.max_bytes_per_s": Setting(1 << 30, LOCAL),
    "checkpoints.shared": Setting({"pvc": "ckpt"}),
    "checkpoints.shared.path": Setting("/slow", SHARED),
    "checkpoints.shared.pvc": Setting("other", SHARED),
    "checkpoints.shared.storage_class": Setting("rwx", SHARED),
    "checkpoints.shared.size": Setting("2Ti", MADE),
    "checkpoints.shared.volume_snapshot_class": Setting("snap", SHARED),
    "checkpoints.shared.every_s": Setting(90, SHARED),
    "checkpoints.shared.keep": Setting(9, SHARED),
    "checkpoints.shared.max_bytes_per_s": Setting(1 << 30, SHARED),
    "checkpoints.archive": Setting({"url": "s3://bucket/runs"}),
    "checkpoints.archive.url": Setting("s3://other/runs", ARCHIVE),
    "checkpoints.archive.secret": Setting("keys", ARCHIVE),
    "checkpoints.archive.endpoint": Setting("http://minio:9000", ARCHIVE),
    "checkpoints.archive.every_s": Setting(90, ARCHIVE),
    "checkpoints.archive.keep": Setting(9, ARCHIVE),
    "checkpoints.archive.max_bytes_per_s": Setting(1 << 30, ARCHIVE),
    "checkpoints.archive.golden_every_steps": Setting(1000, ARCHIVE),
    "scheduling.node_selector": Setting({"pool": "h200"}),
    "scheduling.tolerations": Setting([{"key": "x", "operator": "Exists"}]),
    "scheduling.affinity": Setting({"podAffinity": {}}),
    "scheduling.separate": Setting("rack"),
    "scheduling.one_per_machine": Setting(True),
    "scheduling.spread": Setting([{"key": "zone"}]),
    "scheduling.priority_class": Setting("train"),
    "scheduling.preemption": Setting("Never"),
    "scheduling.spare_priority_class": Setting("spare", SPARES),
    "scheduling.replacement_priority_class": Setting("urgent"),
    "scheduling.scheduler": Setting("mine"),
    "scheduling.gang": Setting("native"),
    "scheduling.gang_timeout_s": Setting(33, {"scheduling": {"gang": "coscheduling"}}),
    "scheduling.queue": Setting("team", {"scheduling": {"gang": "volcano"}}),
    "scheduling.topology": Setting("rack", {"scheduling": {"gang": "native"}}),
    "scheduling.kueue": Setting({"queue": "team"}),
    "scheduling.kueue.queue": Setting("other", QUEUE),
    "scheduling.kueue.priority": Setting("high", QUEUE),
    "scheduling.kueue.spare_priority": Setting("low", {**SPARES, **QUEUE}),
    "scheduling.kueue.topology": Setting("rack", QUEUE),
    "scheduling.kueue.topology_required": Setting(
        True, {"scheduling": {"kueue": {"queue": "team", "topology": "rack"}}}
    ),
    "scheduling.kueue.partial": Setting(True, {**SPARES, **QUEUE}),
    "scheduling.kueue.max_time_s": Setting(99, QUEUE),
    "scheduling.kueue.multi": Setting(True, QUEUE),
    "lifetime.time_limit_s": Setting(3600),
    "lifetime.keep_s": Setting(600),
    "lifetime.suspend": Setting(True),
    "schedule": Setting({"cron": "0 4 * * *"}),
    "schedule.cron": Setting("0 4 * * *", TIMES),
    "schedule.time_zone": Setting("Europe/Oslo", TIMES),
    "schedule.overlap": Setting("Replace", TIMES),
    "schedule.late_s": Setting(99, TIMES),
    "schedule.keep_succeeded": Setting(1, TIMES),
    "schedule.keep_failed": Setting(1, TIMES),
    "elasticity": Setting({"min_nodes": 2}),
    "elasticity.min_nodes": Setting(3, ELASTIC),
    "elasticity.max_nodes": Setting(9, ELASTIC),
    "elasticity.batch": Setting("scale_lr", ELASTIC),
    "elasticity.warmup_steps": Setting(7, ELASTIC),
    "roles.chief": Setting(True),
    "roles.ps": Setting(2),
    "roles.evaluator": Setting(True),
    "roles.cpu": Setting("3", EVALUATED),
    "roles.memory": Setting("3Gi", EVALUATED),
    "mpi.slots_per_node": Setting(3, MPI),
    "mpi.implementation": Setting("Intel", MPI),
    "mpi.options": Setting(["--verbose"], MPI),
    "ray.head_cpu": Setting("3"),
    "ray.head_memory": Setting("3Gi"),
    "mpi.launcher_cpu": Setting("3", MPI),
    "mpi.launcher_memory": Setting("3Gi", MPI),
    "mpi.ssh_folder": Setting("/keys", MPI),
    "sweep": Setting({"trials": 10}, {"nodes": 1}),
    "sweep.trials": Setting(30, SWEEP),
    "sweep.parallel": Setting(5, SWEEP),
    "sweep.retries": Setting(5, SWEEP),
    "sweep.max_failed": Setting(5, SWEEP),
    "sweep.over": Setting({"lr": ["0.1", "0.01"]}, SWEEP),
    "sweep.ranges": Setting({"lr": {"low": 0.1, "high": 0.5}}, SWEEP),
    "sweep.seed": Setting(3, DRAWN),
    "metadata.labels": Setting({"team": "a"}),
    "metadata.annotations": Setting({"team": "a"}),
    "access.service_account": Setting("mine"),
    "access.annotations": Setting({"cloud/role": "train"}),
    "access.cordon": Setting(True),
    "access.cordon_share": Setting(0.2, CORDONS),
    "disruption.budget": Setting(False),
    "disruption.max_unavailable": Setting(3),
    "monitoring.port": Setting(9400),
    "monitoring.enabled": Setting(True),
    "monitoring.labels": Setting({"release": "p"}, MONITORED),
    "monitoring.interval_s": Setting(99, MONITORED),
    "monitoring.profile_slowdown": Setting(0.2),
    "cost": Setting({"gpu_hour": 2.5}),
    "track": Setting(["tensorboard"]),
    "notify": Setting([{"url": "https://example.com/hook"}]),
    "otlp": Setting({"endpoint": "http://collector:4318"}),
    "otlp.endpoint": Setting("http://collector:4318", {"otlp": {"headers": {"X-Org": "a"}}}),
    "otlp.headers": Setting({"X-Org": "b"}, {"otlp": {"headers": {"X-Org": "a"}}}),
    "otlp.headers_secret": Setting({"name": "otlp", "key": "headers"}, {"otlp": {}}),
    "otlp.headers_secret.name": Setting(
        "b", {"otlp": {"headers_secret": {"name": "a", "key": "k"}}}
    ),
    "otlp.headers_secret.key": Setting(
        "l", {"otlp": {"headers_secret": {"name": "a", "key": "k"}}}
    ),
    "otlp.signals": Setting(["traces"], {"otlp": {}}),
    "cost.gpu_hour": Setting(3.0, {"cost": {"gpu_hour": 2.5}}),
    "overlay": Setting({"spec": {"hostPID": True}}),
}

WHAT_TO_RUN = frozenset(("name", "script", "module", "command", "framework", "image.name"))
TABLE = frozenset(("sweep.metric", "sweep.metric_pattern", "sweep.goal"))
"""For what `holdfast sweep` shows of trials on this machine."""
CHOICE = frozenset(("kubernetes.engine", "kubernetes.mode", "kubernetes.namespace"))
ELSEWHERE = frozenset(("ray.address", "ray.strategy", "ray.resources"))  # of another place to run


def leaves(model: type[BaseModel] = Job, path: str = "") -> Iterator[str]:
    """Every path of the job file below which there are no sections."""
    for name, field in model.model_fields.items():
        here = f"{path}.{name}" if path else name
        section = _section(field.annotation)
        if section is None:
            yield here
        else:
            yield from leaves(section, here)


def _section(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [a for a in get_args(annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
    return inner[0] if inner and type(None) in get_args(annotation) else None


def with_value(around: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`around` with a value at a path; sections in between are copied."""
    head, _, rest = path.partition(".")
    if not rest:
        return {**around, head: value}
    inner = around.get(head, {})
    return {**around, head: with_value(inner if isinstance(inner, dict) else {}, rest, value)}
