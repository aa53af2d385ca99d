"""When somebody is to be told: one list of alerts, for Prometheus' rule files and its operator.

Each asks a person to do something, and says what in docs/guides/alerts.md under its own name. What
Holdfast repairs by itself is none, unless it has to repair it all the time. The same list is
rendered for one job, with that job's limits, and for whatever jobs a Prometheus scrapes.
"""

from typing import Any, Literal, NamedTuple

import yaml

from holdfast.monitoring.table import JOB_LABEL

RUNBOOK = "docs/guides/alerts.md"
HOUR_S = 3600
Severities = Literal["critical", "warning"]


class AlertLimits(NamedTuple):
    """Above what they are told. `hold` is a factor of how long it must be so."""

    stalled_s: int = 900  # without a step
    diverging: float = 2.0  # times the median of the last six hours
    ettr: float = 0.9  # of the last hour
    restarts: int = 10  # within `restarts_window_s`
    restarts_window_s: int = HOUR_S
    checkpoint: float = 3.0  # times the planned interval
    checkpoint_s: int = 900  # and at least this old
    straggler: float = 0.1  # of everybody's time
    disk_full_in_s: int = 4 * HOUR_S
    hold: float = 1.0


LIMITS = AlertLimits()


class AlertRule(NamedTuple):
    """One alert. `$S` in its query stands for what selects a job, without braces."""

    name: str
    query: str
    lasting_s: int
    severity: Severities
    summary: str  # as Prometheus expands it

    @property
    def runbook(self) -> str:
        """Where what to do is written."""
        return f"{RUNBOOK}#{self.name.lower()}"


def alert_rules(limits: AlertLimits = LIMITS) -> tuple[AlertRule, ...]:
    """All of them."""
    by_job, job = f"by ({JOB_LABEL})", f"{{{{ $labels.{JOB_LABEL} }}}}"
    window, n = f"{limits.restarts_window_s}s", limits
    return (
        AlertRule(
            "HoldfastStalled",
            f"time() - max {by_job} (holdfast_last_step_timestamp_seconds{{$S}}) > {n.stalled_s}",
            300, "critical", f"{job} has completed no step for {n.stalled_s // 60} min or more",
        ),
        AlertRule(
            "HoldfastDiverging",
            "holdfast_loss{$S} != holdfast_loss{$S} or holdfast_loss{$S} > "
            f"{n.diverging:g} * quantile_over_time(0.5, holdfast_loss{{$S}}[6h]) > 0",
            600, "critical", f"the loss of {job} is {{{{ $value }}}}, far above what it was",
        ),
        AlertRule(
            "HoldfastLowEttr",
            f'holdfast_ettr_ratio{{window="1h",$S}} < {n.ettr:g}',
            1800, "warning", f"{job} was productive for {{{{ $value | humanizePercentage }}}} of "
            "the last hour",
        ),
        AlertRule(
            "HoldfastRestartStorm",
            f"increase(holdfast_restarts_total{{$S}}[{window}]) > {n.restarts}",
            60, "critical", f"{job} restarts repeatedly",
        ),
        AlertRule(
            "HoldfastSpareMissing",
            "holdfast_spares{$S} < holdfast_spares_wanted{$S}",
            900, "warning", f"{job} has {{{{ $value }}}} spares, fewer than requested",
        ),
        *_of_checkpoints(job, n),
        AlertRule(
            "HoldfastStraggler",
            f"holdfast_straggler_ratio{{$S}} > {n.straggler:g}",
            600, "warning", f"all ranks of {job} wait for rank {{{{ $labels.rank }}}} on "
            "{{ $labels.node }}, {{ $value | humanizePercentage }} of their time",
        ),
        AlertRule(
            "HoldfastXid",
            'holdfast_node_condition{condition=~"xid-.+",severity=~"alert|fatal",$S} == 1',
            0, "critical", f"{{{{ $labels.condition }}}} on {{{{ $labels.node }}}} of {job}",
        ),
        AlertRule(
            "HoldfastThermalThrottle",
            'holdfast_node_condition{condition=~"gpu-throttled|gpu-hot",$S} == 1',
            300, "warning", f"a GPU on {{{{ $labels.node }}}} of {job} is throttled",
        ),
        AlertRule(
            "HoldfastControllerAbsent",
            f"max {by_job} (holdfast_node_up{{$S}}) == 0",
            300, "critical", f"{job} trains without a controller: the next fault stops it",
        ),
        AlertRule(
            "HoldfastDiskWillBeFull",
            f"predict_linear(holdfast_disk_free_bytes{{$S}}[1h], {n.disk_full_in_s}) < 0 and "
            "holdfast_disk_used_ratio{$S} > 0.5",
            600, "warning", f"{{{{ $labels.folder }}}} on {{{{ $labels.node }}}} of {job} will be "
            f"full within {n.disk_full_in_s // HOUR_S} h",
        ),
    )  # fmt: skip


def _of_checkpoints(job: str, n: AlertLimits) -> tuple[AlertRule, ...]:
    return (
        AlertRule(
            "HoldfastCheckpointTooOld",
            "holdfast_checkpoint_age_seconds{$S} > "
            f"{n.checkpoint:g} * holdfast_checkpoint_interval_seconds{{$S}} > 0 and "
            f"holdfast_checkpoint_age_seconds{{$S}} > {n.checkpoint_s}",
            300, "critical", f"the newest checkpoint of {job} in tier {{{{ $labels.tier }}}} is "
            "{{ $value | humanizeDuration }} old",
        ),
        AlertRule(
            "HoldfastCheckpointsFail",
            "holdfast_checkpoint_failing{$S} == 1",
            600, "critical", f"no checkpoint of {job} is saved in tier {{{{ $labels.tier }}}}",
        ),
    )  # fmt: skip


def rule_group(name: str, job: str = "", limits: AlertLimits = LIMITS) -> dict[str, Any]:
    """The group of a rule file or of a PrometheusRule; for all jobs unless one is named."""
    selector = f'{JOB_LABEL}="{job}"' if job else ""
    return {"name": name, "rules": [_rule(rule, selector, limits) for rule in alert_rules(limits)]}


def rules_file() -> str:
    """For Prometheus' `rule_files`, about every job."""
    notice = "# Written by docs/generate.py. What each alert asks for: docs/guides/alerts.md\n"
    return notice + yaml.safe_dump({"groups": [rule_group("holdfast")]}, sort_keys=False)


def _rule(rule: AlertRule, selector: str, limits: AlertLimits) -> dict[str, Any]:
    query = rule.query.replace("$S", selector).replace(",}", "}").replace("{}", "")
    return {
        "alert": rule.name,
        "expr": query,
        "for": f"{round(rule.lasting_s * limits.hold)}s",
        "labels": {"severity": rule.severity},
        "annotations": {"summary": rule.summary, "runbook_url": rule.runbook},
    }
