"""What another snapshot interval, more spares or elasticity would do for a job: simulated.

Worlds of the capacity simulator, with the production controller, live through failures at the
job's own rate. Of a few incidents the rate is hardly known, so each alternative also lives at both
ends of its confidence interval. All alternatives meet the same faults, and what counts is the
difference to the settings as they are. One is recommended only if that is a gain at both ends.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.dashboard.job_record import JobLook
from holdfast.goodput import Bucket
from holdfast.goodput.formulas import DAY_S, optimal_interval_s, per_1000_node_days
from holdfast.reporting.measured import JobModel, modelled
from holdfast.reporting.shapes import ComparedSetting, MeasuredInputs, WhatToChange
from holdfast.simulation import capacity
from holdfast.simulation.plan import CopySchedule, Plan, work_out
from holdfast.simulation.result import Interval, Result, interval
from holdfast.spec.spares import failed_share, spares_for

SEEDS, SEEDS_LEAST = 8, 3
PATIENCE_S = 10.0  # of CPU; then the worlds that there are have to do
ENOUGH_S = 60.0  # then nothing is said, if they are too few
INCIDENTS = 20  # of a world, on average
DAYS_MAX = 3650.0
GAIN_LEAST = 0.001  # what is less is not worth a change
FEW = 10  # incidents, of which the rate is hardly known


class JobSetting(NamedTuple):
    """One way to run the job. `doubt`: why it is not recommended whatever it gains. `price`: of an
    hour, where that is known."""

    what: str
    key: str  # for the job file
    every: int
    spares: int
    elastic: bool
    note: str = ""
    doubt: str = ""
    price: float | None = None


def what_to_change(look: JobLook) -> WhatToChange | str:
    """The alternatives of a job and what each would do; or why nothing can be said."""
    model = modelled(look)
    if isinstance(model, str):
        return model
    settings = [_as_it_is(model.inputs), *_alternatives(model.inputs)]
    settings = [one._replace(price=_price(look, one)) for one in settings]
    ettrs = _lived_through(model, settings)
    if ettrs is None:
        few = f"fewer than {SEEDS_LEAST} worlds of each setting were done in {ENOUGH_S:g} s of CPU"
        return f"worlds of {model.inputs.nodes} nodes take too long on this machine: {few}"
    rates = range(len(ettrs))
    first = [[row[0] for row in ettrs[rate]] for rate in rates]
    changes = []
    for place, setting in enumerate(settings):
        own = [[row[place] for row in ettrs[rate]] for rate in rates]
        gains = [[a - b for a, b in zip(own[rate], first[rate], strict=True)] for rate in rates]
        setting = _weighed(setting, own[0], settings[0], first[0])
        changes.append(_change(setting, [interval(o) for o in own], [interval(g) for g in gains]))
    return WhatToChange(
        inputs=model.inputs,
        worlds_count=sum(map(len, ettrs)) * len({_simulated(one) for one in settings}),
        measured_ettr=look.ledger.ettr,
        changes=tuple(changes),
        verdict=_verdict(changes, model.inputs),
    )


def _price(look: JobLook, setting: JobSetting) -> float | None:
    if look.cost_per_hour is None or look.job.cost is None:
        return None
    more = setting.spares - look.job.nodes.spare_count
    return look.cost_per_hour + more * look.workers_per_node * look.job.cost.gpu_hour


def _weighed(
    setting: JobSetting, ettr: Sequence[float], now: JobSetting, ettr_now: Sequence[float]
) -> JobSetting:
    """What costs more is worth it if a productive hour costs less."""
    if setting.price is None or now.price is None or setting.price <= now.price:
        return setting
    note = f"costs {setting.price - now.price:,.2f} an hour more"
    if setting.price * sum(ettr_now) <= now.price * sum(ettr):
        return setting._replace(note=f"{note}, but each productive hour costs less")
    return setting._replace(doubt=f"{note}, and each productive hour costs more, too")


def _as_it_is(inputs: MeasuredInputs) -> JobSetting:
    return JobSetting("as it is", "", inputs.snapshot_every_steps, inputs.spares, inputs.elastic)


def _alternatives(inputs: MeasuredInputs) -> Iterator[JobSetting]:
    now = _as_it_is(inputs)
    for every in _intervals(inputs):
        steps = "step" if every == 1 else f"{every} steps"
        key = f"snapshots: {{every_steps: {every}}}"
        doubt = "" if inputs.snapshot_every_known else "the current interval is only inferred"
        yield now._replace(what=f"a snapshot every {steps}", key=key, every=every, doubt=doubt)
    for spares in _spares(inputs):
        what = f"{spares} spare{'s' if spares != 1 else ''} instead of {inputs.spares}"
        yield now._replace(what=what, key=f"nodes: {{spares: {spares}}}", spares=spares)
    if inputs.nodes > 1 and not inputs.elastic:
        yield now._replace(
            what="elastic: train on with fewer nodes while one is missing",
            key=f"elasticity: {{min_nodes: {inputs.nodes - 1}}}",
            elastic=True,
            note="computed from the waits in the simulated worlds",
        )


def _intervals(inputs: MeasuredInputs) -> list[int]:
    """Half, double, and what the formula calls best."""
    every, rate = inputs.snapshot_every_steps, per_1000_node_days(inputs.rate_per_1000_node_days)
    best_s = optimal_interval_s(inputs.nodes, rate, inputs.snapshot_s)
    best = max(1, min(1_000_000, round(best_s / inputs.step_s)))
    return sorted({best, max(1, every // 2), every * 2} - {every})


def _spares(inputs: MeasuredInputs) -> list[int]:
    """One more, and what `spares: auto` would choose for this rate."""
    rate = per_1000_node_days(inputs.rate_per_1000_node_days)
    auto = spares_for(inputs.nodes, failed_share(rate, inputs.new_node_s))
    return sorted({inputs.spares + 1, max(inputs.spares + 1, min(10_000, auto))})


# ── worlds ────────────────────────────────────────────────────────────────────────────────────


def _lived_through(
    model: JobModel, settings: Sequence[JobSetting]
) -> list[list[list[float]]] | None:
    """ETTR by rate (expected, low, high), seed and setting; None if that takes too long."""
    inputs = model.inputs
    rates = (inputs.rate_per_1000_node_days, inputs.rate_low, inputs.rate_high)
    plans = [
        [_plan(model, setting, per_1000_node_days(rate)) for setting in settings] for rate in rates
    ]
    found: list[list[list[float]]] = [[] for _ in rates]
    first = time.thread_time()
    until = first + PATIENCE_S
    for seed in range(SEEDS):
        began = time.thread_time()
        for rows, own in zip(found, plans, strict=True):
            rows.append([])
            worlds: dict[tuple[int, int], Result] = {}
            for plan, one in zip(own, settings, strict=True):
                if _simulated(one) not in worlds:
                    worlds[_simulated(one)] = capacity.run(plan, seed)
                rows[-1].append(_ettr(worlds[_simulated(one)], plan, one))
                if seed < SEEDS_LEAST and time.thread_time() > first + ENOUGH_S:
                    return None
        now = time.thread_time()
        if seed + 1 >= SEEDS_LEAST and now + (now - began) > until:  # the next would take too long
            break
    return found


def _simulated(setting: JobSetting) -> tuple[int, int]:
    """What makes another world: elasticity is computed from the waits in it (`_ettr`)."""
    return setting.every, setting.spares


def _plan(model: JobModel, setting: JobSetting, rate: float) -> Plan:
    scenario, inputs = model.scenario, model.inputs
    horizon_s = min(DAYS_MAX * DAY_S, INCIDENTS / (inputs.nodes * rate))
    plan = work_out(scenario.model_copy(update={"spares": setting.spares}), model.mix)
    memory = CopySchedule(setting.every, inputs.snapshot_s, plan.memory.safe_s)
    distance = plan.peer_distance if model.keeps_copies else inputs.nodes
    return replace(
        plan, fault_rate=rate, horizon_s=horizon_s, memory=memory, peer_distance=distance
    )


def _ettr(world: Result, plan: Plan, setting: JobSetting) -> float:
    """With elasticity a wait for a node is not one: the others train on, and begin anew when it
    has come."""
    if not setting.elastic or not world.waits:
        return world.ettr
    nodes, times = plan.scenario.nodes, plan.scenario.times
    restart_s = times.teardown_s + times.start_s + plan.rendezvous_s + times.first_step_s
    restart_s += plan.scenario.checkpoint.restore_s
    waited_s = world.buckets.get(Bucket.SCHEDULE, 0.0)
    saved_s = waited_s * (nodes - 1) / nodes - world.waits * restart_s
    return world.ettr + max(0.0, saved_s) / plan.horizon_s


# ── what to make of it ────────────────────────────────────────────────────────────────────────


def _change(
    setting: JobSetting, ettr: Sequence[Interval], gain: Sequence[Interval]
) -> ComparedSetting:
    low, high = min(one.low for one in gain), max(one.high for one in gain)
    return ComparedSetting(
        what=setting.what,
        setting=setting.key,
        ettr=ettr[0].mean,
        ettr_low=max(0.0, min(one.low for one in ettr)),
        ettr_high=min(1.0, max(one.high for one in ettr)),
        gain=gain[0].mean,
        gain_low=low,
        gain_high=high,
        recommended=low > 0 and gain[0].mean >= GAIN_LEAST and not setting.doubt,
        note=setting.note or setting.doubt,
    )


def _verdict(changes: Sequence[ComparedSetting], inputs: MeasuredInputs) -> str:
    better = [one for one in changes if one.recommended]
    if better:
        best = max(better, key=lambda one: one.gain)
        return (
            f"Change it to {best.what}: {best.gain:+.2%} ETTR, between {best.gain_low:+.2%} and "
            f"{best.gain_high:+.2%} for all failure rates that fit what was seen."
        )
    perhaps = max(changes, key=lambda one: one.gain)
    if perhaps.gain_low > 0 and perhaps.gain >= GAIN_LEAST:
        return f"Perhaps {perhaps.what}: {perhaps.gain:+.2%} ETTR, but {perhaps.note}."
    if inputs.incidents_count < FEW:
        return (
            f"Nothing, as far as can be known: of {inputs.incidents_count} "
            f"incident{'s' if inputs.incidents_count > 1 else ''} the failure rate is known only "
            f"to a factor of {inputs.rate_high / inputs.rate_low:.0f}, and no gain exceeds that "
            "uncertainty."
        )
    return "Nothing: no alternative gains more than its uncertainty."
