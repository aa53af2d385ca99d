"""What really happens to the workers: which run, how far they are, what they could go on from.

This is the truth that referees compare with what the controller decided. Workers train in lockstep,
so a whole attempt is one object whose step follows from the time; nothing happens between its
milestones. Which snapshot it goes on from is decided by the production `choose`, from what every
rank's memory holds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.checkpoint.choose import Holding, choose
from holdfast.checkpoint.key import Key
from holdfast.events import Broken, Milestone, Progress, WorkerError
from holdfast.messages import Start, WorkerReport
from holdfast.simulation.environment import Environment
from holdfast.simulation.numbers import BadNumbers, broken
from holdfast.simulation.referees import AWAY, Referees

NOTHING = Holding(frozenset(), frozenset(), frozenset())
SYMPTOM = WorkerError(
    type="torch.distributed.DistBackendError", message="Connection closed by peer [10.0.0.1]:29400"
)
BUG = WorkerError(type="ValueError", message="a bad sample", file="train.py", line=41)
ARRIVE_S = 0.3  # from the order to join(), mean
SLOW_FIRST_STEP_S = 120.0
EXPORT_S = (1.0, 300.0)  # what rank 0 does after the last step, where a script ends early


@dataclass(frozen=True)
class Death:
    """How a worker ended."""

    exit_code: int | None
    signal: int | None = None
    error: WorkerError | None = None
    forkserver: str = ""  # how its forkserver had died before


KILLED = Death(None, 9)
ORPHANED = Death(None, 9, forkserver="signal 9")
CRASHED = Death(None, 11)
DONE = Death(0)
BROKEN_LINK = Death(1, None, SYMPTOM)
BUGGY = Death(1, None, BUG)
STARVED = Death(1, None, AWAY)


class Host(Protocol):
    """The agent of a node, as its workers see it."""

    node: str
    alive: bool
    memory: dict[int, Holding]  # by local rank; lost with the node

    def worker_died(self, run: "Run", rank: int, death: Death) -> None:
        """One of its workers has ended by itself."""

    def news(self) -> None:
        """Its workers have reached a milestone."""

    def holds_store(self, port: int) -> bool:
        """Whether the rendezvous store on this port is alive and unused."""


@dataclass(eq=False)
class Run:
    """The workers of one attempt on one node."""

    host: Host
    group: "Group"
    ranks: range
    alive: list[int]
    started_at: float
    arrived_at: float | None = None
    last: dict[int, int] = field(default_factory=dict)  # rank → its last step, once it is broken


@dataclass(eq=False)
class Group:
    """One attempt as a whole. Times are virtual seconds; None: not yet."""

    attempt: int
    order: Start
    runs: dict[int, Run] = field(default_factory=dict)  # by node rank
    restored: Key | None = None
    joined_at: float | None = None
    restored_at: float | None = None
    first_at: float | None = None  # end of the first step
    broken_at: float | None = None
    dies_of: Death = BROKEN_LINK  # once it is broken
    waits: bool = False  # once it is broken nobody fails by itself: they wait for who left
    hung: int | None = None  # this rank hangs, and the others wait for it
    last_step: int = 0  # it leaves its loop after this one; 0: not yet known

    @property
    def lives(self) -> bool:
        """Whether any of its workers is alive."""
        return any(run.alive for run in self.runs.values())

    @property
    def forgotten(self) -> bool:
        """Whether nobody is left who knows of it: its number may be given to another one."""
        return not any(run.host.alive for run in self.runs.values())

    @property
    def inherited_step(self) -> int:
        """Steps that were done when this attempt took over."""
        return self.restored.step if self.restored else 0


class GroundTruth:
    """All workers of all nodes."""

    def __init__(self, env: Environment, referees: Referees) -> None:
        self._env = env
        self._hard = env.hardship
        self._referees = referees
        self.groups: dict[int, Group] = {}  # that have workers
        self.crashing = False  # a crash loop: every attempt crashes early
        self.storage_away = False  # nobody can read data
        self.numbers = BadNumbers()
        self._furthest = 0  # step that any attempt that is over has completed

    # ── life of an attempt ──

    def launch(self, host: Host, order: Start) -> Run:
        """Start a node's workers."""
        group = self._group_of(order)
        first = order.node_rank * order.workers_per_node
        ranks = range(first, first + order.workers_per_node)
        run = Run(host, group, ranks, list(ranks), self._env.now)
        others = [g.attempt for g in self.groups.values() if g is not group and g.lives]
        there = group.runs.get(order.node_rank)
        self._referees.launched(host.node, order, others, there.host.node if there else None)
        group.runs[order.node_rank] = run
        if order.node_rank == 0 and not host.holds_store(order.store.port):
            self.break_up(group, "its rendezvous store was gone", all_fail=True)
        self._env.after(self._env.about(ARRIVE_S), self._arrive, run)
        if self.crashing and not self._env.calm:
            early_s = self._env.about(2.0 + self._hard.step_s)  # some get as far as a snapshot
            self._env.after(early_s, self.kill, run, run.ranks[0], CRASHED)
        return run

    def _group_of(self, order: Start) -> Group:
        known = self.groups.get(order.attempt)
        other = known is not None and (known.order.store != order.store or known.forgotten)
        if known is None or (other and not known.lives):
            self.groups = {a: g for a, g in self.groups.items() if g.lives}
            self.groups[order.attempt] = Group(order.attempt, order)
            self.numbers.forget(order.attempt)
        return self.groups[order.attempt]

    def _arrive(self, run: Run) -> None:
        if not run.alive:
            return
        run.arrived_at = self._env.now
        run.host.news()
        group = run.group
        if self.storage_away and group.broken_at is None:
            self._starve(group)
        if group.broken_at is not None:
            self._fail_later(run)
        elif self._complete(group):
            what = self._restore if self._hard.instrumented else self._run_blind
            self._env.after(self._env.about(0.1), what, group)

    def _complete(self, group: Group) -> bool:
        here = [r for r in group.runs.values() if r.arrived_at is not None and r.alive]
        return len(here) == group.order.node_count

    def _run_blind(self, group: Group) -> None:
        """A script that reports nothing trains all the same."""
        if group.broken_at is None:
            group.first_at = self._env.now
            self._tell(group)
            self._env.after(self._hard.step_s, self._tell, group)
            self._plan_last_step(group)

    def _restore(self, group: Group) -> None:
        if group.broken_at is not None:
            return
        group.joined_at = self._env.now
        workers = group.order.workers_per_node
        held = [
            group.runs[rank // workers].host.memory.get(rank % workers, NOTHING)
            for rank in range(group.order.node_count * workers)
        ]
        held = self.numbers.restorable(held, group.order.restore_below)
        plan = choose(held, workers)
        self._referees.resumed(group.attempt, plan, held, workers)
        bad = plan is not None and self.numbers.is_bad(plan.key)
        self._referees.took(group.attempt, plan, bad)
        group.restored = plan.key if plan is not None else None
        self._env.after(self._env.about(0.2), self._restored, group)

    def _restored(self, group: Group) -> None:
        if group.broken_at is not None:
            return
        group.restored_at = self._env.now
        self._tell(group)
        step_s = self._hard.step_s + self._env.about(1.0)
        if self._env.chance(self._hard.share("slow_first_steps")):
            step_s += SLOW_FIRST_STEP_S * self._env.dice.random()
        self._env.after(step_s, self._first_step, group)

    def _first_step(self, group: Group) -> None:
        if group.broken_at is not None:
            return
        group.first_at = self._env.now
        if group.restored is not None and self.numbers.is_bad(group.restored):
            self.numbers.strike(group.attempt, group.inherited_step + 1, None)
            self._referees.broken(group.attempt)
        self._tell(group)
        caught_up = self._end_of(group, group.order.redo_until + 1)
        if caught_up > self._env.now:
            self._env.after(caught_up - self._env.now, self._tell, group)
        self._plan_last_step(group)

    def _plan_last_step(self, group: Group) -> None:
        """The step that is the last one, and the one at which the user's code always fails."""
        if self._hard.user_error_step > group.inherited_step:
            self._at_step(group, self._hard.user_error_step, self._bug)
        if self._hard.total_steps:
            self._at_step(group, self._hard.total_steps, self._finish)
        if self._hard.early_end_step and self._hard.instrumented:
            step = max(self._hard.early_end_step, group.inherited_step + 1)
            self._at_step(group, step, self._end_early)

    def _at_step(self, group: Group, step: int, what: Callable[[Group], None]) -> None:
        wait_s = self._end_of(group, step) - self._env.now
        self._env.after(max(0.0, wait_s), what, group)

    def _bug(self, group: Group) -> None:
        if group.broken_at is None:
            self._referees.bugged()
            run = group.runs[0]
            quiet = self._hard.quiet_error and self._hard.instrumented
            group.waits = quiet
            self.kill(run, run.ranks[0], DONE if quiet else BUGGY)

    def _end_early(self, group: Group) -> None:
        """Everybody leaves the loop and exits with status 0; rank 0 has something to export."""
        if group.broken_at is not None or self._over(group):
            return
        group.last_step = self.step(group)
        self._furthest = max(self._furthest, group.last_step)
        self._tell(group)
        for run in group.runs.values():
            for rank in run.ranks:
                wait_s = self._env.between(*EXPORT_S) if rank == 0 else self._env.about(0.5)
                self._env.after(wait_s, self._leave, run, rank, DONE)

    def _finish(self, group: Group) -> None:
        if group.broken_at is not None:
            return
        self._furthest = max(self._furthest, self._hard.total_steps)
        self._tell(group)
        for run in group.runs.values():
            for rank in run.ranks:
                self._env.after(self._env.about(0.5), self._leave, run, rank, DONE)

    def _leave(self, run: Run, rank: int, death: Death) -> None:
        if rank in run.alive:
            run.alive.remove(rank)
            if death is DONE and not run.group.lives:
                self._referees.finished = True
            run.host.worker_died(run, rank, death)

    def _tell(self, group: Group) -> None:
        if group.broken_at is None:
            for run in group.runs.values():
                run.host.news()

    # ── faults ──

    def kill(self, run: Run, rank: int, death: Death) -> None:
        """One worker dies of something that is not an order."""
        if rank in run.alive and not self._over(run.group):
            self.break_up(run.group, f"rank {rank} died")
            self._leave(run, rank, death)

    def hang(self, run: Run, rank: int) -> bool:
        """One worker stops moving, and does not die; everybody waits for it. Whether it does."""
        group = run.group
        if rank not in run.alive or group not in self.training() or self._over(group):
            return False
        group.hung, group.waits = rank, True
        self.break_up(group, f"rank {rank} hangs")
        self._referees.hung(group.attempt, rank)
        return True

    def stands(self) -> bool:
        """Whether workers wait for somebody that does not move."""
        return any(g.hung is not None and g.lives for g in self.groups.values())

    def spoil(self, run: Run) -> None:
        """The step under way ends with a loss that is NaN on one rank of this node."""
        group = run.group
        trains = group.first_at is not None and group.broken_at is None and not self._over(group)
        if self._hard.instrumented and trains and not self.numbers.struck(group.attempt):
            step = self.step(group) + 1
            self.numbers.strike(group.attempt, step, self._env.dice.choice(run.alive))
            self._at_step(group, step, self._show_numbers)

    def _show_numbers(self, group: Group) -> None:
        if group.broken_at is None:
            self._referees.broken(group.attempt)
            self._tell(group)

    def broke(self, run: Run, rank: int) -> Broken | None:
        """What the rank's progress page says of its numbers."""
        group, page = run.group, self.progress(run, rank)
        if group.first_at is None or page.step is None:
            return None
        step = self.numbers.seen_by(group.attempt, rank, page.step)
        return broken(step, self._env.now - self._end_of(group, step or 0))

    def vanish(self, run: Run, why: str) -> None:
        """All workers of a node are gone, and nobody is there to tell."""
        if run.alive and not self._over(run.group):
            self.break_up(run.group, why)
        run.alive.clear()

    def clear(self, run: Run) -> None:
        """The workers of a node were ended by order."""
        self.break_up(run.group, "")
        run.alive.clear()

    def lose_storage(self) -> None:
        """From now on until it is back nobody can read data."""
        self.storage_away = True
        for group in self.groups.values():
            if group.lives and group.broken_at is None and not self._over(group):
                self._starve(group)

    def _starve(self, group: Group) -> None:
        group.dies_of = STARVED
        self.break_up(group, "the storage is away", all_fail=True)

    def break_up(self, group: Group, fault: str, *, all_fail: bool = False) -> None:
        """Training stops here: no step is completed any more. `fault`: empty if by order."""
        first = group.broken_at is None
        if first:
            step = self.step(group)
            group.broken_at = self._env.now
            self._furthest = max(self._furthest, step)
            for run in group.runs.values():
                self._settle(run, step)
        if fault:
            self._referees.broken(group.attempt)
        if all_fail or (first and (fault or self._env.chance(0.3))):
            for run in group.runs.values():
                self._fail_later(run, surely=all_fail)

    @property
    def new_steps_s(self) -> float:
        """How long the steps take that were done at all, each counted once."""
        return self._furthest * self._hard.step_s

    def _settle(self, run: Run, step: int) -> None:
        """Which step each rank has completed, and which snapshots are left in memory."""
        group, dice = run.group, self._env.dice
        ragged = group.first_at is not None and step > group.inherited_step + 1
        for rank in run.ranks:
            mine = step - (1 if ragged and dice.random() < 0.3 else 0)
            run.last[rank] = mine
            if group.restored_at is not None:
                self._leave_copies(run, rank, mine, step)

    def _leave_copies(self, run: Run, rank: int, mine: int, step: int) -> None:
        """The newest snapshot may be torn, or not be at the buddy yet; the one before is whole."""
        group, every, place = run.group, self._hard.snapshot_every, rank - run.ranks[0]
        last = self.numbers.last_snapshot(group.attempt, step)
        newest = last - (last - group.inherited_step) % every
        keys = [group.restored] if group.restored else []
        old = run.host.memory.get(place, NOTHING)
        if newest - every > group.inherited_step:
            keys, old = [Key(group.attempt, newest - every)], NOTHING
        done = mine >= newest > group.inherited_step
        key = Key(group.attempt, newest) if done else None
        own = keys + self._newest(key, _ahead(old.private, group.inherited_step))
        buddy = keys + self._newest(key, _ahead(old.buddy, group.inherited_step))
        if self._env.chance(self._hard.share("damaged_copies")):
            own = []
        whole = frozenset(own)
        run.host.memory[place] = Holding(whole, whole, frozenset(buddy))

    def _newest(self, key: Key | None, old: list[Key]) -> list[Key]:
        """The copy of this snapshot or, where it was not written, what it would have replaced."""
        written = key is not None and not self._env.chance(self._hard.share("torn_copies"))
        return [key] if written and key is not None else old

    def _fail_later(self, run: Run, *, surely: bool = False) -> None:
        """A survivor of a broken attempt fails by itself, or hangs until it is stopped."""
        stuck = self._env.chance(self._hard.share("stuck_survivors"))
        if run.arrived_at is None or ((stuck or run.group.waits) and not surely):
            return
        for rank in run.alive:
            self._env.after(self._env.about(0.3), self._leave, run, rank, run.group.dies_of)

    # ── what can be seen ──

    def step(self, group: Group) -> int:
        """The newest step that the attempt has completed."""
        if group.first_at is None:
            return group.inherited_step
        now = self._env.now if group.broken_at is None else group.broken_at
        done = group.inherited_step + 1 + int((now - group.first_at) / self._hard.step_s + 1e-6)
        return min(done, self._hard.total_steps or done, group.last_step or done)

    def _end_of(self, group: Group, step: int) -> float:
        """When the attempt completes a step."""
        assert group.first_at is not None
        return group.first_at + max(0, step - group.inherited_step - 1) * self._hard.step_s

    def finished(self, group: Group) -> bool:
        """Whether all steps of the job are done."""
        done = bool(self._hard.total_steps) and group.first_at is not None
        return done and self.step(group) >= self._hard.total_steps

    def _over(self, group: Group) -> bool:
        """Whether it has left its loop."""
        return bool(group.last_step) or self.finished(group)

    def training(self) -> list[Group]:
        """The attempts that make steps at this moment."""
        return [g for g in self.groups.values() if g.first_at is not None and g.broken_at is None]

    def progress(self, run: Run, rank: int) -> Progress:
        """What the rank's progress page says."""
        group = run.group
        if not self._hard.instrumented:
            return Progress()
        if group.restored_at is None:
            return Progress(step=0 if run.arrived_at is not None else None)
        step = run.last.get(rank, self.step(group))
        since = group.restored_at if group.first_at is None else self._end_of(group, step)
        ago_s = max(0.0, self._env.now - since)
        return Progress(step=step, step_ago_s=ago_s, finished=self.finished(group))

    def report(self, run: Run) -> tuple[WorkerReport, ...]:
        """What an agent sees when it looks at the pages of its workers."""
        milestones, restored = self._milestones(run), run.group.inherited_step
        return tuple(
            WorkerReport(
                rank=rank,
                pid=rank + 100,
                progress=self.progress(run, rank),
                milestones=milestones,
                restored_step=restored,
                broke=self.broke(run, rank),
                phase="finished" if self._over(run.group) else "step",
            )
            for rank in run.ranks
        )

    def _milestones(self, run: Run) -> dict[Milestone, float]:
        """Age of each milestone that the workers of this node have reached."""
        group, now = run.group, self._env.now
        found = {Milestone.STARTED: now - run.started_at}
        if not self._hard.instrumented:
            if group.first_at is not None:
                found[Milestone.OUTPUT] = now - group.first_at
                self._look_at_steps(group, found)
            return found
        for milestone, at in (
            (Milestone.ARRIVED, run.arrived_at),
            (Milestone.JOINED, group.joined_at),
            (Milestone.RESTORED, group.restored_at),
            (Milestone.FIRST_STEP, group.first_at),
        ):
            if at is not None:
                found[milestone] = now - at
        if group.first_at is not None:
            self._late_milestones(run, found)
        return found

    def _look_at_steps(self, group: Group, found: dict[Milestone, float]) -> None:
        """In every other world the first step is seen, though not reported."""
        end = self._end_of(group, group.inherited_step + 2)  # after its first words
        if self._hard.seed % 2 and end <= self._env.now:
            found[Milestone.STEPPED] = self._env.now - end

    def _late_milestones(self, run: Run, found: dict[Milestone, float]) -> None:
        group, now = run.group, self._env.now
        step = min(run.last.values(), default=self.step(group))
        if step > group.order.redo_until:
            end = self._end_of(group, group.order.redo_until + 1)
            found[Milestone.CAUGHT_UP] = max(0.0, now - end)
        if self.finished(group):
            end = self._end_of(group, self._hard.total_steps)
            found[Milestone.FINISHED] = max(0.0, now - end)


def _ahead(keys: frozenset[Key], step: int) -> list[Key]:
    """What is left of a snapshot that not everybody had, so that training went on before it."""
    return sorted((key for key in keys if key.step > step), key=lambda key: key.step)[-1:]
