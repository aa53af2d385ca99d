"""The JSON of `holdfast report`: everything that its text and its page tell.

Money is in whatever currency the job's `cost` is. What the simulator says is a result of a model,
and says so.
"""

import msgspec

from holdfast.status import Goodput, Incident, JobStatus


class ReportedSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What was trained, on what."""

    command: str  # as the job file says it; values of its environment are left out
    engine: str  # local, or the engine in the cluster
    framework: str
    nodes_count: int
    spares_count: int
    workers_per_node: int
    devices: str  # as the job file asks for them, or what evidence tells of them
    layout: dict[str, int] | None  # dimensions that are not 1; null: not known
    holdfast: str  # that the journal was begun with


class ReportedLearning(msgspec.Struct, frozen=True, kw_only=True):
    """How it learned. Null is what nobody has told."""

    steps: int | None
    loss: float | None  # newest
    loss_best: float | None
    loss_best_step: int | None  # last of the steps that share its point of the curve
    loss_is: str | None  # nan, inf or -inf, where the newest loss is no number
    step_s: float | None  # median
    tokens_per_s: float | None  # median
    mfu: float | None  # median
    grad_norm: float | None  # newest
    lr: float | None  # newest


class ReportedCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The loss, point by point; `width` is the most steps that one point stands for."""

    width: int
    step: list[int]
    at: list[float]
    low: list[float | None]
    mean: list[float | None]
    high: list[float | None]


class ReportedMark(msgspec.Struct, frozen=True, kw_only=True):
    """Something at one moment: attempt, update, checkpoint, spike or plateau."""

    kind: str
    at: float
    step: int | None
    text: str


class ReportedStretch(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the ribbon: what most of it was."""

    start_s: float  # since the job began
    end_s: float
    bucket: str
    incident: int | None


class ReportedIncident(msgspec.Struct, frozen=True, kw_only=True):
    """An incident, with what is known about its kind."""

    incident: Incident
    known_problem: dict[str, str] | None  # slug, blame, cause, remedy
    advice: str
    cost: float | None  # money that its time has cost


class ReportedCause(msgspec.Struct, frozen=True, kw_only=True):
    """All incidents of one cause."""

    cause: str
    incidents_count: int
    lost_s: float
    steps_lost: int
    cost: float | None


class ReportedCost(msgspec.Struct, frozen=True, kw_only=True):
    """Money, at the size that the job has now or had last."""

    per_hour: float
    total: float
    productive: float
    unproductive: float
    per_spare_hour: float  # what one more spare would cost


class MeasuredInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulator was given, as this job measured it."""

    incidents_count: int
    nodes: int
    spares: int
    rate_per_1000_node_days: float
    rate_low: float  # of the 95 % confidence interval
    rate_high: float
    mttf_s: float  # of the whole job
    step_s: float
    snapshot_every_steps: int
    snapshot_every_known: bool  # false: inferred from what incidents lost
    snapshot_s: float  # that one keeps training waiting
    restart_s: float  # per incident, without work that is done again
    new_node_s: float  # until the engine has given one
    elastic: bool
    assumed: tuple[str, ...]  # what was not measured


class ComparedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Another setting, and what it would do. `gain` is against the settings as they are, under the
    same faults; its interval has the uncertain failure rate in it."""

    what: str
    setting: str  # for the job file; empty: as it is
    ettr: float
    ettr_low: float
    ettr_high: float
    gain: float
    gain_low: float
    gain_high: float
    recommended: bool
    note: str = ""


class WhatToChange(msgspec.Struct, frozen=True, kw_only=True):
    """Alternatives, compared by simulated worlds with the production controller."""

    inputs: MeasuredInputs
    worlds_count: int
    measured_ettr: float
    changes: tuple[ComparedSetting, ...]  # the first: as it is
    verdict: str  # one sentence
    model_result: bool = True


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `holdfast report`."""

    job: str
    made_at: float
    began_at: float
    until: float  # its end, or as far as is known
    setup: ReportedSetup
    status: JobStatus
    learning: ReportedLearning
    goodput: Goodput
    incidents: tuple[ReportedIncident, ...]
    causes: tuple[ReportedCause, ...]  # the costliest first
    cost: ReportedCost | None  # null: the job file has no `cost`
    marks: tuple[ReportedMark, ...]
    ribbon: tuple[ReportedStretch, ...]
    curve: ReportedCurve | None
    curve_missing: str | None  # why there is none
    changes: WhatToChange | None
    changes_missing: str | None  # why there are none
    incomplete: str | None = None  # why not all that there was could be read
