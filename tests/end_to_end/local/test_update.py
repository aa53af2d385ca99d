"""A job continues with other code and arguments; what cannot be used never stops it."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

from tests.end_to_end.local.jobs import SCRIPTS, TOGETHER, RunningJob, program, small
from tests.more import long
from tests.warm import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "update.md"
PLAIN = """\
import os, sys, time
attempt = os.environ["HOLDFAST_ATTEMPT"]
with open(os.environ["OUT"] + "/" + attempt + ".new", "w") as file:
    print(*sys.argv[1:], os.environ.get("NCCL_DEBUG", ""), file=file, flush=True)  # as started
os.rename(file.name, file.name.removesuffix(".new"))
print("at work", flush=True)
while not os.path.exists(os.environ["OUT"] + "/enough"):
    time.sleep(0.05)
"""


def code(home: Path, *changes: tuple[str, str]) -> str:
    """A folder with `small.py`, changed like this."""
    text = (SCRIPTS / "small.py").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    folder = home.parent / f"code-{len(list(home.parent.glob('code-*')))}"
    folder.mkdir()
    (folder / "small.py").write_text(text)
    return str(folder)


def finish(job: RunningJob) -> tuple[dict[int, float], dict[str, torch.Tensor]]:
    job.wait_end()
    found = torch.load(job.out / "final.pt", weights_only=True)
    (job.out / "final.pt").unlink()
    return job.losses(), found


def update(job: RunningJob, *words: str) -> "subprocess.CompletedProcess[str]":
    return holdfast("update", job.name, *words)


def test_updates_change_no_bit_and_lose_no_step_and_bad_ones_stop_nothing(home: Path) -> None:
    job = small(home, args=["--steps", "100000", "--pause", "0.25"], **TOGETHER).start()
    job.wait_step(5)
    for change, why in (
        (("import torch\n", "import torch\nimport no_such\n"), "No module named 'no_such'"),
        (("torch.manual_seed(7)", "raise SystemExit"), "ends without a call of join()"),
    ):
        refused = update(job, "--code", code(home, change))
        assert (refused.returncode, why in refused.stderr) == (2, True), refused.stderr
        assert refused.stderr.count("error[update-refused]") == 1
    refused = update(job, "--set", "no_such=1")
    assert "exit status 2" in refused.stderr and "unrecognized arguments" in refused.stderr
    status = job.status()
    assert (status.attempt, status.incidents_count, status.version) == (1, 0, 1)
    assert [one.stage for one in status.updates] == ["refused"] * 3

    same = ("data = [", "note = 'another text'\ndata = [")
    assert update(job, "--code", code(home, same)).returncode == 0
    job.wait_until(lambda s: s.attempt == 2 and s.phase == "running", "version 5 trains")
    bug = ("    loss.backward()", "    if run.rank: raise ValueError(step)\n    loss.backward()")
    assert update(job, "--code", code(home, same, bug)).returncode == 0
    status = job.wait_until(lambda s: s.attempt == 4 and s.phase == "running", "it is given up")
    assert (status.version, status.restarts_count) == (5, 0)
    steps = (status.step or 0) + 12
    assert update(job, "--set", f"steps={steps}").returncode == 0
    losses, parameters = finish(job)
    assert len(losses) >= steps
    steps = len(losses)  # it may have come further before it was told

    args = ["--steps", str(steps), "--pause", "0"]
    calm_losses, calm = finish(small(home, args=args, name="calm", **TOGETHER).start())
    assert losses == calm_losses
    assert all(torch.equal(parameters[name], calm[name]) for name in calm)
    found = job.incidents()
    assert [(one.cause, one.version) for one in found] == [
        ("updated", 1),
        ("updated", 5),
        ("worker-exception", 6),
        ("updated", 5),
    ]
    assert sum(one.steps_lost for one in found if one.cause == "updated") == 0
    assert "Revert" in [done.action for done in found[2].actions]
    versions = {one.version: one for one in job.status().updates}
    assert [versions[number].incidents for number in (5, 6)] == [(2, 4), (3,)]
    kept = {path.name for path in (job.folder / "code").iterdir()}
    assert {versions[5].code, versions[6].code} <= kept, "each can be looked at, and come back"


@long
@pytest.mark.parametrize("when", ["now", "next-step"])
def test_a_version_whose_loss_leaves_its_band_is_taken_back(home: Path, when: str) -> None:
    job = small(home, args=["--steps", "100000", "--pause", "0.05"], **TOGETHER).start()
    job.wait_step(50)
    worse = ("    loss.backward()", "    loss = loss * 1e6\n    loss.backward()")
    assert update(job, "--code", code(home, worse), "--when", when).returncode == 0
    status = job.wait_until(lambda s: s.attempt == 3 and s.phase == "running", "the one before")
    assert status.version == 1
    assert job.status().updates[0].stage == "reverted"
    changed, diverged = job.incidents()
    assert (changed.cause, diverged.cause, diverged.version) == ("updated", "diverged", 2)
    assert "the loss rose to" in diverged.summary and status.restarts_count == 0
    assert update(job, "--set", f"steps={(status.step or 0) + 10}").returncode == 0
    job.wait_end()


def wait_for(job: RunningJob, path: Path) -> None:
    job.wait_until(lambda s: path.exists() and not s.waiting_for, path.name)


def test_the_commands_of_the_guide_do_what_it_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.parent / "project"
    folder.mkdir()
    (folder / "train.py").write_text(PLAIN)
    out = home.parent / "out"
    job = program(
        home, "", name="gpt", args=["--lr=0.1"], env={"OUT": str(out)}, code="project",
        checkpoints={"shared": {"path": str(home.parent / "shared")}},
    )  # fmt: skip
    job.file.write_text(job.file.read_text().replace(str(home.parent / "script.py"), "train.py"))
    job.start()
    monkeypatch.chdir(folder)
    wait_for(job, out / "1")
    (folder / "train.py").write_text(
        PLAIN.replace("file=file, flush", "'edited', file=file, flush")
    )
    commands = re.findall(r"^holdfast (update .*)$", GUIDE.read_text(), re.MULTILINE)
    here = [command for command in commands if "--on kubernetes" not in command]
    for command in here:
        job.wait_until(lambda _: all(one.ended_at for one in job.incidents()), "it trains")
        attempt = job.status().attempt
        told = holdfast(*command.split(), "--json")
        assert told.returncode == 0, told.stderr
        lazy = json.loads(told.stdout)["update"]["stage"] == "waiting"
        assert lazy == ("next-failure" in command)
        runs = out / str(attempt + (not lazy))
        wait_for(job, runs)
    assert [(out / f"{attempt}").read_text().split() for attempt in range(1, 6)] == [
        ["--lr=0.1"],
        ["--lr=0.1", "edited"],
        *[["--lr=0.002", "INFO", "edited"]] * 3,
    ]
    assert [one.stage for one in job.status().updates] == ["used"] * 2 + [
        "replaced",
        "reverted",
        "used",
    ]
    (folder / "train.py").write_text("if x\n")
    refused = holdfast("update", "gpt", "--code", ".")
    assert "SyntaxError" in refused.stderr and "error[update-refused]" in refused.stderr
    for attempt, arguments in ((6, ["--lr=0.1", "edited"]), (7, ["--lr=0.1"])):
        assert holdfast("update", "gpt", "--rollback").returncode == 0
        wait_for(job, out / str(attempt))
        assert (out / str(attempt)).read_text().split() == arguments, "whatever lies there now"
    assert holdfast("update", "gpt", "--set", "lr=0.002").returncode == 0
    wait_for(job, out / "8")

    assert holdfast("stop", "gpt").returncode == 0
    for path in out.iterdir():
        path.unlink()
    job.resume()
    wait_for(job, out / "1")
    assert (out / "1").read_text().split() == ["--lr=0.002"], "the version that it had"
    (out / "enough").touch()
    job.wait_end()
