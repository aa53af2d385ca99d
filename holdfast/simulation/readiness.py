"""When the workers of a simulated node only need their ranks: as soon as there is a forkserver or,
for some nodes of worlds that tests make, later.

By dice of the node's own: worlds without such nodes are what they were.
"""

from collections.abc import Callable
from random import Random

from holdfast.events import NodeReady, Store
from holdfast.simulation.environment import Environment

COLD_S = 60.0  # mean


class Readiness:
    """Of one node."""

    def __init__(self, env: Environment, node: str) -> None:
        self._env, self._node = env, node
        dice = Random(f"readiness {env.hardship.seed} {node}")
        cold = dice.random() < env.hardship.cold_nodes
        self._warm_at = env.now + dice.expovariate(1.0 / COLD_S) if cold else 0.0

    def fact(self, store: Store, once_warm: Callable[[], None]) -> NodeReady:
        """What it says of a store; and `once_warm` it is to say that as well."""
        left_s = self._warm_at - self._env.now
        if left_s > 0:
            self._env.after(left_s, once_warm)
        instrumented = self._env.hardship.instrumented
        return NodeReady(node=self._node, store=store, instrumented=instrumented, warm=left_s <= 0)
