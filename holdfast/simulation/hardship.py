"""How hard a world is: a plain struct, drawn from its seed.

Swarm testing (Groce et al., ISSTA 2012): each kind of hardship is on in some worlds and off in the
others, and its rate is drawn too. A world with everything at once hides what a world with one thing
shows. `draw` is the only place where chance decides about a whole world; what happens in it is
decided when it happens.
"""

import math
from random import Random

import msgspec

from holdfast.controller import Limits

RATES: dict[str, tuple[float, float]] = {
    "worker_kills": (2, 80),  # a worker is killed or crashes
    "node_deaths": (1, 40),  # agent and workers gone at once
    "agent_freezes": (1, 20),  # an agent hangs; its workers train on
    "node_hangs": (0.5, 10),  # everything on the node hangs
    "partitions": (1, 30),  # a node cannot reach the controller; its workers train on
    "switch_cuts": (0.5, 10),  # a rack cannot reach anybody
    "rack_losses": (0.3, 6),  # every node of a rack dies within seconds
    "power_losses": (0.1, 2),  # every node dies
    "blips": (2, 100),  # a connection breaks and comes back
    "preemptions": (1, 20),  # the engine takes a node back, with notice
    "spare_deaths": (1, 40),  # a node dies that is not training
    "controller_crashes": (1, 20),
    "controller_stalls": (1, 60),  # the controller is stopped and goes on later
    "store_losses": (1, 20),  # the fresh store of a node dies
    "crash_loops": (0.2, 4),  # for some time every attempt crashes early
    "storage_outages": (0.5, 8),  # for some time every rank fails to read its data
    "link_stalls": (2, 100),  # in one direction of a connection nothing moves for some time
    "half_opens": (1, 30),  # over a connection nothing arrives any more, and nobody is told
    "link_tears": (2, 60),  # a connection breaks, and one end learns of it later
    "link_lags": (1, 20),  # over a connection everything takes seconds
    "duty_deaths": (1, 40),  # a task of the driver dies: that which hears of deaths, and others
    "bad_numbers": (1, 20),  # the loss of one rank is NaN, and soon all parameters are
    "api_cuts": (2, 40),  # the controller cannot reach the API, in a cluster
    "controller_cuts": (1, 20),  # it cannot reach agents on other machines
    "controller_isolations": (1, 20),  # neither of both
    "rank_hangs": (2, 60),  # a worker stops moving and does not die
    "device_sick": (2, 60),  # a GPU, disk or link has a fault, an alert, or is only slow
    "machine_losses": (1, 20),  # its machine dies, and the node that is there
    "stragglers": (0.5, 4),  # a node or one of its ranks is a few times as slow for a while
    "bit_flips": (0.5, 4),  # a rank has other parameters than all others from some step on
    "flaky_networks": (0.5, 6),  # a node's links lose packets: all wait, or are slower
    "updates": (4, 100),  # somebody wants another version, which may be worth nothing
    "bad_in_groups": (1, 12),  # a machine is, for good, and one at a time
    "shared_faults": (2, 20),  # for some time every machine fails the same check
    "disk_faults": (1, 10),  # a new node has a disk that fails its check
    "bad_images": (0.5, 6),  # for a while no new node becomes ready: each dies at its start
    "image_updates": (2, 12),  # somebody wants another image, of which some do not work
    "mass_freezes": (0.5, 6),  # every agent stands still at once, for what they share
    "blackouts": (4, 100),  # for seconds a connection carries nothing, as its kernel knows
    "pauses": (4, 100),  # an agent is stopped for seconds, and its machine acknowledges
    "refusals": (1, 10),  # for some time the folder that all nodes share takes no files
}
"""Times a day, lowest and highest, where it is on at all."""
ERRORS: dict[str, tuple[float, float]] = {
    "bad_batches": (0.2, 2),  # with one an error of a device comes, on whichever node, or one rank
    "bad_devices": (1, 12),  # the workers of a node meet errors of their device again and again
    "bad_hosts": (0.5, 4),  # those of a node raise an error of the script again and again
    "flaky_scripts": (0.5, 4),  # any worker may raise that error, again and again
    "crashing_updates": (0.5, 6),  # a version that always fails on the device at one step
}
"""The same, in worlds with these seeds; all others stay what they were."""
ERROR_SEEDS = range(1_000_000, 2_000_000)
PORTS: dict[str, tuple[float, float]] = {
    "slow_ports": (8, 60),  # for hours a node's port carries far less than others, and no errors
    "worker_kills": (8, 60),  # as above: links are measured where an attempt ends
    "crash_loops": (2, 20),  # or where attempts fail one after the other
}
"""The same, in worlds with these seeds, most of which check machines."""
PORT_SEEDS = range(2_000_000, 3_000_000)
PORTS_CHECKED = 0.8
DEAD: dict[str, tuple[float, float]] = {
    "dead_devices": (20, 200),  # whatever runs on a machine dies soon, for good
    "rack_devices": (2, 20),  # the same, of all machines of a rack
}
"""The same, in worlds with these seeds, which have spares."""
DEAD_SEEDS = range(4_000_000, 5_000_000)
SUCCESSIONS: dict[str, tuple[float, float]] = {
    "worker_kills": (40, 200),  # as above: there are many attempts
    "machine_losses": (10, 40),  # with the one on which the controller is
    "controller_crashes": (10, 60),
    "controller_isolations": (5, 20),
}
"""The same, in worlds with these seeds, which are clusters: one controller follows the other, and
few orders are old when that happens."""
SUCCESSION_SHARES = {"crash_midway": (0.1, 0.5)}
SUCCESSION_SEEDS = range(3_000_000, 4_000_000)
LATER = {kind: RATES[kind] for kind in ("storage_outages",)}
"""Drawn by dice of their own, so that a world without them is the one it was before they came."""
LINKS = {
    kind: RATES[kind]
    for kind in ("link_stalls", "half_opens", "link_tears", "link_lags", "duty_deaths")
}
"""The same, by other dice."""
NUMBERS = {kind: RATES[kind] for kind in ("bad_numbers",)}
"""The same, by other dice."""
CLUSTER = {
    kind: RATES[kind]
    for kind in ("api_cuts", "controller_cuts", "controller_isolations", "machine_losses")
}
"""The same, by dice of their own, in worlds that are clusters."""
HANGS = {kind: RATES[kind] for kind in ("rank_hangs",)}
"""The same; hangs are looked for where there are any."""
DEVICES = {kind: RATES[kind] for kind in ("device_sick",)}
"""The same, by dice of their own."""
STRAGGLERS = {kind: RATES[kind] for kind in ("stragglers",)}
FLIPS = {kind: RATES[kind] for kind in ("bit_flips",)}
FLAKY = {kind: RATES[kind] for kind in ("flaky_networks",)}
"""The same: each of these three by dice of its own."""
UPDATES = {kind: RATES[kind] for kind in ("updates",)}
"""The same, in a few worlds."""
GROUPS = {kind: RATES[kind] for kind in ("bad_in_groups",)}
"""The same; groups may repeat steps there."""
FREEZES = {kind: RATES[kind] for kind in ("mass_freezes",)}
"""The same, in a few worlds."""
IMAGES = {kind: RATES[kind] for kind in ("bad_images",)}
"""The same."""
ROLLOUTS = {kind: RATES[kind] for kind in ("image_updates",)}
"""The same, of clusters."""
DARKNESS = {kind: RATES[kind] for kind in ("blackouts", "pauses")}
"""The same, both in the same worlds: whose machine answers nothing is lost sooner there."""
OF_CHECKS = {kind: RATES[kind] for kind in ("shared_faults", "disk_faults", "refusals")}
"""The same, in all worlds in which machines are checked."""
CLUSTERS = 1 / 3  # of all worlds: they cost half as much again as others
STANDBYS = 0.5  # of all clusters: those in which a second controller waits
IN_PROCESS = 0.2  # of all worlds: workers that live are kept over attempts
CHECKED = 0.08  # share of worlds in which machines of spares are checked, and in doubt all
ROLLED = 0.3  # share of clusters in which nodes get another image one by one
STARTLESS = 0.08  # share of worlds in which new nodes die at their start, for a while
FROZEN = 0.08  # share of worlds in which all agents stand still now and then
UPDATED = 0.08  # share of worlds in which somebody updates the job
GROUPED = 0.08  # share of worlds with machines that are bad only in a group
POISONED = 0.08  # share of worlds with bad batches, which may be left out
DARKENED = 0.1  # share of worlds in which kernels tell who answers, and links fail for seconds
ELASTIC = 0.12  # share of worlds in which the number of nodes may change

HANG_TIMEOUT_S = 600.0
KEEPS = "keep_global_batch"

SHARES: dict[str, tuple[float, float]] = {
    "crash_midway": (0.01, 0.5),  # of decisions: the controller dies between two of its effects
    "stalls_midway": (0.01, 0.3),  # of decisions: the controller is stopped after its effects
    "stillborn": (0.05, 0.6),  # of new nodes: dies before it registers
    "slow_nodes": (0.02, 0.2),  # of new nodes: registers too late
    "odd_nodes": (0.01, 0.1),  # of new nodes: has another number of workers
    "slow_first_steps": (0.1, 1.0),  # of attempts: first step takes minutes
    "stuck_stops": (0.005, 0.05),  # of stops on a node: takes longer than is allowed
    "lost_stores": (0.1, 1.0),  # of stops on a node: has no fresh store in time
    "late_messages": (0.001, 0.02),  # of messages: takes seconds
    "slow_acks": (0.1, 1.0),  # of acknowledgements: travel, and may be lost
    "slow_fences": (0.1, 1.0),  # of fences: take seconds
    "silent_deaths": (0.1, 1.0),  # of deaths: the engine does not notice, or a minute late
    "stuck_survivors": (0.1, 0.9),  # of survivors of a broken attempt: hang instead of failing
    "torn_copies": (0.05, 0.5),  # of ranks: the newest snapshot is not whole when training breaks
    "damaged_copies": (0.02, 0.2),  # of ranks: its own newest copy cannot be read later
    "forkserver_deaths": (0.1, 0.8),  # of kills of workers: it is the forkserver that dies
    "broken_duties": (0.1, 0.9),  # of tasks that die: it fails in this process for ever
    "late_nodes": (0.3, 0.9),  # of new nodes: minutes pass until there is a machine for it
}
"""Probabilities, lowest and highest, where it is on at all."""
LINK_SHARES = {kind: SHARES[kind] for kind in ("broken_duties",)}
LATE_NODES = {kind: SHARES[kind] for kind in ("late_nodes",)}
"""By other dice, in worlds whose size may change."""
LATE = (
    LATER
    | LINKS
    | NUMBERS
    | CLUSTER
    | HANGS
    | DEVICES
    | STRAGGLERS
    | FLIPS
    | FLAKY
    | UPDATES
    | GROUPS
    | OF_CHECKS
    | FREEZES
    | IMAGES
    | ROLLOUTS
    | DARKNESS
)
FIRST = {k: v for k, v in RATES.items() if k not in LATE}
FIRST_SHARES = {k: v for k, v in SHARES.items() if k not in LINK_SHARES | LATE_NODES}


class Hardship(msgspec.Struct, frozen=True, kw_only=True):
    """One world: the job, how long it is hard, and what goes wrong how often."""

    seed: int
    hours: float
    limits: Limits
    workers: int
    rack_size: int
    step_s: float
    snapshot_every: int
    instrumented: bool
    total_steps: int  # 0: more than there is time for
    user_error_step: int  # 0: none
    quiet_error: bool  # that one is an exit with status 0
    early_end_step: int  # the script leaves its loop there; 0: never
    stop_after_h: float  # 0: nobody asks
    heartbeat_timeout_s: float
    delay_s: float  # of a message, mean
    telemetry_s: float  # between two looks at the progress of everybody
    clock_step_s: float  # of the wall clock, at each restart of the controller, to either side
    rates: dict[str, float]  # times a day
    shares: dict[str, float]
    check_every: int = 0  # steps after which replicas are compared; 0: never
    poison: tuple[int, ...] = ()  # batches that always lead to bad numbers
    cluster: bool = False  # the controller's disk goes with its machine, and a lease changes hands
    standby: bool = True  # another one takes the lease that is given back
    cold_nodes: float = 0.0  # share of nodes whose workers are ready later; not drawn

    def rate(self, kind: str) -> float:
        """Times a second."""
        return self.rates.get(kind, 0.0) / 86_400

    def share(self, kind: str) -> float:
        """The probability, 0 where this hardship is off."""
        return self.shares.get(kind, 0.0)


def draw(seed: int, *, hours: float = 24.0, nodes: int = 16) -> Hardship:
    """The world of this seed, with a job of at most `nodes` nodes and spares. Every third is a
    cluster, in which a controller goes with its machine and another one takes its lease."""
    dice, later = Random(f"hardship {seed}"), Random(f"later hardship {seed}")
    links, lease = Random(f"hardship of links {seed}"), Random(f"hardship of leases {seed}")
    hangs = _some(Random(f"hardship of hangs {seed}"), HANGS)
    grouped = _seldom(Random(f"hardship of nodes in groups {seed}"), GROUPS, GROUPED)
    watch_s = HANG_TIMEOUT_S if hangs or grouped else 0.0
    slowness, flips = Random(f"hardship of slowness {seed}"), Random(f"hardship of flips {seed}")
    stragglers = _some(slowness, STRAGGLERS)
    told = slowness.choice(("tell", "replace")) if stragglers else "off"
    cluster = lease.random() < CLUSTERS or seed in SUCCESSION_SEEDS
    batches = Random(f"hardship of batches {seed}")
    poisoned = batches.random() < POISONED
    spares = dice.choice((0, 1, 1, 2, 3)) if nodes > 3 else dice.choice((0, 1))
    elastic = Random(f"hardship of sizes {seed}")
    changes = elastic.random() < ELASTIC
    step_s = _between(dice, 0.5, 20)
    steps = hours * 3600 / step_s
    world = Hardship(
        seed=seed,
        hours=hours,
        limits=_in_replicas(
            _keeping(
                _sized(
                    _limits(dice, later, max(1, nodes - spares), spares, watch_s, told),
                    *(elastic, changes),
                ),
                Random(f"hardship of modes {seed}"),
                group_tests=bool(grouped),
            ),
            Random(f"hardship of replicas {seed}"),
            skips=batches.choice((1, 3, 20)) if poisoned else 0,
        ),
        workers=dice.choice((1, 1, 2)),
        rack_size=dice.choice((2, 4, 8)),
        step_s=step_s,
        snapshot_every=dice.choice((1, 1, 2, 10, 50)),
        instrumented=dice.random() < 0.9,
        total_steps=int(_sometimes(dice, 0.15, 1 + steps * dice.random())),
        # a bug that nobody can know to be the same one is tried for ever
        user_error_step=int(_sometimes(dice, 0.15, 1 + steps * dice.random())) * (not changes),
        stop_after_h=_sometimes(dice, 0.15, hours * dice.random()),
        heartbeat_timeout_s=dice.choice((4.0, 5.0, 5.0, 30.0)),
        delay_s=_between(dice, 0.0005, 0.2),
        telemetry_s=_between(dice, 600, 3600),
        clock_step_s=_sometimes(dice, 0.3, _between(dice, 1, 7200)),
        rates=_some(dice, FIRST)
        | _some(later, LATER)
        | _some(links, LINKS)
        | hangs
        | _some(Random(f"hardship of numbers {seed}"), NUMBERS)
        | _some(Random(f"hardship of devices {seed}"), DEVICES)
        | _some(lease, CLUSTER if cluster else {})
        | stragglers
        | _some(flips, FLIPS)
        | _some(Random(f"hardship of networks {seed}"), FLAKY)
        | grouped
        | _rare(seed, ROLLED * cluster),
        shares=_some(dice, FIRST_SHARES)
        | _some(links, LINK_SHARES)
        | {k: _between(elastic, *b) for k, b in LATE_NODES.items() if changes},
        check_every=flips.choice((1, 5, 20, 100)),
        poison=_batches(batches, steps) if poisoned else (),
        cluster=cluster,
        standby=Random(f"hardship of standbys {seed}").random() < STANDBYS,
        quiet_error=later.random() < 0.3,
        early_end_step=int(_sometimes(later, 0.1, 1 + steps * later.random())),
    )
    return _as_its_seed_asks(_checked(world, Random(f"hardship of checks {seed}")))


def _limits(
    dice: Random, later: Random, nodes: int, spares: int, hang_timeout_s: float, stragglers: str
) -> Limits:
    max_restarts = dice.choice((2, 5, 20, 100, 1000, 1000, 1000))
    return Limits(
        node_count=nodes,
        spare_count=spares,
        max_restarts=max_restarts,
        exact=max_restarts < 20 and later.random() < 0.5,
        window_s=dice.choice((600.0, 3600.0)),
        restart_grace_s=dice.choice((0.0, 2.0, 2.0, 10.0)),
        stop_grace_s=15.0,
        node_wait_s=dice.choice((120.0, 600.0)),
        hang_timeout_s=hang_timeout_s,
        stragglers=stragglers,
        copies=1,  # each node's snapshots are at its buddy, too
    )


def _sized(limits: Limits, dice: Random, changes: bool) -> Limits:
    """The job may train with fewer nodes, if it `changes` its size at all."""
    fewest = dice.randint(1, limits.node_count)
    batch = dice.choice((KEEPS, "scale_lr"))
    return msgspec.structs.replace(limits, min_nodes=fewest, batch=batch) if changes else limits


def _keeping(limits: Limits, dice: Random, *, group_tests: bool) -> Limits:
    """Some jobs keep the processes of survivors, as replicas where their size may change, and some
    check machines."""
    kept, checks = dice.random() < IN_PROCESS, "spares" if dice.random() < CHECKED else ""
    replicas = kept and limits.elastic
    kinds = {"in_process": kept, "replicas": replicas, "checks": checks}
    return msgspec.structs.replace(limits, group_tests=group_tests, **kinds)


def _checked(world: Hardship, dice: Random) -> Hardship:
    """Where machines are checked, checks fail."""
    if not world.limits.checks:
        return world
    found = {kind: _between(dice, *bounds) for kind, bounds in OF_CHECKS.items()}
    return msgspec.structs.replace(world, rates=world.rates | found)


def _as_its_seed_asks(world: Hardship) -> Hardship:
    if world.seed in PORT_SEEDS:
        return _with_slow_ports(world)
    if world.seed in SUCCESSION_SEEDS:
        return _with_successions(world)
    return _with_dead_devices(world) if world.seed in DEAD_SEEDS else world


def _with_slow_ports(world: Hardship) -> Hardship:
    dice, limits = Random(f"hardship of ports {world.seed}"), world.limits
    found = {kind: _between(dice, *bounds) for kind, bounds in PORTS.items()}
    if dice.random() < PORTS_CHECKED:
        limits = msgspec.structs.replace(limits, checks="spares")
    return msgspec.structs.replace(world, limits=limits, rates=world.rates | found)


def _with_dead_devices(world: Hardship) -> Hardship:
    dice = Random(f"hardship of devices for good {world.seed}")
    found = {kind: _between(dice, *bounds) for kind, bounds in DEAD.items()}
    limits = msgspec.structs.replace(
        world.limits,
        spare_count=max(2, world.limits.spare_count),
        max_restarts=dice.choice((5, 10, 20)),
        exact=False,
    )
    return msgspec.structs.replace(world, limits=limits, rates=world.rates | found)


def _with_successions(world: Hardship) -> Hardship:
    dice = Random(f"hardship of successions {world.seed}")
    found = {kind: _between(dice, *bounds) for kind, bounds in SUCCESSIONS.items()}
    shares = {kind: _between(dice, *bounds) for kind, bounds in SUCCESSION_SHARES.items()}
    rates, shares = world.rates | found, world.shares | shares
    return msgspec.structs.replace(world, rates=rates, shares=shares)


def _in_replicas(limits: Limits, dice: Random, skips: int) -> Limits:
    """Some jobs of replicas have several nodes in each. All may leave out so many batches."""
    limits = msgspec.structs.replace(limits, skip_batches=skips)
    each = dice.choice((1, 2, 2, 3))
    count = limits.node_count - limits.node_count % each
    if not limits.replicas or count < 2 * each:
        return limits
    fewest = max(each, min(limits.min_nodes - limits.min_nodes % each, count - each))
    return msgspec.structs.replace(limits, nodes_each=each, node_count=count, min_nodes=fewest)


def _some(dice: Random, bounds: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Each kind is on in about every third world, all of them alike in how they are drawn."""
    on_share = dice.choice((0.15, 0.35, 0.6))
    return {k: _between(dice, *b) for k, b in bounds.items() if dice.random() < on_share}


def _seldom(dice: Random, bounds: dict[str, tuple[float, float]], share: float) -> dict[str, float]:
    """In this share of all worlds."""
    return {k: _between(dice, *b) for k, b in bounds.items() if dice.random() < share}


def _both(dice: Random, bounds: dict[str, tuple[float, float]], share: float) -> dict[str, float]:
    """All of these kinds, or none, in this share of all worlds."""
    return {k: _between(dice, *b) for k, b in bounds.items()} if dice.random() < share else {}


def _rare(seed: int, rolled: float) -> dict[str, float]:
    """Kinds that few worlds have, each by dice of its own."""
    return (
        _seldom(Random(f"hardship of updates {seed}"), UPDATES, UPDATED)
        | _seldom(Random(f"hardship of freezes {seed}"), FREEZES, FROZEN)
        | _seldom(Random(f"hardship of images {seed}"), IMAGES, STARTLESS)
        | _both(Random(f"hardship of darkness {seed}"), DARKNESS, DARKENED)
        | _seldom(Random(f"hardship of rollouts {seed}"), ROLLOUTS, rolled)
        | _some(Random(f"hardship of errors {seed}"), ERRORS if seed in ERROR_SEEDS else {})
    )


def _batches(dice: Random, steps: float) -> tuple[int, ...]:
    """A few, in the first hours."""
    return tuple(sorted({dice.randrange(1, 2 + int(steps / 4)) for _ in range(dice.randint(1, 4))}))


def _between(dice: Random, low: float, high: float) -> float:
    return low * math.exp(dice.random() * math.log(high / low))


def _sometimes(dice: Random, share: float, value: float) -> float:
    return value if dice.random() < share else 0.0
