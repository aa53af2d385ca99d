"""Which snapshots an attempt leaves in the memory of its nodes when it ends, in whatever way."""

from holdfast.checkpoint.choose import copy_distance
from holdfast.checkpoint.key import Key
from holdfast.simulation.environment import Environment
from holdfast.simulation.flips import Flips
from holdfast.simulation.hardship import KEEPS
from holdfast.simulation.memory import BATCH, NodeMemory, WrittenPart
from holdfast.simulation.numbers import BadNumbers
from holdfast.simulation.runs import Group, NodeWorkers

NOTHING = NodeMemory()


class LeftCopies:
    """Of all attempts of a world."""

    def __init__(self, env: Environment, numbers: BadNumbers, flips: Flips) -> None:
        self._env, self._hard = env, env.hardship
        self._numbers, self._flips = numbers, flips

    def samples(self, group: Group) -> int:
        """Of one step."""
        limits = self._hard.limits
        ranks = limits.node_count * self._hard.workers
        return BATCH * (ranks if limits.batch == KEEPS else group.world_size)

    def leave(self, run: NodeWorkers, rank: int, mine: int, step: int) -> None:
        """The attempt ends after `step`, this rank after `mine`. The newest snapshot may be torn,
        or not be at the buddy yet; the one before is whole."""
        group, every, place = run.group, self._hard.snapshot_every, rank - run.ranks[0]
        last = self._numbers.last_snapshot(group.attempt, step)
        last = self._flips.last_snapshot(group.attempt, last)
        newest = last - (last - group.inherited_step) % every
        old = run.host.memory.get(place, NOTHING)
        kept = old.only(lambda key: key == group.restored)
        before = newest if group.farewell.kept == last else newest - every
        if before > group.inherited_step:
            kept, old = self._written(group, rank, before), NOTHING
        elif group.restored is not None and group.origin.in_place:
            kept = self._written(group, rank, group.inherited_step, group.restored)
        newest = last if group.farewell.kept == last else newest
        done = mine >= newest > group.inherited_step
        new = self._written(group, rank, newest) if done else None
        own = [*kept.private, *self._newest(group, new and new.private, _ahead(old.private, group))]
        buddy = [*kept.buddy, *self._newest(group, new and new.buddy, _ahead(old.buddy, group))]
        if self._env.chance(self._hard.share("damaged_copies")):
            own = []
        shared = frozenset(own)
        run.host.memory[place] = NodeMemory(shared, shared, frozenset(buddy))

    def _written(self, group: Group, rank: int, step: int, key: Key | None = None) -> NodeMemory:
        """What a rank has of a snapshot of this attempt, or of what it goes on from in place."""
        size, each = group.world_size, self._hard.limits.nodes_each
        distance = copy_distance(group.order.workers_per_node, size, each)
        at = group.origin.used + (step - group.inherited_step) * self.samples(group)
        of, ward = key or Key(group.attempt, step), (rank - distance) % size
        mine, other = (frozenset((WrittenPart(of, r, size, at),)) for r in (rank, ward))
        return NodeMemory(mine, mine, other if size > distance else frozenset())

    def _newest(
        self, group: Group, new: frozenset[WrittenPart] | None, old: list[WrittenPart]
    ) -> list[WrittenPart]:
        """The copy of this snapshot or, where it was not written, what it would have replaced."""
        met = bool(group.farewell.kept)  # all have waited until it was whole
        written = new is not None and (met or not self._env.chance(self._hard.share("torn_copies")))
        return list(new) if written and new is not None else old


def _ahead(parts: frozenset[WrittenPart], group: Group) -> list[WrittenPart]:
    """What is left of a snapshot that not everybody had, so that training went on before it."""
    ahead = (part for part in parts if part.key.step > group.inherited_step)
    return sorted(ahead, key=lambda part: part.key.step)[-1:]
