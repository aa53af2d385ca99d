"""A GPU fault that the kernel log tells of: the right node is named, and a spare takes its rank."""

import subprocess
import time
from pathlib import Path

import pytest

from holdfast.cli import story
from holdfast.diagnosis.lemons import score
from holdfast.drivers import records
from tests.end_to_end.local.jobs import ENDLESS, RunningJob, program, small
from tests.metadata_service import REBALANCE, SPOT, MetadataStub, spot_action
from tests.more import long
from tests.patience import PATIENCE_S
from tests.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

XID = (
    "3,4711,5026000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, "
    "GPU has fallen off the bus.\n"
)
APPLICATION = "3,4712,5027000,-;NVRM: Xid (PCI:0000:5e:00): 31, pid=7, name=python, MMU Fault\n"
TRAINS = """
import os, pathlib, sys, time
out = pathlib.Path(sys.argv[0]).parent
rank, attempt = int(os.environ["RANK"]), int(os.environ["HOLDFAST_ATTEMPT"])
(out / f"started-{attempt}-{rank}").touch()
if attempt == 1 and rank == 1 and len(sys.argv) > 1:
    log = out / "recorded" / os.environ["HOLDFAST_NODE"].rpartition("-")[0] / "dev/kmsg"
    log.write_text(log.read_text() + sys.argv[1])
    raise RuntimeError("CUDA error: unspecified launch failure")
while attempt == 1 or not all((out / f"started-{attempt}-{r}").exists() for r in (0, 1)):
    time.sleep(0.02)
"""


def job_with_logs(home: Path, monkeypatch: pytest.MonkeyPatch, *args: str) -> RunningJob:
    """A job whose nodes read a kernel log of their own."""
    for name in ("node-0", "node-1", "node-2"):
        log = kernel_log(home, name)
        log.parent.mkdir(parents=True)
        log.touch()
    monkeypatch.setenv("HOLDFAST_HEALTH_ROOT", f"{home.parent}/recorded/{{node}}")
    return program(home, TRAINS, nodes={"count": 2, "spares": 1}, args=list(args)).start()


def kernel_log(home: Path, name: str) -> Path:
    return home.parent / "recorded" / name / "dev/kmsg"


def test_a_gpu_that_falls_off_the_bus_has_its_node_replaced_by_a_spare(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_with_logs(home, monkeypatch)
    job.wait_until(lambda s: s.phase == "running", "the job to train")
    sick, well = job.member(1), job.member(0)
    with kernel_log(home, well).open("a") as log:
        log.write(APPLICATION)
    status = job.wait_until(lambda s: any(n.conditions for n in s.nodes), "the warning")
    [(name, [warning])] = [(n.name, n.conditions) for n in status.nodes if n.conditions]
    assert (name, warning.severity, warning.condition) == (well, "warn", "xid-31")
    assert any("XID 31" in line for _, line in story.status_lines(status))
    with kernel_log(home, sick).open("a") as log:
        log.write(XID)
    job.wait_end()
    (incident,) = job.incidents()
    assert (incident.cause, incident.node) == ("hardware-fault", sick)
    assert "XID 79" in incident.summary and "reboot" in incident.health[0]
    assert any("takes over node rank 1" in action.reason for action in incident.actions)
    told = {node: score(counts) for node, counts in records.signals(job.folder).items()}
    assert {node for node, signals in told.items() if signals} == {sick, well}
    listed = Warm(["nodes", "--on", "local"], stdout=subprocess.PIPE)
    assert listed.stdout is not None
    lines = listed.stdout.read().decode().splitlines()
    assert "2 of 7: 1 faults, 1 XIDs" in lines[1], "and the machine has both nodes"
    [gone] = [line for line in lines if sick in line]
    assert gone.split()[:5] == [sick, "gone", "1", "of", "7"] and "XID 79" in gone
    assert listed.wait(PATIENCE_S) == 0


def test_a_worker_that_dies_of_it_is_explained_by_the_gpu_and_not_by_what_it_said(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_with_logs(home, monkeypatch, XID)
    job.wait_end()
    (incident,) = job.incidents()
    assert incident.cause == "hardware-fault", incident.summary
    assert incident.rank in (1, None), "what the kernel said may be heard before the worker is dead"
    assert "XID 79" in incident.summary
    assert any("takes over node rank 1" in action.reason for action in incident.actions)


@long
def test_a_shared_folder_that_refuses_costs_no_node_and_is_noted(home: Path) -> None:
    tiers = {"shared": {"path": "/sys/kernel/holdfast", "every_s": 1}}  # also for root
    args, recovery = ["--steps", "4000", "--pause", "0.1"], {"check": "spares"}
    job = small(home, spares=1, args=args, checkpoints=tiers, recovery=recovery).start()
    lines = job.folder / "journal.jsonl"
    job.wait_until(lambda _: "NodesChecked" in lines.read_text(), "the spare is checked")
    assert "Fence" not in lines.read_text()
    told = "checkpoints.shared: saving fails, nothing has ever been saved: /sys/kernel/holdfast"
    status = job.wait_until(lambda s: any(told in n.text for n in s.notes), "the note")
    [tier] = status.checkpoints
    assert tier.step is None and tier.failures > 0
    assert [n.state for n in status.nodes if n.rank is None] == ["spare"]
    assert "Fence" not in lines.read_text() and not job.incidents()
    assert Warm(["stop", job.name, "--now"]).wait(PATIENCE_S) == 0
    job.wait_end(130)


@long
def test_a_spare_counts_once_its_machine_has_passed_its_checks(home: Path) -> None:
    recovery = {"check": "spares"}
    job = program(home, TRAINS, nodes={"count": 2, "spares": 1}, recovery=recovery).start()
    lines = job.folder / "journal.jsonl"
    job.wait_until(lambda _: "NodesChecked" in lines.read_text(), "the spare is checked")
    (checked,) = [line for line in lines.read_text().splitlines() if "NodesChecked" in line]
    spare = next(n for n in job.status().nodes if n.rank is None)
    assert f'"{spare.node}":""' in checked.replace(" ", "")
    job.kill_node(job.member(1))
    job.wait_end()


@long
def test_an_error_of_cuda_at_one_step_of_both_nodes_is_the_scripts_and_costs_no_node(
    home: Path,
) -> None:
    job = small(home, args=["--bad", "device", "--bad-step", "6"], spares=1).start()
    job.wait_end(1)
    found = job.incidents()
    assert [incident.cause for incident in found] == ["device-error"] * 4
    assert len({incident.node for incident in found}) == 2
    assert not any(a.action in ("Fence", "AssignRank") for i in found for a in i.actions)
    assert [len(incident.evidence) for incident in found] == [0, 1, 1, 1]
    assert "2 times after step 6" in found[1].evidence[0] and "80 %" in found[1].evidence[0]
    assert "the same error repeated at the same place" in job.said()


def test_a_node_whose_cloud_announces_its_end_hands_over_and_nothing_has_failed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a taint of its machine does, but told by the machine itself."""
    service = MetadataStub()
    monkeypatch.setenv("HOLDFAST_METADATA_URL", f"{service.url}/{{node}}")
    recovery = {"cloud_notices": "aws"}
    job = small(home, spares=1, args=[*ENDLESS, "--pause", "0.1"], recovery=recovery).start()
    at = job.wait_step(5).step or 0
    victim, other = job.member(1), job.member(0)
    assert job.status().nodes and not any(n.conditions for n in job.status().nodes)
    service.say(f"/{other}{REBALANCE}", '{"noticeTime": "2026-09-21T14:10:00Z"}')
    job.wait_until(lambda s: any(n.conditions for n in s.nodes), "the recommendation is told")
    gone_at = time.time() + 120
    service.say(f"/{victim}{SPOT}", spot_action(gone_at))
    job.wait_step(at + 1, attempt=2)
    (incident,) = job.incidents()
    assert (incident.cause, incident.node) == ("node-left", victim)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(gone_at))
    assert (
        f"the spot instance is reclaimed at {when} (AWS, spot/instance-action" in incident.summary
    )
    status = job.status()
    assert status.restarts_count == 0 and job.member(0) == other, "a recommendation moves nobody"
    assert all(one.action != "Wait" for one in incident.actions)
    listed = Warm(["why", job.name, "--on", "local"], stdout=subprocess.PIPE)
    assert listed.stdout is not None
    assert when in listed.stdout.read().decode()
    assert listed.wait(PATIENCE_S) == 0
    words = (job.folder / "nodes" / victim / "agent.log").read_text()
    assert words.count("notices are read from AWS's metadata service") == 1
    assert Warm(["stop", job.name, "--now"]).wait(PATIENCE_S) == 0
    job.wait_end(130)
    service.close()
