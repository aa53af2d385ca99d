"""Whole jobs through the command line: real processes, real signals, nothing left behind."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.job_files import FILES
from tests.patience import MAY_BE_SILENT, PATIENCE_S, until
from tests.receiving import Receiving
from tests.warm import Warm, holdfast, start

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def answer(*words: str) -> Any:
    run = holdfast(*words, "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def documented(page: str, job: str) -> Iterator[list[str]]:
    """The commands of a page about a job called gpt, for this one."""
    text = (ROOT / "docs" / page).read_text()
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            program, *words = line.partition("#")[0].split()
            assert program == "holdfast", line
            yield [job if word == "gpt" else word for word in words]


def printed(home: Path, job: str, text: str) -> Callable[[], bool]:
    """Whether a worker of the job has printed `text`."""
    logs = home / "jobs" / job / "logs"
    return lambda: any(text in path.read_text() for path in logs.glob("*/rank-*.log"))


@pytest.fixture
def tool(tmp_path: Path) -> Callable[[str], list[str]]:
    """A shell script as a job that needs no torch: the words after `holdfast run`."""

    def make(body: str) -> list[str]:
        (tmp_path / "tool.sh").write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "tool.sh").chmod(0o755)
        file = tmp_path / "tool.yaml"
        file.write_text(
            f"name: tool\ncommand: [./tool.sh]\nrecovery: {json.dumps(MAY_BE_SILENT)}\n"
        )
        return [str(file)]

    return make


Tool = Callable[[str], list[str]]


def test_a_job_that_does_nothing_prints_fewer_than_10_lines(tool: Tool) -> None:
    run = holdfast("run", *tool("exit 0"))
    assert run.returncode == 0
    assert len((run.stdout + run.stderr).splitlines()) < 10
    assert "tool succeeded" in run.stderr


def test_a_script_gets_its_arguments_untouched_and_its_output_is_shown(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys; print(os.environ['RANK'], sys.argv[1:])")
    words = ["--lr", "3e-4", "--json", "--", "-x"]
    run = holdfast("run", "--standalone", "--nproc_per_node=2", str(script), *words)
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == [f"[{r}] {r} {words}" for r in (0, 1)]
    assert "note: --standalone: not needed" in run.stderr
    assert holdfast("logs", "train", "--rank", "1").stdout == f"[1] 1 {words}\n"


def test_what_is_told_to_remove_a_job_of_this_machine_removes_one_that_has_ended(
    home: Path, tool: Tool
) -> None:
    assert holdfast("run", *tool("exit 0")).returncode == 0
    said = holdfast("delete", "tool", KUBECONFIG=str(home / "none")).stderr
    told = re.search(r"holdfast (stop tool) && (rm -r \S+)", said)
    assert told is not None, said
    stop, remove = (words.split() for words in told.groups())
    assert holdfast(*stop).returncode == 0
    assert remove[-1] == str(home / "jobs" / "tool")
    subprocess.run(remove, check=True)
    assert holdfast("stop", "tool").returncode == 4, "there is none any more"


def test_json_leaves_standard_output_to_one_object(tool: Tool) -> None:
    run = holdfast("run", "--json", *tool("echo hello"))
    status = json.loads(run.stdout)
    assert (status["outcome"], status["controller"]) == ("succeeded", "ended")
    assert "[0] hello" in run.stderr


@pytest.mark.parametrize(
    ("ends", "told", "status"), [("exit 0", "succeeded", 0), ("kill -9 $$", "gave up", 5)]
)
def test_a_job_whose_record_was_removed_while_it_ran_still_says_how_it_ended(
    home: Path, tool: Tool, ends: str, told: str, status: int
) -> None:
    words = [*tool(f"rm -rf {home}/jobs/tool; {ends}"), "--replace", "--max-restarts", "0"]
    run = holdfast("run", *words)
    what = f"tool {told}, but its record cannot be read"
    assert run.returncode == status, run.stderr
    assert f"error[path-unusable]: {what}" in run.stderr
    assert f"{home}/jobs/tool" in run.stderr
    run = holdfast("run", "--json", *words)
    assert (run.returncode, json.loads(run.stdout)["error"]["what"]) == (3, what)


def test_a_job_that_fails_says_why_and_ends_with_status_1(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text("rate = -1\nraise ValueError(f'learning rate is {rate}')\n")
    run = holdfast("run", str(script))
    assert run.returncode == 1
    assert "incident 2: " in run.stderr
    assert "ValueError: learning rate is -1" in run.stderr
    why = holdfast("why")
    assert f'File "{script}", line 2, in <module>' in why.stdout
    told = answer("why", "bad", "1")
    assert told == {**answer("why", "1"), "log_tail": told["log_tail"]}
    found = told["incident"]
    assert (found["id"], found["rank"], found["error_type"]) == (1, 0, "ValueError")
    assert told["advice"].startswith("Fix the script") and found["confidence"] > 0.9
    assert found["collected"][0]["ranks"][0]["ended"]
    assert [i["id"] for i in answer("incidents")] == [1, 2]
    assert holdfast("why", "--incident", "3").returncode == 4
    shown, as_json = (holdfast(*words) for words in documented("concepts/recovery.md", "bad"))
    assert "restart: a script error gets a second attempt" in shown.stdout
    assert "machines are not replaced for script errors" in shown.stdout
    (choice,) = json.loads(as_json.stdout)["incident"]["choices"]
    assert choice["step"] == "restart" and len(choice["alternatives"]) == 12
    assert "> give-up" in why.stdout and "the same error repeated at the same place" in why.stdout


def test_a_nan_that_is_printed_stops_the_job_at_once_and_ends_it_the_second_time(
    tmp_path: Path, tool: Tool
) -> None:
    [file] = tool('echo "step 4 loss=nan"; sleep 600')
    patterns = r"{step_pattern: 'step (\d+)', loss_pattern: 'loss=(\S+)'}"
    with (tmp_path / "tool.yaml").open("a") as job:
        job.write(f"progress: {patterns}\n")
    run = holdfast("run", file)
    assert run.returncode == 1
    assert "numbers were not finite at step 4 again: The loss of rank 0 was nan" in run.stderr
    assert [(i["cause"], i["step"]) for i in answer("incidents")] == [("nan", 4)] * 2


def test_a_job_that_gives_up_ends_with_status_5(tool: Tool) -> None:
    run = holdfast("run", "--max-restarts", "0", *tool("kill -9 $$"))
    assert run.returncode == 5
    assert "tool gave up" in run.stderr
    assert answer("status")["restarts_count"] == 0


def test_incidents_and_the_end_of_a_job_are_told_to_a_receiver(
    tmp_path: Path, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Receiving()
    monkeypatch.setenv("CHAT", f"{server.url}/hook")
    [file] = tool('[ "$HOLDFAST_ATTEMPT" = 2 ] || kill -9 $$')
    with (tmp_path / "tool.yaml").open("a") as job:
        job.write("notify: [{url_env: CHAT, format: json}]\n")
    run = holdfast("run", file)
    server.close()
    assert run.returncode == 0, run.stderr
    told = [(place, body["event"], body["cause"], body["over"]) for place, body in server.got]
    assert told == [
        ("/hook", "incident", "worker-killed", True),
        ("/hook", "ended", None, True),
    ]


def test_ctrl_c_stops_cleanly_with_status_130(home: Path, tool: Tool) -> None:
    run = start("run", *tool("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    assert until(printed(home, "tool", "up"))
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 130
    assert "[0] bye" in out
    assert "tool stopped" in err
    assert answer("status")["outcome"] == "stopped"


FORGOTTEN = """
import os, signal, sys
from holdfast.cli import main

class Gone:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)  # nobody can be told of an exception here

class Finder:
    def find_spec(self, name, *_):
        if name == "holdfast.drivers.local":
            sys.meta_path.remove(self)
            Gone()

sys.meta_path.insert(0, Finder())
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_that_python_forgets_while_the_command_starts_stops_too(tool: Tool) -> None:
    command = [sys.executable, "-c", FORGOTTEN, "run", *tool("sleep 600")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "Exception ignored" in run.stderr
    assert run.returncode == 130, run.stderr
    assert answer("status")["outcome"] == "stopped"


def test_a_detached_job_is_watched_stopped_and_named_free_again(home: Path, tool: Tool) -> None:
    file = tool("echo up; sleep 600")
    found = answer("run", *file, "--detach")
    assert found["job"] == "tool"
    assert until(printed(home, "tool", "up"))
    assert answer("status")["controller"] == "alive"
    (one,) = answer("top")
    assert (one["namespace"], one["status"]["job"]) == (None, "tool")
    assert holdfast("logs", "--since", "1h", "--grep", "^up", "--unique").stdout == "[0] up\n"
    assert holdfast("logs", "--level", "error").stderr == "no such output of tool\n"
    second = holdfast("run", *file)
    assert second.returncode == 2
    assert second.stderr.startswith("error[job-running]")
    assert holdfast("scale", "tool", "2").stderr.startswith("error[scale-out-of-range]")
    stopped = {"job": "tool", "asked": True, "killed_count": 0, "unreached": None}
    assert answer("stop", "tool", "--now") == stopped
    assert holdfast("watch", "tool").stdout.startswith("tool: stopped")
    assert answer("stop", "tool")["asked"] is False
    for words in documented("guides/terminal.md", "tool"):
        assert holdfast(*words).returncode == 0, words
    assert answer("top") == [] and len(answer("top", "--ended")) == 1
    assert holdfast("run", *file).stderr.startswith("error[job-exists]")
    assert holdfast("resume", "tool").stderr.startswith("error[job-ended]")


def test_endless_output_starves_nobody(home: Path, tool: Tool, tmp_path: Path) -> None:
    """The job is asked, watched and stopped while its worker prints as fast as it can."""
    with (tmp_path / "shown").open("w") as shown:
        words = ["run", *tool("exec yes")]
        with (tmp_path / "tool.yaml").open("a") as job:
            job.write("logs: {max_bytes: 400000}\n")  # what is left is shown at the end
        run = Warm(words, stdout=shown, stderr=subprocess.PIPE, text=True)
    assert until(lambda: any(home.rglob("rank-0.log.1"))), "more than the log may have"
    assert answer("status")["controller"] == "alive"
    assert holdfast("stop", "tool").returncode == 0
    _, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 130
    assert "tool stopped" in err
    assert "[0] y\n" in (tmp_path / "shown").read_text()


def test_who_watches_may_leave_and_the_job_goes_on(home: Path, tool: Tool) -> None:
    answer("run", *tool("echo up; sleep 600"), "--detach")
    assert until(printed(home, "tool", "up"))
    for words in (["watch"], ["logs", "--follow"]):
        watching = start(*words)
        assert watching.stdout is not None
        assert watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=PATIENCE_S)
        assert (watching.returncode, err) == (130, "")
    assert answer("status")["controller"] == "alive"
    assert answer("stop")["asked"] is True


def test_on_a_terminal_the_view_is_live_and_ends_with_the_job(home: Path, tool: Tool) -> None:
    answer("run", *tool("echo up; sleep 600"), "--detach")
    assert until(printed(home, "tool", "up"))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    watching = Warm(["watch"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = os.read(ours, 65536)
    answer("stop")
    seen += _rest(ours)
    assert watching.wait(timeout=PATIENCE_S) == 0
    assert b"\x1b[" in seen
    assert b"stopped, attempt 1" in seen


def _rest(fd: int) -> bytes:
    """Everything until the other end of the terminal is closed."""
    found = b""
    try:
        while data := os.read(fd, 65536):
            found += data
    except OSError:  # how a terminal says so
        os.close(fd)
    return found


def test_what_a_dead_controller_left_is_ended_by_stop(home: Path, tool: Tool) -> None:
    answer("run", *tool("echo up; sleep 600"), "--detach")
    assert until(printed(home, "tool", "up"))
    os.kill(json.loads((home / "jobs/tool/controller.json").read_text())["pid"], signal.SIGKILL)
    assert until(lambda: answer("status")["controller"] == "away")
    assert "holdfast resume tool" in holdfast("status").stdout
    for table in ("list", "top"):
        assert "its controller has died" in holdfast(table).stdout
    assert answer("stop")["killed_count"] >= 2
    found = answer("status")
    assert (found["controller"], found["outcome"], found["incidents_count"]) == (
        "ended",
        "stopped",
        0,
    )
    entries = (home / "jobs/tool/journal.jsonl").read_bytes()
    assert answer("stop")["killed_count"] == 0
    assert (home / "jobs/tool/journal.jsonl").read_bytes() == entries


def test_a_stop_whose_controller_is_killed_meanwhile_ends_what_that_has_left(
    home: Path, tmp_path: Path, tool: Tool
) -> None:
    file = tool("trap '' TERM; echo up; while :; do sleep 0.05; done")
    job = tmp_path / "tool.yaml"
    job.write_text(job.read_text().replace("recovery: {", 'recovery: {"stop_grace_s": 3600, '))
    answer("run", *file, "--detach")
    assert until(printed(home, "tool", "up"))
    stopping = start("stop", "tool")
    assert stopping.stderr is not None
    assert stopping.stderr.readline().startswith("asked tool to stop")
    os.kill(json.loads((home / "jobs/tool/controller.json").read_text())["pid"], signal.SIGKILL)
    out, _ = stopping.communicate(timeout=PATIENCE_S)
    assert out.startswith("the controller of tool had died; killed ")
    assert answer("status")["outcome"] == "stopped"


def test_a_resumed_job_ends_as_if_nothing_had_happened(
    home: Path, tmp_path: Path, tool: Tool
) -> None:
    go = tmp_path / "go"
    answer("run", *tool(f"echo up; while [ ! -e {go} ]; do sleep 0.05; done"), "--detach")
    assert until(printed(home, "tool", "up"))
    os.kill(json.loads((home / "jobs/tool/controller.json").read_text())["pid"], signal.SIGKILL)
    assert until(lambda: answer("status")["controller"] == "away")
    resumed = start("resume", "tool")
    until(lambda: resumed.poll() is not None or answer("status")["controller"] == "alive")
    go.touch()
    _, err = resumed.communicate(timeout=PATIENCE_S)
    assert resumed.returncode == 0, err
    found = answer("status")
    assert (found["attempt"], found["incidents_count"], found["outcome"]) == (1, 0, "succeeded")


def test_a_taken_name_gets_a_number_unless_it_was_given(tmp_path: Path) -> None:
    script = tmp_path / "Hello.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    words = ["run", "--no-python", str(script)]
    assert "hello succeeded" in holdfast(*words).stderr
    assert "hello-2 succeeded" in holdfast(*words).stderr
    assert "error[job-exists]" in holdfast("run", "--name", "hello", *words[1:]).stderr
    assert "hello succeeded" in holdfast("run", "--replace", *words[1:]).stderr
    assert {status["job"] for status in answer("status", "--all")} == {"hello", "hello-2"}


def test_the_ledger_adds_up_and_every_file_is_documented(home: Path, tool: Tool) -> None:
    holdfast("run", *tool("echo x; [ $HOLDFAST_ATTEMPT = 2 ] || kill -9 $$"))
    found = answer("goodput")
    assert sum(found["buckets"].values()) == pytest.approx(found["wall_s"], abs=5e-4)
    assert answer("status")["restarts_count"] == 1
    folder = home / "jobs" / "tool"
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    patterns = [_pattern(path) for path, _, _ in FILES]
    assert not {name for name in files if not any(p.fullmatch(name) for p in patterns)}
    assert folder.stat().st_mode & 0o777 == 0o700


def _pattern(path: str) -> "re.Pattern[str]":
    """`logs/attempt-A/rank-R.log` as an expression."""
    return re.compile(re.sub(r"(NAME|\b[A-Z]\b)", "[^/]+", re.escape(path).replace("\\-", "-")))
