"""What a job must survive, with real processes: each sentence once, when HOLDFAST_TEST_MORE asks.

Every story ends with the job's success, books that balance, losses that are the same wherever a
step was done again, and nothing left behind (`nothing_left`). What it costs is in the incidents.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from holdfast import journal
from holdfast.controller import Controller, Limits, Phase
from holdfast.events import ControllerResumed, Event, NodeLost, UpdateRequested
from holdfast.spec import job_from_yaml
from holdfast.status import JobStatus
from tests.end_to_end.local.jobs import TOGETHER, RunningJob, small
from tests.end_to_end.local.test_elastic import each_step_had_its_samples_once, of_three_nodes
from tests.more import long
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left"), long]

OFFSETS_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)  # between two faults: all phases of a recovery
SUSPENDED_S, SHORTLY_S = 60.0, 10.0
ROUNDS_MAX = 5
RECOVERY = {Phase.RECOVERING, Phase.STARTING}
WIDE = 500_000  # outputs of a model whose state takes seconds to save at 1 MiB/s
STORM_FAULTS = 34  # in each of the three modes


def kill_worker(job: RunningJob, rank: int = 1) -> None:
    os.kill(job.worker(rank), signal.SIGKILL)


def loses_its_controller(job: RunningJob) -> None:
    """It is gone, and another one is told to go on."""
    job.kill_controller()
    job.resume()
    job.wait_until(lambda s: s.controller == "alive", "it is resumed")


def let_pass(seconds: float) -> None:
    """Time itself is what is tested."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def trains(job: RunningJob, attempt: int) -> None:
    """Wait until a later attempt has done steps, and the incident is over."""
    job.wait_until(
        lambda s: s.attempt > attempt and s.phase == "running" and _closed(job), "it trains again"
    )


def _closed(job: RunningJob) -> bool:
    found = job.incidents()
    return not found or found[-1].ended_at is not None


def finishes(job: RunningJob, *, alike: bool = True) -> None:
    """To its last step, each step with one loss only; not `alike` where others, replicas that were
    lost, may take part in a step that is done again."""
    job.wait_end()
    assert (job.out / "final.pt").exists()
    assert not alike or len(job.losses()) > 1


def set_steps(job: RunningJob, more: int) -> None:
    """Let the job end soon; an update while it trains, as a person would."""
    steps = (job.status().step or 0) + more
    assert holdfast("update", job.name, "--set", f"steps={steps}").returncode == 0


def endless(home: Path, **spec: Any) -> RunningJob:
    return small(home, args=["--steps", "1000000", "--pause", "0.05"], **spec).start()


@pytest.mark.parametrize("loses", [False, True], ids=lambda loses: f"controller-dies={loses}")
@pytest.mark.parametrize("mode", ["processes", "in_process", "replicas"])
def test_a_second_fault_in_every_phase_of_recovery_from_the_first(
    home: Path, mode: str, loses: bool
) -> None:
    elastic = {"elasticity": {"min_nodes": 1}} if mode == "replicas" else {}
    job = endless(home, spares=2, recovery={"max_restarts": 1000, "mode": mode}, **elastic)
    job.wait_step(5)
    spares_wait(job)
    for number, offset_s in enumerate(OFFSETS_S * ROUNDS_MAX):
        if number >= len(OFFSETS_S) and phases_of(job) >= RECOVERY:
            break
        attempt = job.status().attempt
        victim = job.agent(job.member(number % 2))
        kill_worker(job, rank=1 - number % 2)
        job.wait_until(lambda s, a=attempt: s.attempt > a or s.phase != "running", "it is noticed")  # type: ignore[misc]
        let_pass(offset_s)  # a moment of the recovery, whichever it is
        os.kill(victim, signal.SIGKILL)
        if loses:
            loses_its_controller(job)
        trains(job, attempt)
        spares_wait(job)
    assert phases_of(job) >= RECOVERY
    set_steps(job, 30)
    finishes(job, alike=mode != "replicas")


@pytest.mark.parametrize("loses", [False, True], ids=lambda loses: f"controller-dies={loses}")
def test_a_second_fault_while_it_waits_for_a_node(home: Path, loses: bool) -> None:
    """No spare: who is left waits at the rank of the lost one, and is lost as well."""
    shared = {"path": str(home.parent / "shared"), "every_s": 1}
    job = endless(home, spares=0, recovery={"max_restarts": 1000}, checkpoints={"shared": shared})
    for _ in range(ROUNDS_MAX):
        job.wait_until(lambda s: bool(s.checkpoints and s.checkpoints[0].step), "it is saved")
        attempt, lost, left = job.status().attempt, job.member(1), job.agent(job.member(0))
        job.kill_node(lost)
        job.wait_until(lambda s: s.phase == "waiting", "it waits for a node")
        os.kill(left, signal.SIGKILL)
        if loses:
            loses_its_controller(job)
        trains(job, attempt)
        if Phase.WAITING in phases_of(job):
            break
    assert Phase.WAITING in phases_of(job)
    set_steps(job, 30)
    finishes(job)


def spares_wait(job: RunningJob) -> set[str]:
    """Names of the two that wait, once both ranks have a node as well."""
    status = job.wait_until(
        lambda s: sorted(n.state for n in s.nodes) == ["member"] * 2 + ["spare"] * 2, "two spares"
    )
    return {node.name for node in status.nodes if node.rank is None}


def promoted(job: RunningJob, waiting: set[str]) -> str:
    """The one of them that has got a rank, as soon as it has."""
    found: list[str] = []

    def known(status: JobStatus) -> bool:
        found.extend(n.name for n in status.nodes if n.name in waiting and n.rank is not None)
        return bool(found)

    job.wait_until(known, "a spare is promoted")
    return found[0]


def phases_of(job: RunningJob, kind: type[Event] = NodeLost) -> set[Phase]:
    """In which phases of the job nodes were lost, or something else was heard, by its journal. A
    controller that comes back finds the loss that the one before it has not heard of."""
    controller, phases = Controller(Limits.of(job_from_yaml(job.file))), set[Phase]()
    for entry in journal.entries(job.folder / "journal.jsonl"):
        event, nodes = entry.event, controller.state.nodes.keys()
        finds = isinstance(event, ControllerResumed) and bool(nodes - set(event.existing))
        if isinstance(event, kind) or (kind is NodeLost and finds):
            phases.add(controller.state.phase)
        controller.handle(entry.event, entry.at)
    return phases


def test_a_spare_that_dies_while_it_is_promoted(home: Path) -> None:
    job = endless(home, spares=2)
    job.wait_step(5)
    waiting, attempt = spares_wait(job), job.status().attempt
    agents = {name: job.agent(name) for name in waiting}
    job.kill_node(job.member(1))
    spare = promoted(job, waiting)
    os.kill(agents[spare], signal.SIGKILL)
    trains(job, attempt + 1)
    assert spare not in [n.name for n in job.status().nodes]
    set_steps(job, 30)
    finishes(job)


def test_owner_and_buddy_together_fall_back_to_a_checkpoint_and_it_says_so(home: Path) -> None:
    shared = {"path": str(home.parent / "shared"), "every_s": 1}
    job = endless(home, spares=2, checkpoints={"shared": shared})
    job.wait_until(
        lambda s: any(t.tier == "shared" and (t.step or 0) > 5 for t in s.checkpoints), "saved"
    )
    attempt = job.status().attempt
    job.kill_node(job.member(0), job.member(1))
    trains(job, attempt)
    newest = job.status().attempt
    log = (job.folder / "logs" / f"attempt-{newest}" / "rank-0.log").read_text()
    assert "from the shared tier" in log, log
    set_steps(job, 30)
    finishes(job)


def test_an_update_while_it_recovers_and_two_updates_at_once(home: Path) -> None:
    job = endless(home, **TOGETHER)
    job.wait_step(5)
    kill_worker(job)
    assert holdfast("update", job.name, "--set", "pause=0.04").returncode == 0
    job.wait_until(lambda s: s.version == 2 and s.phase == "running", "version 2 trains")
    attempt = job.status().attempt
    assert holdfast("update", job.name, "--set", "pause=0.03").returncode == 0
    assert holdfast("update", job.name, "--set", "pause=0.02").returncode == 0
    job.wait_until(lambda s: s.version == 4 and s.phase == "running", "the last one trains")
    kill_worker(job)
    trains(job, attempt)
    set_steps(job, 30)
    finishes(job)


def test_a_resize_while_it_saves_and_one_beside_a_node_loss(home: Path) -> None:
    job = saving_slowly(home)
    folder = save_under_way(job, home.parent / "shared")
    assert holdfast("scale", job.name, "2").returncode == 0
    assert not is_committed(folder), "it was saved while the order came"
    job.wait_until(lambda s: s.size == 2 and s.phase == "running", "two nodes")
    job.wait_step((job.status().step or 0) + 5)
    (job.folder / "go").touch()
    assert holdfast("scale", job.name, "3").returncode == 0
    job.kill_node(job.member(1))
    job.wait_until(lambda s: s.size == 3 and s.phase == "running", "three nodes")
    job.wait_step((job.status().step or 0) + 5)
    (job.out / "enough").touch()
    job.wait_end()
    each_step_had_its_samples_once(job)


def saving_slowly(home: Path) -> RunningJob:
    """An elastic job that saves to a shared folder all the time, for seconds each."""
    shared = {"path": str(home.parent / "shared"), "every_s": 1, "max_bytes_per_s": 1 << 20}
    args = ["--out", str(home.parent / "out"), "--width", str(WIDE)]
    job = of_three_nodes(home, fewest=1, checkpoints={"shared": shared}, args=args).start()
    job.wait_step(10)
    return job


def save_under_way(job: RunningJob, shared: Path) -> Path:
    """The folder of a checkpoint of which something is there, and not all."""
    found: list[Path] = []

    def known(_: JobStatus) -> bool:
        folders = sorted((shared / job.name).glob("step-*"))
        found.extend(path for path in folders[-1:] if not is_committed(path))
        return bool(found)

    job.wait_until(known, "it saves")
    return found[0]


def is_committed(folder: Path) -> bool:
    """Whether each rank's part was complete."""
    return (folder / "manifest.json").exists()


STOPS = ("worker", "node 0", "node 1", "both nodes", "worker and node 0", "promoted spare")
UPDATES = {"update": 2, "update while it recovers": 2, "two updates": 3}  # and the version then


@pytest.mark.parametrize("harm", [*STOPS, *UPDATES, "spare", "suspension"])
def test_the_controller_is_lost_in_each_of_these(home: Path, harm: str) -> None:
    shared = {"path": str(home.parent / "shared"), "every_s": 1}
    job = endless(home, spares=2, checkpoints={"shared": shared})
    job.wait_until(lambda s: bool(s.checkpoints and s.checkpoints[0].step), "it is saved")
    attempt = job.status().attempt
    _harm(job, harm)
    job.kill_controller()
    job.resume()
    if harm in STOPS:
        trains(job, attempt)
    elif harm in UPDATES:
        job.wait_until(lambda s: s.version == UPDATES[harm] and s.phase == "running", "updated")
        trains(job, attempt)
        during = phases_of(job, UpdateRequested)
        assert harm != "update while it recovers" or during <= RECOVERY
    else:
        job.wait_until(lambda s: s.controller == "alive" and s.phase == "running", "it goes on")
    set_steps(job, 30)
    finishes(job)


def test_the_controller_is_lost_while_the_size_changes_and_a_node_goes(home: Path) -> None:
    job = saving_slowly(home)
    folder = save_under_way(job, home.parent / "shared")
    assert holdfast("scale", job.name, "2").returncode == 0
    job.kill_controller()
    assert not is_committed(folder), "it was saved before that"
    job.resume()
    job.wait_until(lambda s: s.size == 2 and s.phase == "running", "two nodes")
    (job.folder / "go").touch()
    assert holdfast("scale", job.name, "3").returncode == 0
    job.kill_node(job.member(1))
    job.kill_controller()
    job.resume()
    job.wait_until(lambda s: s.size == 3 and s.phase == "running", "three nodes")
    job.wait_step((job.status().step or 0) + 5)
    (job.out / "enough").touch()
    job.wait_end()
    each_step_had_its_samples_once(job)


def _harm(job: RunningJob, harm: str) -> None:
    match harm.split():
        case ["worker"]:
            kill_worker(job)
        case ["node", rank]:
            job.kill_node(job.member(int(rank)))
        case ["both", "nodes"]:
            job.kill_node(job.member(0), job.member(1))
        case ["worker", "and", "node", rank]:
            victim = job.member(int(rank))
            kill_worker(job)
            job.kill_node(victim)
        case ["update"]:
            set_steps(job, 400)
        case ["update", "while", *_]:
            kill_worker(job)
            assert holdfast("update", job.name, "--set", "pause=0.04").returncode == 0
        case ["two", "updates"]:
            for pause in (0.04, 0.03):
                assert holdfast("update", job.name, "--set", f"pause={pause}").returncode == 0
        case ["promoted", "spare"]:
            waiting = spares_wait(job)
            job.kill_node(job.member(1))
            job.kill_node(promoted(job, waiting))
        case ["suspension"]:
            everybody = [*_processes(job)]
            for process in everybody:
                process.suspend()
            let_pass(SHORTLY_S)
            for process in reversed(everybody[1:]):  # the controller is killed where it stands
                process.resume()
        case _:
            job.kill_node(next(n.name for n in job.status().nodes if n.rank is None))


def test_a_suspended_machine_loses_nobody(home: Path) -> None:
    job = endless(home, spares=1)
    job.wait_step(5)
    everybody = [*_processes(job)]
    for process in everybody:
        process.suspend()
    let_pass(SUSPENDED_S)
    for process in reversed(everybody):
        process.resume()
    step = job.status().step or 0
    job.wait_step(step + 20)
    assert [i.cause for i in job.incidents()] == [], "nothing was lost"
    set_steps(job, 30)
    finishes(job)


def _processes(job: RunningJob) -> Iterator[psutil.Process]:
    """The controller, agents, and all below them."""
    assert job.process is not None
    yield psutil.Process(job.process.pid)
    for node in job.status().nodes:
        agent = psutil.Process(job.agent(node.name))
        yield from (agent, *agent.children(recursive=True))


@pytest.mark.parametrize("mode", ["processes", "in_process", "replicas"])
def test_a_hundred_faults_in_ten_minutes(home: Path, mode: str) -> None:
    """All kinds at random moments, a quarter of them right after another one. Where the layout is
    the same all along, so is each bit of the result."""
    chance = random.Random(f"storm {mode}")
    recovery = {"mode": mode, "max_restarts": 1000, "heartbeat_timeout_s": 2.0}
    elastic = {"elasticity": {"min_nodes": 1}} if mode == "replicas" else {}
    job = endless(home, spares=2, recovery=recovery, **elastic)
    job.wait_step(5)
    began, faults = time.monotonic(), 0
    while faults < STORM_FAULTS:
        faults += chance.choice(HARMS)(job, chance)
        if chance.random() < 0.25:
            time.sleep(chance.random())
        else:
            job.wait_until(lambda s: s.phase == "running", "it trains")
            time.sleep(2 * chance.random())
    job.wait_until(lambda s: s.phase == "running" and _closed(job), "it trains again")
    lasted_s = time.monotonic() - began
    set_steps(job, 30)
    finishes(job, alike=mode != "replicas")
    told = f"{len(job.incidents())} incidents, ETTR {job.goodput().ettr:.3f}"
    print(f"{mode}: {faults} faults in {lasted_s:.0f} s, {told}")
    if mode != "replicas":
        same_as_without_faults(job, home)


def same_as_without_faults(job: RunningJob, home: Path) -> None:
    """Every loss, and every parameter at the end."""
    losses, final = job.losses(), torch.load(job.out / "final.pt", weights_only=True)
    args = ["--steps", str(max(losses)), "--pause", "0"]
    calm = small(home, args=args, name="calm", snapshots={"every_steps": "auto"}).start()
    calm.wait_end()
    expected = torch.load(calm.out / "final.pt", weights_only=True)
    assert losses.items() <= calm.losses().items()  # some were lost with their node
    assert all(torch.equal(final[name], expected[name]) for name in expected)


def _kills_a_worker(job: RunningJob, chance: random.Random) -> bool:
    return _signal(lambda: job.worker(chance.randrange(2)), signal.SIGKILL)


def _crashes_a_worker(job: RunningJob, chance: random.Random) -> bool:
    return _signal(lambda: job.worker(chance.randrange(2)), signal.SIGABRT)


def _kills_an_agent(job: RunningJob, chance: random.Random) -> bool:
    nodes = [node.name for node in job.status().nodes]
    return _signal(lambda: job.agent(chance.choice(nodes)), signal.SIGKILL)


def _stops_an_agent(job: RunningJob, chance: random.Random) -> bool:
    nodes = [node.name for node in job.status().nodes if node.rank is not None]
    return bool(nodes) and _signal(lambda: job.agent(chance.choice(nodes)), signal.SIGSTOP)


def _loses_the_controller(job: RunningJob, _: random.Random) -> bool:
    loses_its_controller(job)
    return True


HARMS = (
    *(_kills_a_worker, _crashes_a_worker, _kills_an_agent, _stops_an_agent),
    _loses_the_controller,
)


def _signal(pid: Callable[[], int], number: int) -> bool:
    """Whether it was sent: whoever is gone meanwhile needs no harm."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid(), number)
        return True
    return False
