"""Planted bugs in who comes after a controller, or a node, that is gone; see `mutants`."""

from holdfast.simulation.environment import Promise
from tests.simulation.mutant import Mutant

ARRIVALS, RESTART = "controller/arrivals.py", "controller/policies/restart.py"
SHELL_NODES, SUCCESSION = "shell/nodes.py", "shell/succession.py"

OF_SUCCESSORS: dict[str, Mutant] = {
    "a link that is switched over is taken for a machine that is gone": Mutant(
        "detection/answers.py",
        "self._dark_s, self._others_s = DARK * timeout_s, OTHERS * timeout_s",
        "self._dark_s, self._others_s = 0.0, 0.0",
        Promise.EFFICIENCY,
        first=5,
    ),
    "a controller that is cut off from all nodes gives them up": Mutant(
        SHELL_NODES,
        "quiet_s = now - max((known.heard_at for _, known in far), default=-math.inf)",
        "return False",
        Promise.PERSISTENCE,
        first=219,
    ),
    "a controller that has begun where it hears of nobody gives all nodes up": Mutant(
        SHELL_NODES,
        "return ((overdue and self._has_waited(now)) or None) if waits else False",
        "return False",
        Promise.EFFICIENCY,
        first=117,
    ),
    "controllers that hear of nobody give their place away for ever": Mutant(
        SHELL_NODES,
        "return (many or before > 0) and before < HAND_OVERS_MAX",
        "return many or before > 0",
        Promise.BOUND,
        first=1697,
    ),
    "a controller that meets nodes does not say so": Mutant(
        SHELL_NODES,
        "self._put([NodesMet()], None)",
        "pass",
        Promise.NAMED,
        first=1285,
        hours=24.0,
        nodes=2,
        when_asked=True,
    ),
    "what a lost controller alone had learned of dead workers is lost": Mutant(
        "agent/fact_queue.py",
        "self._ended.append(one)",
        "pass",
        Promise.LIVENESS,
        first=2000057,
        hours=24.0,
        nodes=2,
        when_asked=True,
    ),
    "a controller that hears of nobody takes its place again at once": Mutant(
        SUCCESSION,
        "return taken or now >= self._until",
        "return True",
        Promise.TERMS,
        first=24,
    ),
    "nodes that die before they are ready are asked for at once": Mutant(
        RESTART,
        "return float(min(FIRST_NODE_S * 2**doublings, LAST_NODE_S))",
        "return 0.0",
        Promise.BOUND,
        first=167,
    ),
    "nodes that cannot start workers are asked for again at once": Mutant(
        "controller/controller.py",
        "return _node_gone(state, event.node, why, 0.0, planned=not event.failed)",
        "return _node_gone(state, event.node, why, 0.0, planned=True)",
        Promise.BOUND,
        first=478,
    ),
    "one useless node ends the job": Mutant(
        ARRIVALS,
        "in_vain = state.stillborn >= MAX_STILLBORN and not versions.image_comes(state)",
        "in_vain = not versions.image_comes(state)",
        Promise.PERSISTENCE,
        first=41,
    ),
}
