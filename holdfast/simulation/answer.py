"""The JSON of `holdfast simulate SCENARIO`: results, always beside the inputs they follow from."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.simulation.plan import Plan
from holdfast.simulation.result import Result, Summary
from holdfast.simulation.sweep import Axis, Point


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What a model result follows from: given, and chosen where `auto` was given."""

    scenario: dict[str, Any]
    mix: dict[str, Any]
    spares: int
    free_nodes: int
    mttf_s: float  # of the job, faults of single nodes
    checkpoint_interval_s: float
    stock_interval_s: float
    rendezvous_s: float
    requeue_s: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one scenario. All numbers are results of a model, not measurements."""

    scenario: str
    inputs: Inputs
    summary: Summary
    results: tuple[Result, ...]  # one for each seed
    torchrun: Summary | None = None  # the stock way in the same worlds
    model_result: bool = True


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep."""

    values: dict[str, Any]
    spares: int
    checkpoint_interval_s: float
    summary: Summary


class SweepAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a sweep; `inputs` are those of its first point."""

    scenario: str
    inputs: Inputs
    rows: tuple[SweepRow, ...]
    model_result: bool = True


def inputs(plan: Plan) -> Inputs:
    """Everything a plan was made of."""
    step_s = plan.scenario.step_s
    return Inputs(
        scenario=plan.scenario.model_dump(mode="json"),
        mix=plan.mix.model_dump(mode="json"),
        spares=plan.spares,
        free_nodes=plan.free_nodes,
        mttf_s=plan.mttf_s,
        checkpoint_interval_s=plan.memory.steps * step_s,
        stock_interval_s=plan.stock.steps * step_s,
        rendezvous_s=plan.rendezvous_s,
        requeue_s=plan.requeue_s,
    )


def of_scenario(
    plan: Plan, summary: Summary, results: Sequence[Result], torchrun: Summary | None
) -> Answer:
    """The answer of a scenario that was run."""
    return Answer(
        scenario=plan.scenario.name,
        inputs=inputs(plan),
        summary=summary,
        results=tuple(results),
        torchrun=torchrun,
    )


def of_sweep(axes: Sequence[Axis], points: Sequence[Point]) -> SweepAnswer:
    """The answer of a sweep that was run."""
    keys = [axis.key for axis in axes]
    rows = [
        SweepRow(
            values=dict(zip(keys, point.values, strict=True)),
            spares=point.plan.spares,
            checkpoint_interval_s=point.plan.memory.steps * point.plan.scenario.step_s,
            summary=point.summary,
        )
        for point in points
    ]
    first = points[0].plan
    return SweepAnswer(scenario=first.scenario.name, inputs=inputs(first), rows=tuple(rows))
