"""What really happens to the workers: which run, how far they are, what they could go on from.

This is the truth that referees compare with what the controller decided. Workers train in lockstep,
so a whole attempt is one object whose step follows from the time; nothing happens between its
milestones. Which snapshot it goes on from is decided by the production `choose`, from what every
rank's memory holds.
"""

import math

from holdfast.checkpoint.choose import copy_distance
from holdfast.digests import ReplicaDigest
from holdfast.events import Broken, Milestone, Progress, WorkerError
from holdfast.messages import Start, WorkerReport
from holdfast.simulation import memory
from holdfast.simulation.accounting import TimeSpent
from holdfast.simulation.environment import Environment
from holdfast.simulation.fair_updates import kind
from holdfast.simulation.flips import Flips
from holdfast.simulation.left_copies import NOTHING, LeftCopies
from holdfast.simulation.numbers import BadNumbers, broken
from holdfast.simulation.referees import Referees
from holdfast.simulation.repeating_errors import ILLEGAL, Bug, ScriptErrors
from holdfast.simulation.runs import (
    BUGGY,
    CRASHED,
    DONE,
    STARVED,
    Death,
    Group,
    Happening,
    Inheritance,
    NodeAgent,
    NodeWorkers,
    Stall,
)
from holdfast.simulation.tempo import Tempo
from holdfast.versions import Version

ARRIVE_S = 0.3  # from the order to join(), mean
SLOW_FIRST_STEP_S = 120.0
EXPORT_S = (1.0, 300.0)  # what rank 0 does after the last step, where a script ends early


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
        self.flips = Flips(self._hard.check_every, self._hard.snapshot_every)
        self.errors = ScriptErrors()
        self._copies = LeftCopies(env, self.numbers, self.flips)
        self.on_change: Happening = lambda _group: None  # of its pace, or what it can be seen by
        self.spent = TimeSpent(self._hard.step_s)

    # ── life of an attempt ──

    def launch(self, host: NodeAgent, order: Start) -> NodeWorkers:
        """Start a node's workers."""
        group = self._group_of(order)
        first = order.node_rank * order.workers_per_node
        ranks = range(first, first + order.workers_per_node)
        run = NodeWorkers(host, group, ranks, list(ranks), self._env.now)
        others = [g.attempt for g in self.groups.values() if g is not group and g.lives]
        there = group.runs.get(order.node_rank)
        self._referees.launched(host.node, order, others, there.host.node if there else None)
        group.runs[order.node_rank] = run
        if order.node_rank == 0 and not host.holds_store(order.store.port):
            self.break_up(group, "its rendezvous store was gone", all_fail=True)
        self._env.after(self._env.about(ARRIVE_S), self._arrive, run)
        if kind(order.version) == "buggy" and self._hard.instrumented:
            self._env.after(
                self._env.about(2.0 + self._hard.step_s), self.kill, run, ranks[0], BUGGY
            )
        if self.crashing and not self._env.calm:
            early_s = self._env.about(2.0 + self._hard.step_s)  # some get as far as a snapshot
            self._env.after(early_s, self.kill, run, run.ranks[0], CRASHED)
        return run

    @staticmethod
    def flaw(version: Version) -> str:
        """Why a node cannot prepare it."""
        return "SyntaxError: invalid syntax" if kind(version) == "flawed" else ""

    def _group_of(self, order: Start) -> Group:
        known = self.groups.get(order.attempt)
        other = known is not None and (known.order.store != order.store or known.forgotten)
        if known is None or (other and not known.lives):
            self.groups = {a: g for a, g in self.groups.items() if g.lives}
            self.groups[order.attempt] = Group(order)
            self.numbers.forget(order.attempt)
            self.flips.forget(order.attempt)
            self._referees.blame.forget(order.attempt)
        return self.groups[order.attempt]

    def _arrive(self, run: NodeWorkers) -> None:
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
            self._sets_out(group)
            self._tell(group)
            self._at_step(group, group.inherited_step + 2, self._tell)
            self._plan_last_step(group)

    def _sets_out(self, group: Group) -> None:
        """Its first step is over."""
        group.first_at = self._env.now
        group.tempo = Tempo(group.inherited_step + 1, self._env.now, self._pace_s(group))
        for run in group.runs.values():
            self._referees.blame.sets_out(group.attempt, run.host.node, run.ranks, run.host.slow)
        self.on_change(group)

    def _restore(self, group: Group) -> None:
        if group.broken_at is not None:
            return
        group.joined_at = self._env.now
        workers = group.order.workers_per_node
        held = [
            group.runs[rank // workers].host.memory.get(rank % workers, NOTHING)
            for rank in range(group.world_size)
        ]
        held = self.numbers.restorable(held, group.order)
        distance = copy_distance(workers, group.world_size, self._hard.limits.nodes_each)
        found = memory.restorable(held, distance)
        self._referees.resumed(group.attempt, found, held, distance)
        snapshot = found.snapshot if found is not None else None
        bad = snapshot is not None and self.numbers.is_bad(snapshot.key)
        self._referees.took(group.attempt, snapshot, bad)
        at = memory.positions(found, held)
        self._referees.dealt(group.attempt, snapshot, memory.dealt(at, self._copies.samples(group)))
        key, plan = (found.snapshot.key, found.plan) if found is not None else (None, None)
        self._referees.loaders.begin(group.attempt, key, group.order.skips)
        group.origin = Inheritance(key, plan is not None, at[0])
        self._env.after(self._env.about(0.2), self._restored, group)

    def _restored(self, group: Group) -> None:
        if group.broken_at is not None:
            return
        group.restored_at = self._env.now
        others = (self.step(one) for one in self.training() if one is not group)
        furthest = max(self.spent.furthest, *others, 0)
        self.spent.resumed(group.attempt, group.inherited_step, furthest)
        self._tell(group)
        step_s = self._hard.step_s + self._env.about(1.0)
        if self._env.chance(self._hard.share("slow_first_steps")):
            step_s += SLOW_FIRST_STEP_S * self._env.dice.random()
        stalled = max(run.host.stalls_until for run in group.runs.values()) - self._env.now
        step_s += max(0.0, stalled)
        self._env.after(step_s, self._first_step, group)

    def _first_step(self, group: Group) -> None:
        self._meet_bug(group)
        if group.broken_at is not None:
            return
        self._sets_out(group)
        if group.restored is not None and self.numbers.is_bad(group.restored):
            self.numbers.strike(group.attempt, group.inherited_step + 1, None)
            self._referees.broken(group.attempt)
        self._tell(group)
        caught_up = self._end_of(group, group.order.redo_until + 1)
        if caught_up > self._env.now:
            self._at_step(group, group.order.redo_until + 1, self._tell)
        self._plan_last_step(group)

    def _plan_last_step(self, group: Group) -> None:
        """The step that is the last one, and the one at which the user's code always fails."""
        if self._hard.user_error_step > group.inherited_step:
            self._at_step(group, self._hard.user_error_step, self._bug)
        for step in self.errors.after(group.order.version, group.inherited_step):
            self.spoil_batch(group, step)
        for step in self._referees.loaders.bad_steps(group.attempt):
            if self._hard.instrumented:
                self._at_step(group, step, self._take_bad_batch)
        if self._hard.total_steps:
            self._at_step(group, self._hard.total_steps, self._finish)
        if self._hard.early_end_step and self._hard.instrumented:
            step = max(self._hard.early_end_step, group.inherited_step + 1)
            self._at_step(group, step, self._end_early)

    def _at_step(self, group: Group, step: int, what: Happening) -> None:
        group.planned.append((step, what))
        self._await(group, step, what)

    def _await(self, group: Group, step: int, what: Happening) -> None:
        wait_s = self._end_of(group, step) - self._env.now
        self._env.after(max(0.0, wait_s), self._comes_to, group, step, what, _changes(group))

    def _comes_to(self, group: Group, step: int, what: Happening, changes: int) -> None:
        if changes == _changes(group):
            group.planned.remove((step, what))
            what(group)

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
        self._comes_no_further(group, group.last_step)
        self._tell(group)
        for run in group.runs.values():
            for rank in run.ranks:
                wait_s = self._env.between(*EXPORT_S) if rank == 0 else self._env.about(0.5)
                self._env.after(wait_s, self._leave, run, rank, DONE)

    def _finish(self, group: Group) -> None:
        if group.broken_at is not None:
            return
        self._comes_no_further(group, self._hard.total_steps)
        self._tell(group)
        for run in group.runs.values():
            for rank in run.ranks:
                self._env.after(self._env.about(0.5), self._leave, run, rank, DONE)

    def _leave(self, run: NodeWorkers, rank: int, death: Death) -> None:
        if rank in run.alive:
            run.alive.remove(rank)
            if death is DONE and not run.group.lives:
                self._referees.finished = True
            if run.group.broken_at is None and not run.group.lives:
                self.spent.ran(run.group.attempt, self._env.now - run.group.started_at)
            run.host.worker_died(run, rank, death)

    def _tell(self, group: Group) -> None:
        if group.broken_at is None:
            for run in group.runs.values():
                run.host.news()

    # ── faults ──

    def kill(self, run: NodeWorkers, rank: int, death: Death) -> None:
        """One worker dies of something that is not an order."""
        if rank in run.alive and not self._over(run.group):
            self.break_up(run.group, f"rank {rank} died")
            self._leave(run, rank, death)

    def fail(self, run: NodeWorkers, rank: int, error: WorkerError, bug: Bug | None) -> None:
        """A worker raises an error in the step under way: of a bug or, with none, its machine."""
        group = run.group
        if rank in run.alive and group.broken_at is None and not self._over(group):
            step = self.step(group)
            self._referees.blame.errors.struck(group.attempt, rank, run.host.node, error, bug)
            self.break_up(group, f"rank {rank} failed")
            run.last[rank] = step
            self._leave(run, rank, Death(1, None, error))

    def spoil_batch(self, group: Group, step: int) -> None:
        """What this attempt does after that step fails."""
        self._at_step(group, step, self._meet_bug)

    def _meet_bug(self, group: Group) -> None:
        known = self.errors.after(group.order.version, group.inherited_step)
        bug = known.get(self.step(group))
        if bug is not None and group.broken_at is None:
            rank = self.errors.rank_of(bug, group.world_size, self._env.dice)
            self.fail(group.runs[rank // group.order.workers_per_node], rank, ILLEGAL, bug)

    def hang(self, run: NodeWorkers, rank: int) -> bool:
        """One worker stops moving, and does not die; everybody waits for it. Whether it does."""
        group = run.group
        if rank not in run.alive or group not in self.training() or self._over(group):
            return False
        group.hung, group.waits = rank, True
        self.break_up(group, f"rank {rank} hangs")
        self.spent.stands(group.attempt)
        self._referees.hung(group.attempt, rank)
        return True

    def stands(self) -> bool:
        """Whether workers wait for what does not move."""
        now = self._env.now
        return any(
            g.lives and (g.hung is not None or g.stall.until > now) for g in self.groups.values()
        )

    def differ(self) -> bool:
        """Whether workers have found out that they do not have the same."""
        return any(self._differs(group) for group in self.training())

    @property
    def stalls_since(self) -> float:
        """When the network last began to carry nothing that carries nothing now; -inf: it works."""
        stalled = (g for g in self.groups.values() if g.stall.until > self._env.now and g.lives)
        return max((group.stall.since for group in stalled), default=-math.inf)

    def _differs(self, group: Group) -> bool:
        flip = self.flips.of(group.attempt)
        return flip is not None and self.step(group) >= flip.known

    # ── what makes it slow, or wrong ──

    def _pace_s(self, group: Group) -> float:
        """How long its steps take: as long as those of the slowest rank."""
        hosts = [run.host for run in group.runs.values()]
        times = max(host.slow.times if host.slow is not None else 1.0 for host in hosts)
        return self._hard.step_s * times * max(host.drags for host in hosts)

    def change_pace(self, group: Group) -> None:
        """One of its nodes is slow, or is not any more."""
        if group in self.training() and group.tempo is not None and not self._over(group):
            group.tempo.change(self._env.now, self._pace_s(group))
            self._plan_again(group)
            for run in group.runs.values():
                host = run.host
                self._referees.blame.sets_out(group.attempt, host.node, run.ranks, host.slow)
            self.on_change(group)

    def stall(self, group: Group, for_s: float) -> bool:
        """The network carries nothing for a while, and all wait. Whether they do."""
        trains = group in self.training() and self._hard.instrumented and not self._over(group)
        if group.tempo is None or not trains:
            return False
        group.tempo.pause(self._env.now, for_s)
        group.stall = Stall(self._env.now, self._env.now + for_s)
        self._plan_again(group)
        return True

    def told_times(self, ranks: int) -> None:
        """A node has told when so many ranks entered their collectives."""
        self._referees.blame.judged += ranks

    def _plan_again(self, group: Group) -> None:
        for step, what in group.planned:
            self._await(group, step, what)

    def flip(self, run: NodeWorkers) -> bool:
        """A bit flips in the parameters of a rank, in the step under way. Whether that shows."""
        group = run.group
        sound = not self.numbers.struck(group.attempt) and self.flips.of(group.attempt) is None
        compared = bool(self._hard.check_every) and self._hard.instrumented and group.world_size > 1
        if not (sound and compared) or group not in self.training() or self._over(group):
            return False
        rank, step = self._env.dice.choice(run.alive), self.step(group) + 1
        of = group.inherited_step, group.world_size
        flip = self.flips.strike(group.attempt, rank, step, *of)
        self._referees.blame.flipped(group.attempt, run.host.node, rank)
        self._at_step(group, flip.known, self._show_flip)
        return True

    def _show_flip(self, group: Group) -> None:
        if group.broken_at is None:
            self._referees.broken(group.attempt)
            self._tell(group)
            self.on_change(group)

    def spoil(self, run: NodeWorkers) -> None:
        """The step under way ends with a loss that is NaN on one rank of this node."""
        group = run.group
        trains = group.first_at is not None and group.broken_at is None and not self._over(group)
        sound = not self.numbers.struck(group.attempt) and self.flips.of(group.attempt) is None
        if self._hard.instrumented and trains and sound:
            step = self.step(group) + 1
            self.numbers.strike(group.attempt, step, self._env.dice.choice(run.alive))
            self._at_step(group, step, self._show_numbers)

    def _take_bad_batch(self, group: Group) -> None:
        sound = not self.numbers.struck(group.attempt) and self.flips.of(group.attempt) is None
        if sound and group.broken_at is None and not self._over(group):
            self.numbers.strike(group.attempt, self.step(group), None)
            self._show_numbers(group)

    def _show_numbers(self, group: Group) -> None:
        if group.broken_at is None:
            self._referees.broken(group.attempt)
            self._tell(group)

    def broke(self, run: NodeWorkers, rank: int) -> Broken | None:
        """What the rank's progress page says of its numbers."""
        group, page = run.group, self.progress(run, rank)
        if group.first_at is None or page.step is None:
            return None
        step = self.numbers.seen_by(group.attempt, rank, page.step)
        return broken(step, self._env.now - self._end_of(group, step or 0))

    def vanish(self, run: NodeWorkers, why: str) -> None:
        """All workers of a node are gone, and nobody is there to tell."""
        if run.alive and not self._over(run.group):
            self.break_up(run.group, why)
        run.alive.clear()

    def parks(self, run: NodeWorkers) -> None:
        """The workers of a node are told to wait for the next attempt."""
        self._referees.parks(run.group.attempt, run.group.first_at is not None)

    def goes_on(self, left: int, order: Start) -> None:
        """Workers that were kept after an attempt are used again."""
        self._referees.goes_on(left, order.attempt)

    def keeps(self, run: NodeWorkers) -> bool:
        """A node is told to end with a snapshot in memory: all do, at the end of the step under way
        when the last of them is told, unless somebody's time is up before. Whether it tries."""
        group = run.group
        if group not in self.training() or not self._hard.instrumented or self._over(group):
            return False
        group.farewell.asked.add(run.ranks[0])
        if len(group.farewell.asked) == group.order.node_count:
            self._at_step(group, self.step(group) + 1, self._keep)
        return True

    def _keep(self, group: Group) -> None:
        if group.broken_at is None:
            group.farewell.kept = self.step(group)
            self.break_up(group, "")
            for run in group.runs.values():
                run.host.leaves(run)

    def clear(self, run: NodeWorkers) -> None:
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
            if not self._over(group):
                self._comes_no_further(group, step)
            if group.lives:
                self.spent.ran(group.attempt, self._env.now - group.started_at)
            for run in group.runs.values():
                self._settle(run, step)
        if fault:
            self._referees.broken(group.attempt)
        if all_fail or (first and (fault or self._env.chance(0.3))):
            for run in group.runs.values():
                self._fail_later(run, surely=all_fail)

    def _comes_no_further(self, group: Group, step: int) -> None:
        self.spent.trained(group.attempt, group.tempo, group.inherited_step, step, self._env.now)

    def _settle(self, run: NodeWorkers, step: int) -> None:
        """Which step each rank has completed, and which snapshots are left in memory."""
        group, dice = run.group, self._env.dice
        ragged = group.first_at is not None and step > group.inherited_step + 1
        for rank in run.ranks:
            mine = step - (1 if ragged and dice.random() < 0.3 else 0)
            mine = step if group.farewell.kept == step else mine
            run.last[rank] = mine
            if group.restored_at is not None:
                self._copies.leave(run, rank, mine, step)

    def _fail_later(self, run: NodeWorkers, *, surely: bool = False) -> None:
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
        assert group.tempo is not None
        done = group.tempo.step_at(self._env.now if group.broken_at is None else group.broken_at)
        return min(done, self._hard.total_steps or done, group.last_step or done)

    def _end_of(self, group: Group, step: int) -> float:
        """When the attempt completes a step."""
        assert group.tempo is not None
        return group.tempo.end_of(step)

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

    def progress(self, run: NodeWorkers, rank: int) -> Progress:
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

    def report(self, run: NodeWorkers) -> tuple[WorkerReport, ...]:
        """What an agent sees when it looks at the pages of its workers."""
        milestones, restored = self._milestones(run), run.group.inherited_step
        return tuple(
            WorkerReport(
                rank=rank,
                pid=rank + 100,
                progress=self.progress(run, rank),
                milestones=milestones,
                restored_step=restored,
                skipped=self._referees.loaders.skipped(run.group.attempt),
                broke=self.broke(run, rank),
                phase="finished" if self._over(run.group) else "step",
                replica=self._replica(run.group, rank),
            )
            for rank in run.ranks
        )

    def _replica(self, group: Group, rank: int) -> ReplicaDigest | None:
        flip = self.flips.of(group.attempt)
        known = flip is not None and group.first_at is not None and self.step(group) >= flip.known
        if flip is None or not known:
            return None
        same = group.restored_at if flip.agreed == group.inherited_step else None
        at = same if same is not None else self._end_of(group, flip.agreed)
        return flip.digest(rank, self._env.now - at)

    def _milestones(self, run: NodeWorkers) -> dict[Milestone, float]:
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

    def _late_milestones(self, run: NodeWorkers, found: dict[Milestone, float]) -> None:
        group, now = run.group, self._env.now
        step = min(run.last.values(), default=self.step(group))
        if step > group.order.redo_until:
            end = self._end_of(group, group.order.redo_until + 1)
            found[Milestone.CAUGHT_UP] = max(0.0, now - end)
        if self.finished(group):
            end = self._end_of(group, self._hard.total_steps)
            found[Milestone.FINISHED] = max(0.0, now - end)


def _changes(group: Group) -> int:
    return group.tempo.changes if group.tempo is not None else 0
