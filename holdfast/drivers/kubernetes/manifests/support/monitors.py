"""Objects of the Prometheus operator: who is scraped, and when somebody is to be told.

Series carry the job as `holdfast_dev_job`, copied from the label of what is scraped, because the
label `job` is Prometheus' own. No rank, step or attempt becomes a label: at 512 nodes that alone
would be most of what a Prometheus can hold.
"""

from holdfast.drivers.kubernetes.manifests.names import JOB, ROLE, metadata, selector
from holdfast.drivers.kubernetes.manifests.request import Body, Request

STALLED_S = 900  # without a step
LOW_ETTR = 0.9


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
    rules = {"groups": [{"name": request.name, "rules": alerts(request)}]}
    return [
        _object(request, "PodMonitor", request.name, nodes),
        _object(request, "ServiceMonitor", f"{request.name}-controller", controller),
        _object(request, "PrometheusRule", request.name, rules),
    ]


def alerts(request: Request) -> list[Body]:
    """Few alerts, each of which asks a person to do something."""
    of_job = f'{{holdfast_dev_job="{request.name}"}}'
    step = f"time() - max(holdfast_last_step_timestamp_seconds{of_job}) > {STALLED_S}"
    window_s = int(request.job.recovery.window_s)
    limit = max(1, request.job.recovery.restarts // 2)
    restarts = f"increase(holdfast_restarts_total{of_job}[{window_s}s]) > {limit}"
    name = request.name
    found = [
        _alert(
            "HoldfastStalled", step, "5m", "critical", f"{name} has made no progress for 15 min"
        ),
        _alert("HoldfastRestarts", restarts, "1m", "warning", f"{name} restarts repeatedly"),
        _alert(
            "HoldfastLowEttr",
            f"holdfast_ettr{of_job} < {LOW_ETTR}",
            "1h",
            "warning",
            f"{name} has an ETTR below {LOW_ETTR:.0%}; see `holdfast goodput {name}`",
        ),
    ]
    return [*found, _no_spares(name, of_job)] if request.spares else found


def _no_spares(name: str, of_job: str) -> Body:
    story = f"{name} has no spare left; the next lost node has to be replaced by a new one"
    return _alert("HoldfastNoSpares", f"holdfast_spares{of_job} == 0", "15m", "warning", story)


def _alert(name: str, expression: str, lasting: str, severity: str, story: str) -> Body:
    return {
        "alert": name,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": severity},
        "annotations": {"summary": story},
    }


def _object(request: Request, kind: str, name: str, spec: Body) -> Body:
    made = metadata(request, name)
    made["labels"] = {**made["labels"], **request.job.monitoring.labels}
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": kind, "metadata": made, "spec": spec}
