"""What goes wrong in a simulated world: each kind of fault strikes again and again, by the dice.

How often is the world's hardship; whom it strikes, and for how long, is drawn when it happens.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.controller import NodeState
from holdfast.detection.answers import DARK
from holdfast.events import CheckpointCommitted, CheckpointFailed, Severity, UpdateRequested
from holdfast.simulation.agents import SimulatedAgent
from holdfast.simulation.dead_devices import OF_DEVICES
from holdfast.simulation.error_faults import OF_ERRORS
from holdfast.simulation.fair_updates import KIND, KINDS
from holdfast.simulation.runs import CRASHED, KILLED, Group
from holdfast.simulation.shared_faults import WRONG
from holdfast.simulation.slow_ports import MEASURED_S, slow_ports
from holdfast.simulation.slowness import Slow
from holdfast.simulation.wires import SimulatedWire

if TYPE_CHECKING:
    from holdfast.simulation.world import World

NOTICED_S = 20.0  # from a tear until the end that is not told of it knows, at most
LAG_S = (0.2, 3.0)
TIMES_SLOW = (1.2, 4.0)
SHORT_STALL_S = 10.0  # of the network: a look that began in it is not taken for a hang, as a rule
BAD_FOR_S = 1e6  # until somebody stops it
PAUSE = 0.5  # of the time after which who is silent is lost, a process is stopped at most
CONDITIONS = (
    ("xid-79", Severity.FATAL),
    ("link-down", Severity.ALERT),
    ("gpu-throttled", Severity.WARN),
)


def begin(world: "World") -> None:
    """From now on everything may happen that this world's hardship names."""
    for kind in world.hardship.rates:
        _plan(world, kind)


def _plan(world: "World", kind: str) -> None:
    world.env.after(world.env.about(1.0 / world.hardship.rate(kind)), _strike, world, kind)


def _strike(world: "World", kind: str) -> None:
    if not world.env.calm and not world.referees.over:
        FAULTS[kind](world)
        _plan(world, kind)


def _some_agent(world: "World") -> SimulatedAgent | None:
    living = world.living()
    return world.env.dice.choice(living) if living else None


def _worker_kills(world: "World") -> None:
    agent = _some_agent(world)
    if agent is not None and agent.run is not None and agent.run.alive:
        share = world.hardship.share("forkserver_deaths")
        if share and world.env.chance(share):
            agent.lose_forkserver()
            return
        rank = world.env.dice.choice(agent.run.alive)
        world.truth.kill(agent.run, rank, world.env.dice.choice((KILLED, CRASHED)))


def _rank_hangs(world: "World") -> None:
    """Of scripts that report their steps: nobody sees it of others."""
    agent = _some_agent(world)
    if agent is None or agent.run is None or not (agent.run.alive and world.hardship.instrumented):
        return
    if world.truth.hang(agent.run, world.env.dice.choice(agent.run.alive)):
        world.hangs(agent.run.group)


def _device_sick(world: "World") -> None:
    """Alerts may come again; a worker may die of what will not pass, before or after it is told."""
    agent = _some_agent(world)
    if agent is None or agent.frozen:
        return
    condition, severity = world.env.dice.choice(CONDITIONS)
    world.sicken(agent, condition, severity)
    if severity is Severity.ALERT:
        world.env.after(world.env.between(1.0, 3000.0), world.sicken, agent, condition, severity)
    elif severity is Severity.FATAL and world.env.chance(0.5):
        world.env.after(world.env.between(0.01, 10.0), _dies_of_it, world, agent)


def _dies_of_it(world: "World", agent: SimulatedAgent) -> None:
    if agent.alive and agent.run is not None and agent.run.alive:
        rank = world.env.dice.choice(agent.run.alive)
        world.truth.kill(agent.run, rank, world.env.dice.choice((KILLED, CRASHED)))


def _bad_numbers(world: "World") -> None:
    agent = _some_agent(world)
    if agent is not None and agent.run is not None and agent.run.alive:
        world.truth.spoil(agent.run)


def _node_deaths(world: "World") -> None:
    agent = _some_agent(world)
    if agent is not None:
        agent.die("its agent process was killed by SIGKILL")


def _spare_deaths(world: "World") -> None:
    state = world.control.state if world.control is not None else None
    nodes = state.nodes.values() if state is not None else ()
    waiting = [n.node for n in nodes if n.state is not NodeState.MEMBER]
    if waiting:
        world.agents[world.env.dice.choice(waiting)].die("its node was lost")


def _agent_freezes(world: "World") -> None:
    agent = _some_agent(world)
    if agent is not None and not agent.frozen:
        for_s = world.env.between(0.5, 600.0)
        agent.in_trouble(for_s + 20.0)
        agent.freeze()
        world.env.after(for_s, agent.wake)


def _mass_freezes(world: "World") -> None:
    """The file system that all agents use does not answer, say. Workers train on."""
    for_s = world.env.between(1.0, 3000.0)
    for agent in world.living():
        if not agent.frozen:
            agent.in_trouble(for_s + 20.0)
            agent.freeze()
            world.env.after(for_s, agent.wake)


def _suspensions(world: "World") -> None:
    """A laptop is closed: all that is on one machine stands still, and goes on a minute later, in
    any order. Nobody has been away for that, so nobody may be given up."""
    for_s = world.env.between(30.0, 90.0)
    for agent in world.living():
        if not agent.frozen:
            agent.freeze()
            world.env.after(for_s + world.env.between(0.001, 0.2), agent.wake)
    if world.control is not None:
        world.control.stall(for_s + world.env.between(0.001, 0.2))


def _node_hangs(world: "World") -> None:
    agent = _some_agent(world)
    if agent is not None and not agent.frozen:
        agent.in_trouble(float("inf"))
        agent.freeze()
        if agent.run is not None and agent.run.alive:
            world.truth.break_up(agent.run.group, f"{agent.node} hangs", all_fail=False)


def _partitions(world: "World") -> None:
    agent = _some_agent(world)
    if agent is not None and agent.reach:
        _cut(world, agent, world.env.between(0.5, 600.0))


def _cut(world: "World", agent: SimulatedAgent, for_s: float) -> None:
    agent.in_trouble(for_s + 20.0)
    agent.cut()
    world.env.after(for_s, agent.heal)
    if world.control is not None and world.control.machine == agent.node:
        world.control.lose(api=True, agents=True, for_s=for_s)


def _rack(world: "World") -> list[SimulatedAgent]:
    one = _some_agent(world)
    size = world.hardship.rack_size
    return [a for a in world.living() if one and a.number // size == one.number // size]


def _switch_cuts(world: "World") -> None:
    for_s = world.env.between(0.5, 600.0)
    for agent in _rack(world):
        if agent.reach:
            _cut(world, agent, for_s)
        if agent.run is not None and agent.run.alive:
            world.truth.break_up(agent.run.group, "a switch failed", all_fail=True)


def _rack_losses(world: "World") -> None:
    for agent in _rack(world):
        world.env.after(3 * world.env.dice.random(), _lose, world, agent, "its rack lost power")


def _power_losses(world: "World") -> None:
    for agent in world.living():
        _lose(world, agent, "power was lost")


def _lose(world: "World", agent: SimulatedAgent, how: str) -> None:
    """A machine dies, with the controller if it is there."""
    if world.control is not None and world.control.machine == agent.node:
        world.control.crash(torn=True)
    agent.die(how)


def _blips(world: "World") -> None:
    agent = _some_agent(world)
    if agent is not None:
        agent.disconnect()


def _preemptions(world: "World") -> None:
    agent = _some_agent(world)
    if agent is not None:
        agent.end(world.hardship.limits.stop_grace_s)


def _bad_images(world: "World") -> None:
    """Whatever is started from now on connects, and dies or gives itself up before it is ready."""
    world.startless = True
    world.env.after(world.env.between(30.0, 7200.0), _image_is_good, world)


def _image_is_good(world: "World") -> None:
    world.startless = False


def _store_losses(world: "World") -> None:
    agent = _some_agent(world)
    if agent is not None:
        agent.lose_store()


def _crash_loops(world: "World") -> None:
    world.truth.crashing = True
    world.env.after(world.env.between(5.0, 300.0), _loop_ends, world)


def _loop_ends(world: "World") -> None:
    world.truth.crashing = False


def _storage_outages(world: "World") -> None:
    world.truth.lose_storage()
    world.env.after(world.env.between(5.0, 2000.0), _storage_is_back, world)


def _storage_is_back(world: "World") -> None:
    world.truth.storage_away = False


def _controller_crashes(world: "World") -> None:
    if world.control is not None:
        world.control.crash()


def _controller_stalls(world: "World") -> None:
    if world.control is not None:
        world.control.stall(world.env.between(0.5, 60.0))


# ── what is slow, or wrong, and does not fail ──


def _stragglers(world: "World") -> None:
    """A node or one of its ranks; only one at a time, so that most are sound."""
    agent = _some_agent(world)
    if agent is None or any(other.slow is not None for other in world.living()):
        return
    dice, times = world.env.dice, world.env.between(*TIMES_SLOW)
    place = dice.choice((None, dice.randrange(agent.workers)))
    slow = Slow(times, place, starved=dice.random() < 0.5, since=world.env.now)
    agent.slow = slow
    _other_pace(world, agent)
    world.env.after(world.env.between(60.0, 7200.0), _is_fast, world, agent, slow)


def _is_fast(world: "World", agent: SimulatedAgent, slow: Slow) -> None:
    if agent.slow is slow:
        agent.slow = None
        _other_pace(world, agent)


def _other_pace(world: "World", agent: SimulatedAgent) -> None:
    if agent.run is not None:
        world.truth.change_pace(agent.run.group)


def _bit_flips(world: "World") -> None:
    agent = _some_agent(world)
    if agent is not None and agent.run is not None and agent.run.alive:
        world.truth.flip(agent.run)


def _flaky_networks(world: "World") -> None:
    """Its agent counts errors, all messages are late, and training is slower, or stands still."""
    agent = _some_agent(world)
    if agent is None or agent.frozen or agent.drags > 1:
        return
    for_s = world.env.between(2.0, 120.0)
    agent.in_trouble(for_s + 30.0)
    if agent.wire is not None:
        agent.wire.lag_s = world.env.between(*LAG_S)
    agent.drags = world.env.between(1.1, 5.0)
    world.referees.blame.networks.began(agent.node)
    world.sicken(agent, "link-errors", Severity.WARN)
    if world.env.chance(0.3):
        world.sicken(agent, "link-down", Severity.ALERT)
    if world.env.dice.random() < 0.5:
        agent.stalls_until = world.env.now + for_s
        if agent.run is not None and world.truth.stall(agent.run.group, for_s):
            if for_s > SHORT_STALL_S:
                world.referees.blame.stalled(agent.run.group.attempt)
            world.hangs(agent.run.group)
    _other_pace(world, agent)
    world.env.after(for_s, _network_is_back, world, agent)


def _network_is_back(world: "World", agent: SimulatedAgent) -> None:
    agent.drags = 1.0
    if agent.wire is not None:
        agent.wire.hurry()
    agent.tell_condition("link-errors", Severity.OK)
    agent.tell_condition("link-down", Severity.OK)
    world.env.after(MEASURED_S, world.referees.blame.networks.over, agent.node)
    _other_pace(world, agent)


# ── links ──


def _some_wire(world: "World") -> SimulatedWire | None:
    agent = _some_agent(world)
    return agent.wire if agent is not None else None


def _link_stalls(world: "World") -> None:
    wire = _some_wire(world)
    if wire is not None:
        for_s = world.env.between(0.5, 60.0)
        wire.agent.in_trouble(for_s + 30.0)
        up = world.env.dice.random() < 0.5
        wire.stall(up=up, down=not up)
        world.env.after(for_s, wire.flow)


def _blackouts(world: "World") -> None:
    """A link that is switched over carries nothing; one that takes long is taken for a dead one."""
    wire = _some_wire(world)
    if wire is not None:
        short_s = DARK * world.hardship.heartbeat_timeout_s
        short = world.env.dice.random() < 0.5
        for_s = short_s * (world.env.between(0.5, 1.0) if short else world.env.between(1.0, 4.0))
        if for_s > short_s:
            wire.agent.in_trouble(for_s + 30.0)
        wire.stall(up=True, down=True)
        world.env.after(for_s, wire.flow)


def _pauses(world: "World") -> None:
    """An agent is stopped, or starved, and its machine is well."""
    agent = _some_agent(world)
    if agent is not None and not agent.frozen:
        for_s = PAUSE * world.hardship.heartbeat_timeout_s
        agent.freeze()
        world.env.after(world.env.between(0.1, for_s), agent.wake)


def _half_opens(world: "World") -> None:
    wire = _some_wire(world)
    if wire is not None:
        wire.agent.in_trouble(60.0)
        wire.stall(up=True, down=True)


def _link_tears(world: "World") -> None:
    wire = _some_wire(world)
    if wire is not None:
        wire.agent.in_trouble(NOTICED_S + 30.0)
        late_s = world.env.between(0.01, NOTICED_S)
        first = world.env.dice.random() < 0.5
        wire.tear(agent_s=0.0 if first else late_s, control_s=late_s if first else 0.0)


def _link_lags(world: "World") -> None:
    wire = _some_wire(world)
    if wire is not None:
        for_s = world.env.between(5.0, 600.0)
        wire.agent.in_trouble(for_s + 30.0)
        wire.lag_s = world.env.between(*LAG_S)
        world.env.after(for_s, wire.hurry)


# ── the controller's machine ──


def _api_cuts(world: "World") -> None:
    if world.control is not None:
        world.control.lose(api=True, agents=False, for_s=world.env.between(0.5, 300.0))


def _controller_cuts(world: "World") -> None:
    if world.control is not None:
        world.control.lose(api=False, agents=True, for_s=world.env.between(0.5, 300.0))


def _controller_isolations(world: "World") -> None:
    control, for_s = world.control, world.env.between(0.5, 300.0)
    if control is not None:
        near = world.agent(control.machine)
        if near is not None and near.alive and near.reach:
            _cut(world, near, for_s)
        else:
            control.lose(api=True, agents=True, for_s=for_s)


def _machine_losses(world: "World") -> None:
    control = world.control
    if control is not None:
        near = world.agent(control.machine)
        control.crash(torn=True)
        if near is not None:
            near.die("")


# ── duties ──


def _duty_deaths(world: "World") -> None:
    control = world.control
    if control is not None:
        duty = world.env.dice.choice(list(control.duties.values()))
        duty.broken = world.env.chance(world.hardship.share("broken_duties"))
        duty.fail()


def _bad_in_groups(world: "World") -> None:
    """One at a time, for good."""
    agent = _some_agent(world)
    if agent is not None and not any(other.bad_in_groups for other in world.living()):
        agent.bad_in_groups = True
        world.referees.blame.groups.bad(agent.node)
        _stands_with(world, agent)


def _stands_with(world: "World", agent: SimulatedAgent) -> None:
    """Whatever it takes part in stands still after some steps."""
    if world.env.calm or not agent.alive or world.referees.over:
        return
    run = agent.run
    goes_on = run is not None and run.alive and run.group.stall.until <= world.env.now
    if run is not None and goes_on and world.truth.stall(run.group, BAD_FOR_S):
        world.referees.blame.stalled(run.group.attempt)
        _has_saved(world, agent.node, run.group)
        world.hangs(run.group)
    world.env.after(world.env.between(1.0, 60.0), _stands_with, world, agent)


def _has_saved(world: "World", node: str, group: Group) -> None:
    """There is a checkpoint from which groups can repeat a step. What tiers do is not simulated, so
    nobody goes back to it."""
    step = world.truth.step(group)
    if world.control is not None and not world.control.stalled:
        world.control.put(
            CheckpointCommitted(
                node=node, tier="shared", attempt=group.attempt, step=step, seconds=1.0, bytes=1
            )
        )


# ── what checks find ──


def _shared_faults(world: "World") -> None:
    """What all nodes share is broken for a while."""
    if not world.env.shared_fault:
        world.share(WRONG)
        world.env.after(world.env.between(60.0, 7200.0), world.share)


def _disk_faults(world: "World") -> None:
    """The next node has a disk that only its check finds to be broken."""
    world.bad_disk = True


def _refusals(world: "World") -> None:
    """The folder that all nodes share takes no files for a while: each agent sees it, and saves
    fail. Nobody is to be given up for it, and nothing stopped."""
    control = world.control
    if control is None or control.stalled:
        return
    told = [agent for agent in world.living() if not agent.frozen]
    for agent in told:
        agent.tell_condition("folder-denied", Severity.WARN)
    attempt, why = control.state.attempt, "/checkpoints/shared: access is denied"
    for node in list(control.state.ranks.values()):
        control.put(CheckpointFailed(node=node, tier="shared", attempt=attempt, step=1, why=why))
    world.env.after(world.env.between(60.0, 7200.0), _takes_files, told)


def _takes_files(told: list[SimulatedAgent]) -> None:
    for agent in told:
        agent.tell_condition("folder-denied", Severity.OK)


def _updates(world: "World") -> None:
    """Of one person, who asks again and again."""
    control, dice = world.control, world.env.dice
    if control is None or control.stalled:
        return
    control.put(
        UpdateRequested(
            by="a person",
            id=f"{dice.random()}",
            sets={KIND: dice.choice(KINDS)},
            when=dice.choice(("now", "next-step", "next-step", "next-failure")),
            canary=dice.random() < 0.3,
            back=dice.random() < 0.2,
        )
    )


def _image_updates(world: "World") -> None:
    if world.control is not None and not world.control.stalled:
        image = world.images.new()
        world.control.put(UpdateRequested(by="a person", id=image, image=image))


FAULTS: dict[str, Callable[["World"], None]] = {
    "worker_kills": _worker_kills,
    "rank_hangs": _rank_hangs,
    "device_sick": _device_sick,
    "bad_numbers": _bad_numbers,
    "node_deaths": _node_deaths,
    "spare_deaths": _spare_deaths,
    "agent_freezes": _agent_freezes,
    "node_hangs": _node_hangs,
    "mass_freezes": _mass_freezes,
    "suspensions": _suspensions,
    "partitions": _partitions,
    "switch_cuts": _switch_cuts,
    "rack_losses": _rack_losses,
    "power_losses": _power_losses,
    "blips": _blips,
    "preemptions": _preemptions,
    "bad_images": _bad_images,
    "image_updates": _image_updates,
    "store_losses": _store_losses,
    "crash_loops": _crash_loops,
    "storage_outages": _storage_outages,
    "controller_crashes": _controller_crashes,
    "controller_stalls": _controller_stalls,
    "link_stalls": _link_stalls,
    "half_opens": _half_opens,
    "blackouts": _blackouts,
    "pauses": _pauses,
    "link_tears": _link_tears,
    "link_lags": _link_lags,
    "duty_deaths": _duty_deaths,
    "api_cuts": _api_cuts,
    "controller_cuts": _controller_cuts,
    "controller_isolations": _controller_isolations,
    "machine_losses": _machine_losses,
    "stragglers": _stragglers,
    "bit_flips": _bit_flips,
    "flaky_networks": _flaky_networks,
    "updates": _updates,
    "bad_in_groups": _bad_in_groups,
    "shared_faults": _shared_faults,
    "disk_faults": _disk_faults,
    "refusals": _refusals,
    **OF_ERRORS,
    **OF_DEVICES,
    "slow_ports": slow_ports,
}
