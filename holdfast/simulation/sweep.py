"""Many worlds on all cores: the seeds of a scenario, and the points of a sweep.

Each world is a task of its own, so that cores are busy to the end, and each process works its
scenarios out once. Results come back in the order of the tasks, whoever finished first.
"""

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import Error, shown
from holdfast.simulation import capacity, requeue, scenario
from holdfast.simulation.plan import Plan, work_out
from holdfast.simulation.result import Result, Summary, summarize
from holdfast.spec.section import NUMBER

POINTS_MAX = 1000
Done = Callable[[int, int], None]  # worlds done, worlds in all


class Axis(NamedTuple):
    """One thing that is varied."""

    key: str
    values: tuple[float | int | str, ...]


class Question(NamedTuple):
    """A scenario as it was read, with what overrides it: enough to build it anywhere."""

    raw: str  # JSON, so that it can be hashed and sent
    where: str
    folder: str | None
    settings: tuple[str, ...] = ()

    def with_settings(self, *more: str) -> "Question":
        """The same with more settings; later ones win."""
        return self._replace(settings=(*self.settings, *more))


class Task(NamedTuple):
    """One world."""

    question: Question
    seed: int
    way: str = "holdfast"


class Point(NamedTuple):
    """One point of a sweep and its answer."""

    values: tuple[float | int | str, ...]
    plan: Plan
    summary: Summary


def question(name: str, settings: Sequence[str] = ()) -> Question:
    """Read a scenario by its name or path. Raises `Error` as `scenario.read` does."""
    raw, folder = scenario.read(name)
    text = msgspec.json.encode(raw).decode()
    return Question(text, name, None if folder is None else str(folder), tuple(settings))


@lru_cache(maxsize=64)
def plan_of(asked: Question) -> Plan:
    """The plan of a question. Raises `Error` scenario-invalid."""
    raw: dict[str, Any] = msgspec.json.decode(asked.raw)
    folder = None if asked.folder is None else Path(asked.folder)
    return work_out(*scenario.build(raw, asked.settings, where=asked.where, folder=folder))


def answer(
    asked: Question, first_seed: int = 0, *, way: str = "holdfast", done: Done | None = None
) -> tuple[Plan, Summary, list[Result]]:
    """Run all seeds of a scenario."""
    plan = plan_of(asked)
    seeds = range(first_seed, first_seed + plan.scenario.seeds)
    results = run_all([Task(asked, seed, way) for seed in seeds], done)
    return plan, summarize(results, plan.spares), results


def sweep(
    asked: Question, axes: Sequence[Axis], first_seed: int = 0, done: Done | None = None
) -> list[Point]:
    """Every combination of the axes' values, all under the same seeds."""
    combinations = list(itertools.product(*(axis.values for axis in axes)))
    if len(combinations) > POINTS_MAX:
        raise _too_many(len(combinations))
    keys = [axis.key for axis in axes]
    questions = [
        asked.with_settings(*(f"{k}={v}" for k, v in zip(keys, values, strict=True)))
        for values in combinations
    ]
    plans = [plan_of(q) for q in questions]  # all errors now, before anything has run
    seeds = [range(first_seed, first_seed + plan.scenario.seeds) for plan in plans]
    tasks = [Task(q, s) for q, own in zip(questions, seeds, strict=True) for s in own]
    results = iter(run_all(tasks, done))
    answered = [list(itertools.islice(results, len(own))) for own in seeds]
    return [
        Point(values, plan, summarize(found, plan.spares))
        for values, plan, found in zip(combinations, plans, answered, strict=True)
    ]


def run_all(tasks: Sequence[Task], done: Done | None = None) -> list[Result]:
    """The results of the tasks in their order, from as many processes as there are cores."""
    results = []
    for number, result in enumerate(_results(tasks), 1):
        results.append(result)
        if done is not None:
            done(number, len(tasks))
    return results


def _results(tasks: Sequence[Task]) -> Iterator[Result]:
    cores = min(len(os.sched_getaffinity(0)), len(tasks))
    if cores <= 1:
        yield from map(run_task, tasks)
        return
    quiet = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is this process's business
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once, not by each process of each sweep
    with ProcessPoolExecutor(cores, context, initializer=signal.signal, initargs=quiet) as pool:
        try:
            yield from pool.map(run_task, tasks)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_task(task: Task) -> Result:
    """One world in this process."""
    plan = plan_of(task.question)
    way = requeue.run if task.way == "torchrun" else capacity.run
    return way(plan, task.seed)


def axis(text: str) -> Axis:
    """`spares=0..16` or `key=10,30,60`; raises `Error` usage."""
    key, equals, values = text.partition("=")
    try:
        found = _span(values) if ".." in values else tuple(map(_value, values.split(",")))
    except ValueError:
        found = ()
    if not equals or not key or not found:
        raise Error(
            "usage",
            f"{shown(text)} is not a sweep",
            why="a sweep is the path of one number and its values",
            help="for example --sweep spares=0..16 or --sweep checkpoint.interval_s=10,30,60",
        )
    return Axis(key.strip(), found)


def _span(text: str) -> tuple[int, ...]:
    low, high = (int(end) for end in text.split("..") if end.isascii() and end.isdigit())
    return tuple(range(low, high + 1)) if high - low < POINTS_MAX else ()


def _value(text: str) -> float | int | str:
    text = text.strip()
    if not text:
        raise ValueError
    for kind in (int, float) if NUMBER.fullmatch(text) else ():
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _too_many(count: int) -> Error:
    return Error(
        "usage",
        f"the sweep has {count} points",
        why=f"at most {POINTS_MAX} are run at once",
        help="give fewer values, or sweep one number after the other",
    )
