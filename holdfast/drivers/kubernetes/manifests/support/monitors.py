"""Objects of the Prometheus operator: who is scraped, and when somebody is to be told.

Series carry the job as `holdfast_dev_job`, copied from the label of what is scraped, because the
label `job` is Prometheus' own. No rank, step or attempt becomes a label: at 512 nodes that alone
would be most of what a Prometheus can hold.
"""

from typing import Any

from holdfast.drivers.kubernetes.manifests.names import JOB, ROLE, metadata, selector
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.monitoring.alerts import AlertLimits, rule_group


def objects(request: Request) -> list[Body]:
    """PodMonitor, ServiceMonitor and PrometheusRule, where the job wants them."""
    monitoring = request.job.monitoring
    if not (monitoring.enabled and request.managed):
        return []
    every = f"{monitoring.interval_s}s"
    nodes = {
        "selector": selector(request, "node", "spare"),
        "podTargetLabels": [JOB],
        "podMetricsEndpoints": [{"port": "agent", "path": "/metrics", "interval": every}],
    }
    controller = {
        "selector": {"matchLabels": {JOB: request.name, ROLE: "controller"}},
        "targetLabels": [JOB],
        "endpoints": [{"port": "metrics", "path": "/metrics", "interval": every}],
    }
    rules = {"groups": [alerts(request)]}
    return [
        _object(request, "PodMonitor", request.name, nodes),
        _object(request, "ServiceMonitor", f"{request.name}-controller", controller),
        _object(request, "PrometheusRule", request.name, rules),
    ]


def alerts(request: Request) -> dict[str, Any]:
    """The alerts of docs/guides/alerts.md, for this job."""
    recovery = request.job.recovery
    limits = AlertLimits(
        restarts=max(1, recovery.restarts // 2), restarts_window_s=int(recovery.window_s)
    )
    return rule_group(request.name, request.name, limits)


def _object(request: Request, kind: str, name: str, spec: Body) -> Body:
    made = metadata(request, name)
    made["labels"] = {**made["labels"], **request.job.monitoring.labels}
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": kind, "metadata": made, "spec": spec}
