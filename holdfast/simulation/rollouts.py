"""Another image for the job of a simulated cluster: nodes that have it not give way one by one.

Which one does is decided by what decides it for pods (`drivers/kubernetes/images.py`); pods are
made here of what the world knows of its nodes. An image may be a dud: its nodes never become ready.
"""

import itertools
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.controller import State
from holdfast.drivers.kubernetes.images import ImageRollout, RolloutStep, mark
from holdfast.drivers.kubernetes.manifests.names import IMAGE
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.roster import Roster
from holdfast.simulation.environment import Environment

LOOK_S = 5.0
DUD = "dud"  # begins the name of an image in which no agent becomes ready


class Images:
    """The image of each node, and whose turn it is to get another one."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._of: dict[str, str] = {}  # node → image
        self._numbers = itertools.count(1)
        self._state: State | None = None
        self._leaving: set[str] = set()

    def begins(self, node: str, image: str) -> bool:
        """A node is made with this image; whether it will become ready."""
        self._of[node] = image
        return self._env.calm or not image.startswith(DUD)

    def new(self) -> str:
        """The name of an image that nobody has used."""
        kind = DUD if self._env.dice.random() < 0.3 else "image"
        return f"{kind}:{next(self._numbers)}"

    def next(self, state: State, nodes: Iterable[str]) -> RolloutStep:
        """What a controller with this state does now, of whose nodes these are alive."""
        if state is not self._state:  # another process
            self._state, self._roster = state, Roster(state)
            self._rollout = ImageRollout(state, self._roster, lambda: self._env.now)
        self._roster.relist(self._pod(node) for node in nodes)
        step = self._rollout.next()
        if step.evict is not None:
            self._leaving.add(step.evict.uid)
            self._rollout.done(step.evict)
        return step

    def of(self, node: str) -> str:
        """The image of a node; empty: the first one."""
        return self._of[node]

    def _pod(self, node: str) -> Pod:
        labels: Mapping[str, str] = {IMAGE: mark(self._of[node])}
        leaving = "2026-01-01T00:00:00Z" if node in self._leaving else None
        meta = {"name": node, "uid": node, "labels": labels, "deletionTimestamp": leaving}
        return msgspec.convert({"metadata": meta, "spec": {"nodeName": node}}, Pod)
