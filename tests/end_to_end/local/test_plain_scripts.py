"""Scripts that know nothing of Holdfast: their steps are seen all the same."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.events import Milestone
from tests.end_to_end.local.jobs import TOGETHER, RunningJob, program
from tests.more import sample
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

PLAIN: dict[str, Any] = {"framework": "pytorch", "warm": {"mode": "auto"}}

# Each attempt prints before it trains, and then waits for a file, as long as a checkpoint may take.
DDP = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters())
print("loading", flush=True)
while not os.path.exists(f"go-{os.environ['TORCHELASTIC_RESTART_COUNT']}"):
    time.sleep(0.01)
while True:
    model(torch.full((1, 4), float(dist.get_rank()))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
"""


def test_a_killed_worker_of_a_plain_script_costs_until_the_first_optimizer_step(home: Path) -> None:
    job = program(home, DDP, workdir=str(home.parent), **PLAIN, **TOGETHER).start()
    allow(home, 0)
    job.wait_until(lambda s: (s.optimizer_steps or 0) > 20, "optimizer steps")
    shown = json.loads(holdfast("status", job.name, "--json").stdout)
    assert shown["optimizer_steps"] > 20 and shown["step"] is None
    assert 0.0 < shown["optimizer_step_time_s"] < 10.0
    assert "optimizer steps, " in holdfast("status", job.name).stdout
    os.kill(job.worker(1), signal.SIGKILL)
    log = job.folder / "logs" / "attempt-2" / "rank-0.log"
    job.wait_until(lambda s: s.attempt == 2 and log.exists() and "loading" in log.read_text(), "2")
    job.wait_until(lambda _: spoke(job, 2), "the controller has heard it")
    (incident,) = job.incidents()
    assert incident.ended_at is None, "it has printed and not done a step"
    allow(home, 1)
    job.wait_until(lambda _: job.incidents()[0].ended_at is not None, "training again")
    (incident,) = job.incidents()
    assert (incident.step, incident.steps_lost) == (None, 0), "whose steps they are is not known"
    assert incident.ended_at is not None
    assert incident.lost_s == pytest.approx(incident.ended_at - incident.started_at, abs=0.1)
    assert "replay" not in incident.bill
    told = said(job, 1), said(job, 2)
    assert [text.count("optimizer steps are counted") for text in told] == [1, 0]
    stop(job)


EXACT = """
import os, torch
torch.manual_seed(int(os.environ["RANK"]))
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(30):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item().hex())
print("end", sum(p.double().sum() for p in model.parameters()).item().hex(), torch.rand(1).item())
"""


def test_training_is_bitwise_the_same_with_steps_counted_and_without(home: Path) -> None:
    """In workers as they are: forked from a process with torch, or importing it themselves."""
    losses = set()
    both = [("auto", "auto"), ("off", "off")]
    for number, (mode, instrument) in enumerate(sample(both, [("auto", "off"), ("off", "auto")])):
        job = program(
            home, EXACT, name=f"j{number}", instrument=instrument,
            framework="pytorch", warm={"mode": mode}, workers_per_node=1,
        ).start()  # fmt: skip
        job.wait_end()
        lines = said(job, 1).splitlines()
        ours = [line for line in lines if line.startswith("holdfast: ")]
        assert len(ours) == (1 if instrument == "auto" else 0), ours
        assert instrument == "off" or "instrument: off" in ours[0]
        losses.add("\n".join(line for line in lines if not line.startswith("holdfast: ")))
    (told,) = losses
    assert told.count("loss") == 30


BAD, SOON = 21, 40  # the step; until the last one, on a machine where everything takes long

# Its data have a NaN, in each attempt or in the first one that meets it; it has saved before, once.
SAVES = """
import os, sys, time
import torch
torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
saved = torch.load("saved.pt") if os.path.exists("saved.pt") else {"step": 0}
if saved["step"]:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
for step in range(saved["step"], 60):
    data = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
    if step == 20 and not os.path.exists("good"):
        data[1, 2] = float("nan")
        if sys.argv[1] == "once":
            open("good", "w").close()
    model(data).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 9:
        state = {"step": 10, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, "saved.pt")
    time.sleep(0.02)
print("end", sum(p.double().sum() for p in model.parameters()).item().hex())
"""


def saves(home: Path, name: str, how: str, **spec: Any) -> RunningJob:
    """In a folder of its own; without NaN if that is `never`."""
    folder = home.parent / name
    folder.mkdir()
    if how == "never":
        (folder / "good").touch()
    spec = {"workdir": str(folder), "workers_per_node": 1, **PLAIN, **spec}
    return program(home, SAVES, name=name, args=[how], **spec).start()


def test_a_gradient_that_is_nan_is_a_fault_though_the_script_tells_no_number(home: Path) -> None:
    """It starts again from what it has saved itself, and nothing of the NaN is left."""
    calm, job = saves(home, "calm", "never"), saves(home, "once", "once")
    calm.wait_end()
    job.wait_end()
    assert calm.incidents() == []
    (incident,) = job.incidents()
    assert incident.cause == "nan" and BAD <= (incident.step or 0) < BAD + SOON
    assert f"The gradient norm was nan at step {incident.step}." in incident.summary
    assert "the script resumes from what it has saved itself" in str(incident.actions)
    ends = [line for line in said(calm, 1).splitlines() if line.startswith("end")]
    assert ends and ends == [line for line in said(job, 2).splitlines() if line.startswith("end")]


def test_gradients_that_are_nan_each_time_end_the_job_and_are_no_success(home: Path) -> None:
    job, ignored = (
        saves(home, name, "always", recovery={"on_nan": how})
        for name, how in (("bad", "restart"), ("ignored", "ignore"))
    )
    job.wait_end(1)
    status = job.status()
    assert (status.outcome, status.attempt) == ("failed", 2)
    assert [one.cause for one in job.incidents()] == ["nan", "nan"]
    found = re.search(r"numbers were not finite at step (\d+) again", status.why or "")
    assert found is not None and int(found[1]) >= 11, "the 11th of this attempt"
    ignored.wait_end()
    (note,) = ignored.status().notes
    assert ignored.incidents() == [] and BAD <= note.step < BAD + SOON


def test_a_program_that_is_no_python_script_is_left_alone(home: Path) -> None:
    job = RunningJob(home, command=["/bin/sh", "-c", "echo $RANK; ls /proc/self/fd | wc -l"])
    job.start().wait_end()
    assert "holdfast: optimizer" not in job.said() + said(job, 1)


JOINS = """
import os, sys, time, torch
sys.path.insert(0, os.getcwd())
import elsewhere
p = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([p], lr=0.1)
elsewhere.train(p, optimizer)
"""
ELSEWHERE = """
import time
from holdfast.train import join
def train(p, optimizer):
    state = join().track(optimizer=optimizer)
    for step, _ in state.steps(total=100_000):
        p.grad = p.detach().clone()
        optimizer.step()
        time.sleep(0.01)
"""


def test_a_script_that_joins_reports_its_steps_alone(home: Path) -> None:
    """Also where nothing in its source tells that it will: nothing is counted twice."""
    (home.parent / "elsewhere.py").write_text(ELSEWHERE)
    job = program(home, JOINS, workdir=str(home.parent), workers_per_node=1, **PLAIN).start()
    status = job.wait_step(20)
    assert (status.optimizer_steps, status.optimizer_step_time_s) == (None, None)
    assert "optimizer steps" not in job.said()
    stop(job)


def allow(home: Path, attempt: int) -> None:
    """Let the script begin to train."""
    (home.parent / f"go-{attempt}").touch()


def stop(job: RunningJob) -> None:
    assert job.process is not None
    job.process.send_signal(signal.SIGTERM)
    job.wait_end(130)


def said(job: RunningJob, attempt: int) -> str:
    path: Path = job.folder / "logs" / f"attempt-{attempt}" / "rank-0.log"
    return path.read_text()


def spoke(job: RunningJob, attempt: int) -> bool:
    """Whether the journal knows that this attempt has printed something."""
    lines = map(json.loads, (job.folder / "journal.jsonl").read_text().splitlines())
    return any(
        f'"{Milestone.OUTPUT}"' in text and f'"attempt":{attempt}' in text
        for text in (json.dumps(line, separators=(",", ":")) for line in lines)
    )


PRINTS = """
import os, time
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("reading step 7 of 9, which is old", flush=True)
while not os.path.exists(f"go-{attempt}"):
    time.sleep(0.01)
for step in range(100 * attempt, 100_000):
    print(f"[{step}/100000] cost: {1 / (step + 1):.6f}", end="\\r", flush=True)
    time.sleep(0.01)
"""


def test_the_step_of_a_script_without_torch_is_read_from_its_output(home: Path) -> None:
    """And is the first sign that it trains again; nothing else is concluded from its number."""
    patterns = {"step_pattern": r"^\[(\d+)/", "loss_pattern": r"cost: (?P<loss>\S+)"}
    job = program(home, PRINTS, workdir=str(home.parent), workers_per_node=1, progress=patterns)
    job.start()
    allow(home, 0)
    status = job.wait_until(lambda s: (s.printed_step or 0) > 20, "steps in the output")
    assert status.step is None and status.loss is not None and 0.0 < status.loss < 0.05
    assert "(from its output), loss 0.0" in holdfast("status", job.name).stdout
    os.kill(job.worker(0), signal.SIGKILL)
    job.wait_until(lambda _: spoke(job, 2), "the controller has heard it")
    assert job.incidents()[0].ended_at is None
    allow(home, 1)
    job.wait_until(lambda s: (s.printed_step or 0) > 100, "steps of the second attempt")
    job.wait_until(lambda _: job.incidents()[0].ended_at is not None, "training again")
    assert job.incidents()[0].steps_lost == 0
    stop(job)


WRITES = """
import json, os, time
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(100 * attempt, 100_000):
    with open("new", "w") as file:
        json.dump({"step": step, "loss": 1 / (step + 1)}, file)
    os.rename("new", "progress.json")
    time.sleep(0.01)
"""


def test_the_step_of_a_program_is_read_from_a_file_that_it_writes(home: Path) -> None:
    where = {"workdir": str(home.parent), "progress": {"file": "progress.json"}}
    (home.parent / "progress.json").write_text('{"step": 99999}')
    job = program(home, WRITES, workers_per_node=1, **where).start()
    status = job.wait_until(lambda s: (s.printed_step or 0) > 20, "steps in the file")
    assert (status.printed_step or 0) < 99_999 and status.loss is not None
    os.kill(job.worker(0), signal.SIGKILL)
    job.wait_until(lambda s: s.attempt == 2 and (s.printed_step or 0) > 100, "the second attempt")
    stop(job)
