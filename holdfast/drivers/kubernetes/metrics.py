"""What Prometheus scrapes from a controller: the status of the job as a few series.

No series has a label whose values grow with the job: rank, node and step are none.
The numbers are those of the last published status, so that a scrape, which comes in a thread of its
own, never looks at a state that is just being changed.
"""

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from holdfast.controller.phases import Phase
from holdfast.status import JobStatus


def _of_tiers(status: JobStatus) -> Iterable[Metric]:
    """Durable checkpoints, by tier: a handful of label values."""
    if not status.checkpoints:
        return
    saves = CounterMetricFamily("holdfast_checkpoints", "Committed", labels=["tier"])
    failures = CounterMetricFamily("holdfast_checkpoint_failures", "Failed", labels=["tier"])
    age = GaugeMetricFamily("holdfast_checkpoint_age_seconds", "Of the newest", labels=["tier"])
    cost = GaugeMetricFamily("holdfast_checkpoint_seconds", "The last took", labels=["tier"])
    for tier in status.checkpoints:
        saves.add_metric([tier.tier], tier.commits_count)
        failures.add_metric([tier.tier], tier.failures_count)
        if tier.age_s is not None:
            age.add_metric([tier.tier], tier.age_s)
            cost.add_metric([tier.tier], tier.seconds)
    yield from (saves, failures, age, cost)


class Metrics:
    """The newest status, as series. `observe` in one thread, `collect` in another."""

    def __init__(self) -> None:
        self._status: JobStatus | None = None
        self._stepped_at: float | None = None

    def observe(self, new: JobStatus, now: float | None = None) -> None:
        """The status at `now`, in seconds since the epoch."""
        before = self._status.step if self._status is not None else None
        if new.step is not None and new.step != before:
            self._stepped_at = time.time() if now is None else now
        self._status = new

    def collect(self) -> Iterable[Metric]:
        """All series; none before the first status."""
        status = self._status
        if status is None:
            return
        phase = GaugeMetricFamily("holdfast_phase", "1 for the job's phase", labels=["phase"])
        for each in Phase:
            phase.add_metric([str(each)], float(status.phase == str(each)))
        yield phase
        spares = sum(node.state == "spare" for node in status.nodes)
        members = sum(node.rank is not None for node in status.nodes)
        yield GaugeMetricFamily("holdfast_nodes", "Nodes that train", value=members)
        yield GaugeMetricFamily("holdfast_spares", "Warm standby nodes", value=spares)
        yield GaugeMetricFamily("holdfast_attempt", "Number of the attempt", value=status.attempt)
        yield GaugeMetricFamily("holdfast_ettr", "Effective training time ratio", value=status.ettr)
        yield CounterMetricFamily("holdfast_restarts", "Restarts", value=status.restarts_count)
        yield CounterMetricFamily("holdfast_incidents", "Incidents", value=status.incidents_count)
        yield from _of_tiers(status)
        if status.step is not None:
            yield GaugeMetricFamily(
                "holdfast_step", "Last step completed by all ranks", value=status.step
            )
        loss = status.loss if status.loss_is is None else float(status.loss_is)
        if loss is not None:
            yield GaugeMetricFamily("holdfast_loss", "Loss of rank 0", value=loss)
        if self._stepped_at is not None:
            told = "Time of the last change of the step"
            name = "holdfast_last_step_timestamp_seconds"
            yield GaugeMetricFamily(name, told, value=self._stepped_at)

    def serve(self, port: int) -> int:
        """Answer `GET /metrics` in a thread; the port. Raises `OSError` if it is taken."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        server, _ = start_http_server(port, registry=registry)
        return int(server.server_port)
