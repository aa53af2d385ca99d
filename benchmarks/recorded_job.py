"""A finished or running job as it would lie on a disk after days, made in seconds: what the page is
measured and tested with.

Its journal is that of a simulated world, in which the production controller decides; a curve and
times of ranks are drawn beside it, with a spike, a slow rank and a restart now and then.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast import journal
from holdfast.actions import Entry, StopAttempt
from holdfast.events import Milestone, MilestoneReached, Progress, Progressed
from holdfast.history import CURVE, RANKS, CurveFile, RankHistory, StepPoint
from holdfast.journal import Header, Journal
from holdfast.simulation import capacity, scenario
from holdfast.simulation.plan import Plan, work_out
from holdfast.spec import job_from_dict

SCRIPT = "train.py"
TELLS_S = 60.0
RATE = 30.0  # faults per 1,000 node-days
SLOW = 0.18


def record(
    folder: Path,
    *,
    days: float,
    nodes: int = 8,
    until: float,
    rate: float = RATE,
    world: Sequence[str] = (),
    **spec: Any,
) -> int:
    """A folder with the journal of a job that has run for so many days `until` a moment (seconds
    since the epoch), in a world with these settings. Returns how many entries it has."""
    settings = [f"nodes={nodes}", f"days={days}", f"failures.rate_per_1000_node_days={rate}"]
    made = work_out(*scenario.load("llama3-16k", [*settings, *world]))
    job = job_from_dict(_spec(folder.name, nodes, made) | spec, where="recorded")
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(job.model_dump_json())
    header = Header(
        journal=journal.VERSION, holdfast="0", job=job.model_dump(mode="json"),
        created_at=until - days * 86_400,
    )  # fmt: skip
    lines = bytearray()
    capacity.run(made, 1, lines.extend)
    decoder = msgspec.json.Decoder(Entry)
    entries = [decoder.decode(line) for line in bytes(lines).splitlines()]
    return _write(folder, header, _with_progress(entries, made.scenario.step_s))


def _spec(name: str, nodes: int, made: Plan) -> dict[str, Any]:
    return {
        "name": name,
        "script": SCRIPT,
        "nodes": {"count": nodes, "spares": made.spares},
        "workers_per_node": 8,
        "parallel": {"tp": 8, "dp_shard": -1},
        "recovery": {"max_restarts": 1000, "node_wait_s": made.scenario.policy.node_wait_s},
        "cost": {"gpu_hour": 2.5},
    }


def _with_progress(entries: list[Entry], step_s: float) -> Iterator[Entry]:
    """What a live job tells once a minute besides, which a world of facts leaves out."""
    attempt, base, told = 0, None, 0.0
    for entry in entries:
        while base is not None and told + TELLS_S < entry.at:
            told += TELLS_S
            step = base[1] + int((told - base[0]) / step_s)
            yield Entry(0, told, Progressed(attempt=attempt, progress=Progress(step=step)), ())
        yield entry
        match entry.event:
            case MilestoneReached(milestone=Milestone.CAUGHT_UP, step=int() as step):
                attempt, base, told = entry.event.attempt, (entry.at, step), entry.at
            case MilestoneReached():
                pass
            case _ if any(isinstance(action, StopAttempt) for action in entry.actions):
                base = None
            case _:
                pass


def _write(folder: Path, header: Header, entries: Iterable[Entry]) -> int:
    book = Journal.create(folder / "journal.jsonl", header)
    for number, entry in enumerate(entries, 1):
        at = entry.at + header.created_at
        book.append(msgspec.structs.replace(entry, seq=number, at=at))
    book.close()
    return number


def draw_curve(folder: Path, steps: int, *, begin: float, end: float) -> None:
    """A loss that falls, with a spike, and a stretch of steps that were done again."""
    file, rng = CurveFile(folder / CURVE), random.Random(1)
    step_s, back = (end - begin) / steps, steps // 100
    attempt, batch = 1, list[StepPoint]()
    for step in [*range(steps // 2), *range(steps // 2 - back, steps)]:
        if step == steps // 2 - back and batch and batch[-1].step == steps // 2 - 1:
            attempt = 2
        noise = rng.gauss(0, 0.03)
        spike = 4.0 if step == steps // 3 else 0.0
        loss = 1.8 + 9 * math.exp(-8 * step / steps) + noise + spike
        norm = 0.4 + abs(noise) * 4 + spike
        rate = 8192 / step_s * (1 + noise)
        values = (loss, norm, step_s, rate, 0.41 + noise / 10, 3e-4 * (1 - step / steps))
        batch.append(StepPoint(step, begin + step * step_s, attempt, values))
        if len(batch) == 1000:
            file.put(batch[:-1])
            batch = batch[-1:]
    file.put(batch)
    file.close()


def draw_ranks(folder: Path, ranks: int, looks: int, *, end: float, every_s: float = 3.0) -> None:
    """All as fast as each other, but one that the others wait for and one that waits for data."""
    file, rng = RankHistory(folder / RANKS, ranks), random.Random(2)
    slow, hungry = ranks // 3, ranks // 2
    usual = [[rng.uniform(0.99, 1.01) for _ in range(ranks)] for _ in range(8)]
    for look in range(looks):
        some = usual[look % len(usual)]
        step_s = [0.52 * one for one in some]
        wait = [0.01 * one for one in some]
        late = [0.004 * one for one in some]
        late[slow] = SLOW * some[slow] if look > looks // 3 else late[slow]
        wait[hungry] = 0.3 * some[hungry]
        file.add(
            end - (looks - look) * every_s, every_s, 1 + (look > looks // 2), [step_s, wait, late]
        )
    file.close()
