"""What a job must survive, simulated: several things go wrong at once, hundreds of times a day.

Each sentence is a world of its own kind, lived with and without controllers that die midway. The
referees see that nothing of an old attempt trains, writes or commits, that nobody is given up who
is well, and that the job trains again once it is calm.
"""

import re

import msgspec
import pytest

from holdfast.actions import Entry
from holdfast.controller import Controller, Phase
from holdfast.events import NodeLost
from holdfast.simulation.faults import FAULTS
from holdfast.simulation.hardship import Hardship
from holdfast.simulation.world import World
from tests.more import MORE, sample
from tests.simulation.test_world import lived, quiet

SEEDS = range(8 if MORE else 1)
OFTEN, SELDOM = 400.0, 100.0  # times a day
RECOVERS = {"worker_kills": OFTEN, "node_deaths": 200.0}
SENTENCES: dict[str, dict[str, float]] = {
    "a second fault in every phase of the recovery from the first": RECOVERS,
    "a spare that dies while it is promoted": {"node_deaths": 200.0, "spare_deaths": OFTEN},
    "updates while it recovers, and two at once": {"worker_kills": 200.0, "updates": OFTEN},
    "a size that changes while nodes are lost": {"node_deaths": 300.0},
    "a size that changes while it saves, and nodes that are lost then": {"node_deaths": 1500.0},
    "a partition that heals": {
        "link_stalls": 200.0, "half_opens": 100.0, "agent_freezes": 100.0, "worker_kills": SELDOM,
    },
    "a partition of the controller that heals": {
        "controller_isolations": 100.0, "controller_cuts": 100.0, "node_deaths": SELDOM,
    },
    "processes that are stopped for up to a minute": {
        "controller_stalls": OFTEN, "worker_kills": SELDOM,
    },
    "everything suspended for a minute": {"suspensions": SELDOM, "worker_kills": SELDOM},
    "machines that take their node with them": {"machine_losses": 100.0, "worker_kills": SELDOM},
}  # fmt: skip
BATCHES = ("keep_global_batch", "scale_lr")
CLUSTERS = ("a partition of the controller that heals", "machines that take their node with them")


def world_of(sentence: str, seed: int, *, loses: bool) -> Hardship:
    """Two nodes and spares; `loses`: controllers die as well, also between two effects of one."""
    rates = SENTENCES[sentence] | ({"controller_crashes": 100.0} if loses else {})
    shares = {"crash_midway": 0.3} if loses else {}
    hard = quiet(rates=rates, shares=shares, total_steps=0, seed=seed, cluster=sentence in CLUSTERS)
    limits = msgspec.structs.replace(hard.limits, max_restarts=100_000, spare_count=2)
    if "size" in sentence:
        limits = msgspec.structs.replace(limits, node_count=3, min_nodes=1, spare_count=0)
        limits = msgspec.structs.replace(limits, batch=BATCHES[seed % 2])
    if "it saves" in sentence:
        hard = msgspec.structs.replace(hard, step_s=10.0, snapshot_every=10)
        limits = msgspec.structs.replace(limits, in_process=True, replicas=True)
    return msgspec.structs.replace(hard, limits=limits)


@pytest.mark.parametrize(
    "loses", sample([True], [False]), ids=lambda loses: f"controllers-die={loses}"
)
@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_job_survives(sentence: str, loses: bool) -> None:
    for seed in SEEDS:
        world = lived(world_of(sentence, seed, loses=loses))
        assert world.referees.outcome == "stopped", "it trained until it was asked to stop"
        assert world.referees.attempts > 1, "and something has happened"


Moment = tuple[Phase, bool]  # and whether nothing of the attempt is left


def moments(world: World) -> dict[str, set[Moment]]:
    """In which moments of recoveries further faults came; and what was going on then."""
    controller, told = Controller(world.hardship.limits), dict[str, set[Moment]]()
    lines = bytes(world.book.lines).splitlines()[1:]
    for entry in (msgspec.json.decode(line, type=Entry) for line in lines):
        state = controller.state
        kind = type(entry.event).__name__
        told.setdefault(kind, set()).add((state.phase, state.stopped))
        controller.handle(entry.event, entry.at)
    return told


def test_the_second_fault_has_come_in_every_phase_of_a_recovery() -> None:
    worlds = [lived(world_of(sentence, 0, loses=False)) for sentence in (*SENTENCES,)[:2]]
    hard = worlds[0].hardship
    few = msgspec.structs.replace(hard.limits, spare_count=0)
    often = {"node_deaths": 2000.0}
    worlds.append(lived(msgspec.structs.replace(hard, limits=few, rates=often, hours=0.5)))
    lost = {moment for world in worlds for moment in moments(world)["NodeLost"]}
    assert lost >= {
        (Phase.RUNNING, False),
        (Phase.RECOVERING, False),
        (Phase.WAITING, True),
        (Phase.STARTING, False),
    }


def test_updates_have_come_while_it_recovered() -> None:
    sentence = "updates while it recovers, and two at once"
    worlds = [lived(world_of(sentence, seed, loses=False)) for seed in range(3)]
    phases = {phase for world in worlds for phase, _ in moments(world)["UpdateRequested"]}
    assert phases >= {Phase.RUNNING, Phase.RECOVERING} or phases >= {Phase.RUNNING, Phase.STARTING}


def test_the_size_has_changed_and_nodes_were_lost_meanwhile() -> None:
    world = lived(world_of("a size that changes while nodes are lost", 1, loses=True))
    assert world.control is not None
    told = {one.action for i in world.control.state.incidents for one in i.actions}
    assert "Shrink" in told
    wrong = re.findall(rb"[^\d.,]1 (?:more )?(?:nodes|ranks|steps|restarts)\b", world.book.lines)
    assert wrong == []


def test_nodes_were_lost_while_an_attempt_saved_to_change_its_size() -> None:
    sentence = "a size that changes while it saves, and nodes that are lost then"
    assert any(lost_while_saving(lived(world_of(sentence, n, loses=False))) for n in range(3))


def lost_while_saving(world: World) -> int:
    controller, lost = Controller(world.hardship.limits), 0
    for line in bytes(world.book.lines).splitlines()[1:]:
        entry = msgspec.json.decode(line, type=Entry)
        state = controller.state
        saving = state.phase is Phase.RECOVERING and state.sizing.changing_to is not None
        lost += saving and isinstance(entry.event, NodeLost)
        controller.handle(entry.event, entry.at)
    return lost


def test_of_a_suspended_machine_no_node_is_lost_and_nothing_is_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suspend, times = FAULTS["suspensions"], list[float]()

    def counted(world: World) -> None:
        times.append(world.env.now)
        suspend(world)

    monkeypatch.setitem(FAULTS, "suspensions", counted)
    hard = world_of("everything suspended for a minute", 0, loses=False)
    world = lived(msgspec.structs.replace(hard, rates={"suspensions": 400.0}))
    assert len(times) > 5
    assert not moments(world).keys() & {"NodeLost", "WorkerFailed"}
    assert world.referees.attempts == 1
