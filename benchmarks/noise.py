"""Steps of a job that is well, and uneven: who is suspected to hang, and is anybody judged to?

    .venv/bin/python benchmarks/noise.py [--recording FILE ...] [--hours H] [--json]

A suspicion is cheap: workers are looked at. An alarm is what ends an attempt: the judgement that a
worker hangs. Both are by the code of production (`detection/hang.py`, `diagnosis/hang.py`), which
hears of each rank five times a second, as a controller does. Each hour is an attempt of its own,
because in the first minutes, before long pauses are known, most is suspected.

`recorded`: steps of a real job (`benchmarks/faults.py --clean S --record FILE`), in blocks of 100
steps drawn at random until the hours are full. `simulated`: log-normal steps, some several times
as long, evaluations, compilations, saves, garbage, reads from storage; nothing is cut off.

What a look would show follows from what the steps say: who waits for whom, and for what. Where
several things can be seen, it is the one that is given the least time: who evaluates stands at one
place and computes, who saves or reads stands still in the kernel, who is late and nobody knows why
computes, or gets no processor. Three looks within 0.8 s that show different things show a worker
that moves.
"""

import argparse
import csv
import gzip
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.detection.hang import HangWatch
from holdfast.diagnosis.hang import judge
from holdfast.events import HangJudged, HangSuspected, Judgement, Milestone, Progress
from holdfast.messages import Report, WorkerReport
from holdfast.shell.hang_detection import APART_S, LOOKS
from holdfast.stacks import Activity, StackGroup, ThreadStack, joined
from table import Row, report

RECORDED = Path(__file__).parents[1] / "tests" / "detection" / "recorded"
TIMEOUT_S = 600.0  # recovery.hang_timeout_s
REPORT_S = 0.2
BLOCK = 100  # steps: two evaluations of the recording are in each
TRAINED = dict.fromkeys((Milestone.STARTED, Milestone.ARRIVED, Milestone.FIRST_STEP), 1.0)
LOOP = "<module> (train.py:50)"
COLLECTIVE = "all_reduce (torch/distributed/distributed_c10d.py:2806)"


class Shown(NamedTuple):
    """What a look at a rank shows."""

    frames: tuple[str, ...]
    activity: Activity
    sleeps_in: str = ""


WAITS = Shown((LOOP, COLLECTIVE), Activity.STILL, "futex_do_wait")
COMPUTES = Shown((LOOP, "forward (model.py:20)"), Activity.BUSY)
READS = Shown((LOOP, "read_batch (data.py:12)"), Activity.STILL, "rpc_wait_bit_killable")
DOES = {
    "evaluation": Shown((LOOP, "evaluate (train.py:30)"), Activity.BUSY),
    "garbage": Shown((LOOP,), Activity.BUSY),
    "compilation": Shown((LOOP, "__call__ (torch/_inductor/codecache.py:2400)"), Activity.STILL),
    "save": Shown((LOOP, "save (train.py:40)"), Activity.STILL, "rpc_wait_bit_killable"),
    "read": READS,
}


class Did(NamedTuple):
    """Something besides the step: what, so long after its beginning, for so long."""

    what: str
    after_s: float
    took_s: float


class RankStep(NamedTuple):
    """One step of one rank: how long it had waited for it, how long it took, the others waited for
    included, and what was in it."""

    waited_s: float
    took_s: float
    did: tuple[Did, ...] = ()


Step = Sequence[RankStep]  # of all ranks


class Noise(NamedTuple):
    """What became of a training that is well."""

    hours: float = 0.0
    steps: int = 0
    longest_s: float = 0.0
    suspicions: int = 0
    alarms: tuple[str, ...] = ()


class _Under(NamedTuple):
    """The step of a rank that is under way."""

    begins: float
    ends: float
    did: tuple[Did, ...]

    def shows(self, at: float) -> Shown | None:
        """None: it is in its step, and whether it works or waits depends on the others."""
        if at < self.begins:
            return READS
        for what, after_s, took_s in self.did:
            if 0 <= at - self.begins - after_s < took_s:
                return DOES[what]
        return None


class Watched:
    """A job and what watches it."""

    def __init__(self, ranks: int) -> None:
        self._watch, self._now = HangWatch(TIMEOUT_S), 0.0
        self._watch.begin(1, ranks, 0.0)
        self._ended = [0.0] * ranks  # the newest step
        self._took = [0.0] * ranks
        self._steps = self._suspicions = 0
        self._longest_s, self._alarms = 0.0, []  # type: float, list[str]
        self._look: HangSuspected | None = None  # under way
        self._looked: list[list[Shown]] = []
        self._look_at = 0.0

    def lives(self, steps: Iterable[Step], seconds: float) -> Noise:
        """Through steps, until so long has passed or there are no more."""
        for step in steps:
            if min(self._ended) >= seconds:
                break
            self._through([self._begun(rank, one) for rank, one in enumerate(step)])
        found = min(self._ended) / 3600, self._steps, self._longest_s
        return Noise(*found, self._suspicions, tuple(self._alarms))

    def _begun(self, rank: int, step: RankStep) -> _Under:
        begins = self._ended[rank] + step.waited_s
        return _Under(begins, begins + step.took_s, step.did)

    def _through(self, under: Sequence[_Under]) -> None:
        """Until all have ended it."""
        last = max(one.ends for one in under)
        while self._now + REPORT_S <= last:
            self._now += REPORT_S
            self._hear(under)
        before = min(self._ended)
        self._ended = [one.ends for one in under]
        self._took = [one.ends - one.begins for one in under]
        self._steps += 1
        self._longest_s = max(self._longest_s, last - before)

    def _hear(self, under: Sequence[_Under]) -> None:
        pages = {rank: self._page(rank, one) for rank, one in enumerate(under)}
        self._watch.observe(Report(node="n", attempt=1, workers=tuple(pages.values())), self._now)
        if self._look is not None:
            self._looks(under, pages)
        elif self._watch.is_due(self._now):
            self._suspicions += 1
            self._look, self._look_at, self._looked = self._watch.suspect(self._now), self._now, []
            self._looks(under, pages)

    def _page(self, rank: int, one: _Under) -> WorkerReport:
        over = one.ends <= self._now
        ended, took = (one.ends, one.ends - one.begins) if over else (self._ended[rank], None)
        return WorkerReport(
            rank=rank,
            pid=1,
            progress=Progress(step=self._steps + over, step_ago_s=self._now - ended),
            milestones=TRAINED,
            phase="step" if one.begins <= self._now < one.ends else "data",
            step_time_s=took or self._took[rank],
        )

    def _looks(self, under: Sequence[_Under], pages: dict[int, WorkerReport]) -> None:
        """One look more, or the answer after the last."""
        suspicion = self._look
        assert suspicion is not None, "only then are workers looked at"
        if self._now < self._look_at + len(self._looked) * APART_S - REPORT_S / 2:
            return
        self._looked.append(_shown(under, self._now))
        if len(self._looked) == LOOKS:
            self._look = None
            since = self._look_at - suspicion.ago_s
            judged = judged_from(suspicion, self._now - since, self._looked, pages)
            if judged.judgement is Judgement.HANG:
                self._alarms.append(judged.summary)


def lived(hours: float, steps_of: Callable[[int], Iterator[Step]], ranks: int = 2) -> Noise:
    """So many hours, one attempt each, of the steps that `steps_of` its number gives."""
    total = Noise()
    for number in range(math.ceil(hours)):
        seconds = min(1.0, hours - number) * 3600
        one = Watched(ranks).lives(steps_of(number), seconds)
        total = Noise(
            total.hours + one.hours,
            total.steps + one.steps,
            max(total.longest_s, one.longest_s),
            total.suspicions + one.suspicions,
            total.alarms + one.alarms,
        )
    return total


def judged_from(
    suspicion: HangSuspected,
    ago_s: float,
    looks: Sequence[Sequence[Shown]],
    pages: dict[int, WorkerReport],
) -> HangJudged:
    """The judgement of production on these looks at all ranks, one after the other."""
    groups = [_group(rank, seen) for rank, seen in enumerate(zip(*looks, strict=True))]
    told = HangSuspected(
        attempt=suspicion.attempt,
        ago_s=ago_s,
        budget_s=suspicion.budget_s,
        step=suspicion.step,
        step_s=suspicion.step_s,
        trained=suspicion.trained,
        reported=suspicion.reported,
        overdue=suspicion.overdue,
        ranks=suspicion.ranks,
    )
    return judge(told, joined(groups), (), pages, TIMEOUT_S)


def _shown(under: Sequence[_Under], at: float) -> list[Shown]:
    """Of all ranks. In their steps they wait for whoever is not, or does something else; where
    nobody does, all compute."""
    seen = [one.shows(at) for one in under]
    waiting = WAITS if any(seen) else COMPUTES
    return [one or waiting for one in seen]


def _group(rank: int, seen: Sequence[Shown]) -> StackGroup:
    last = seen[-1]
    moved = len({one.frames for one in seen}) > 1
    return StackGroup(
        ranks=((rank, rank),),
        threads=(ThreadStack(name="MainThread", pid=1, frames=last.frames),),
        state="sleeping" if last.activity is Activity.STILL else "running",
        sleeps_in=last.sleeps_in,
        activity=Activity.MOVES if moved else last.activity,
    )


# ── steps ──


def simulated(median_s: float, seed: int, ranks: int = 2) -> Iterator[Step]:
    """Noise without end. Who reads does so before its step; all wait for the last one."""
    dice = random.Random(f"noise {seed} {median_s}")
    number = 0
    while True:
        number += 1
        waits = [dice.expovariate(1 / 2.0) if dice.random() < 0.005 else 0.0 for _ in range(ranks)]
        did = [_besides(number, rank, dice) for rank in range(ranks)]
        works = [_works_s(dice, median_s) + sum(one.took_s for one in did[r]) for r in range(ranks)]
        last = max(waited + work for waited, work in zip(waits, works, strict=True))
        yield [RankStep(waits[r], last - waits[r], did[r]) for r in range(ranks)]


def _works_s(dice: random.Random, median_s: float) -> float:
    """Log-normal, as step times of clusters are; one in a hundred takes four to ten times."""
    slow = dice.uniform(4.0, 10.0) if dice.random() < 0.01 else 1.0
    return median_s * slow * dice.lognormvariate(0.0, 0.2)


def _besides(step: int, rank: int, dice: random.Random) -> tuple[Did, ...]:
    found: list[tuple[str, float]] = []
    if step % 50 == 0:
        found.append(("evaluation", dice.uniform(0.5, 30.0)))
    if step % 70 == 0:
        found.append(("garbage", 0.4))
    if step % 1000 == 500:
        found.append(("compilation", dice.uniform(5.0, 90.0)))
    if step % 120 == 0 and rank == 0:
        found.append(("save", dice.expovariate(1 / 3.0)))
    starts, did = 0.0, []
    for what, took_s in found:
        did.append(Did(what, starts, took_s))
        starts += took_s
    return tuple(did)


def resampled(recorded: Sequence[Step], seed: int) -> Iterator[Step]:
    """Blocks of a recording, drawn at random, without end."""
    dice = random.Random(f"blocks {seed}")
    while True:
        first = dice.randrange(max(1, len(recorded) - BLOCK))
        yield from recorded[first : first + BLOCK]


# ── a recording ──


def keep(path: Path, steps: Sequence[Step], about: Row) -> None:
    """Write it: a line that says what it is, then for each step three columns of each rank, in
    milliseconds: waited, took, and what it did besides as `WHAT@AFTER+TOOK`, joined by spaces."""
    with gzip.open(path, "wt", newline="") as file:
        print(json.dumps(about), file=file)
        writer = csv.writer(file)
        for step in steps:
            writer.writerow([cell for one in step for cell in _cells(one)])


def _cells(one: RankStep) -> tuple[int, int, str]:
    did = " ".join(f"{w}@{_ms(after)}+{_ms(took)}" for w, after, took in one.did)
    return _ms(one.waited_s), _ms(one.took_s), did


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def read(path: Path) -> tuple[Row, list[Step]]:
    """What a recording says of itself, and its steps."""
    with gzip.open(path, "rt", newline="") as file:
        about = json.loads(file.readline())
        rows = [list(zip(*[iter(row)] * 3, strict=True)) for row in csv.reader(file)]
    return about, [[_rank_step(*cells) for cells in row] for row in rows]


def _rank_step(waited: str, took: str, did: str) -> RankStep:
    return RankStep(int(waited) / 1000, int(took) / 1000, tuple(map(_did, did.split())))


def _did(text: str) -> Did:
    what, _, times = text.partition("@")
    after, _, took = times.partition("+")
    return Did(what, int(after) / 1000, int(took) / 1000)


def merged(files: Sequence[Path]) -> list[Step]:
    """What each rank has noted (benchmarks/scripts/faulty.py), as steps of all."""
    ranks = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    count = min(map(len, ranks))
    return [[_noted(lines, number) for lines in ranks] for number in range(1, count)]


def _noted(lines: Sequence[dict[str, Any]], number: int) -> RankStep:
    before, now = lines[number - 1], lines[number]
    begun, ended = now["step"]
    did = [Did(what, at - begun, over - at) for what, at, over in now["did"]]
    return RankStep(begun - before["step"][1], ended - begun, tuple(did))


def main() -> None:
    """Print what came of it."""
    args = _arguments()
    rows: dict[str, Row] = {}
    for path in args.recording or sorted(RECORDED.glob("noise-*.csv.gz")):
        _, steps = read(path)
        found = lived(args.hours, partial(resampled, steps), len(steps[0]))
        rows[f"recorded, {len(steps):,} steps, resampled"] = _row(found)
    for median_s in args.medians:
        found = lived(args.hours, partial(simulated, median_s))
        rows[f"simulated, steps of {median_s:g} s"] = _row(found)
    report("Steps of jobs that are well", rows, as_json=args.json)


def _row(found: Noise) -> Row:
    for alarm in found.alarms:
        print(alarm)
    return {
        "hours": round(found.hours, 2),
        "steps": found.steps,
        "longest_step_s": round(found.longest_s, 1),
        "suspicions": found.suspicions,
        "false_alarms": len(found.alarms),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="False alarms in noisy steps")
    parser.add_argument("--recording", type=Path, nargs="+", help="default: all of the tests'")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--medians", type=float, nargs="*", default=[0.05, 0.3, 5.0])
    parser.add_argument("--json", action="store_true", help="one JSON line at the end")
    return parser.parse_args()


if __name__ == "__main__":
    main()
