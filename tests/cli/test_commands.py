"""Commands that need no running job, as a process of their own: status, output and errors."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import cli
from holdfast.errors import SLUGS
from tests.patience import PATIENCE_S
from tests.warm import Warm, holdfast


def test_version_says_the_version() -> None:
    import holdfast as package

    assert holdfast("version").stdout == f"holdfast {package.__version__}\n"
    assert holdfast("--version").stdout == f"holdfast {package.__version__}\n"
    assert json.loads(holdfast("version", "--json").stdout)["holdfast"] == package.__version__


def test_python_m_holdfast_is_the_same_as_holdfast() -> None:
    words = [sys.executable, "-m", "holdfast", "--version"]
    assert subprocess.check_output(words, text=True) == holdfast("--version").stdout


def test_help_lists_every_verb_and_nothing_hidden() -> None:
    text = holdfast("--help").stdout
    for verb in (
        "run", "status", "watch", "logs", "why", "incidents", "goodput", "stop", "resume",
        "validate", "render", "schema", "simulate", "doctor", "check", "replay", "explain",
        "version",
    ):  # fmt: skip
        assert f"\n  {verb} " in text
    assert "\n  controller " not in text
    assert holdfast().stdout == text
    assert holdfast("-h").stdout == text


@pytest.mark.parametrize(
    "words",
    [
        ("statu",),
        ("run",),
        ("run", "--no-such-flag", "train.py"),
        ("run", "--spares", "x", "train.py"),
        ("run", "--nnodes", "4:1", "train.py"),
        ("run", "--node-rank", "1", "train.py"),
        ("logs", "--rank", "-1"),
        ("validate",),
        ("version", "surplus"),
        ("controller",),
    ],
)
def test_a_wrong_command_line_is_an_error_in_our_form_with_status_2(words: tuple[str, ...]) -> None:
    run = holdfast(*words)
    assert run.returncode == 2
    assert run.stderr.startswith("error[usage]: ")
    assert "\n  why: " in run.stderr
    assert "\n  help: " in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


def test_a_usage_error_is_json_too_where_json_was_asked_for() -> None:
    run = holdfast("run", "--json", "--no-such-flag", "train.py")
    assert json.loads(run.stdout)["error"]["slug"] == "usage"
    run = holdfast("run", "--no-such-flag", "train.py", "--json")
    assert run.stdout == ""


def test_validate_accepts_a_good_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    file = tmp_path / "job.yaml"
    file.write_text("name: gpt\nscript: train.py\nnodes: {count: 2, spares: 1}\n")
    assert "is valid: job gpt, 2 nodes + 1 spare" in holdfast("validate", str(file)).stdout
    found = json.loads(holdfast("validate", str(file), "--json").stdout)
    assert (found["valid"], found["job"]["nodes"]["spares"]) == (True, 1)


def test_validate_tells_of_layers_divided_across_nodes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    file = tmp_path / "job.yaml"
    text = "name: gpt\nscript: train.py\nnodes: 2\nworkers_per_node: 2\nparallel: {tp: %d}\n"
    file.write_text(text % 4)
    assert "parallel: tp 4 spans nodes of 2 workers" in holdfast("validate", str(file)).stdout
    file.write_text(text % 2)
    assert "spans" not in holdfast("validate", str(file)).stdout


def test_validate_tells_which_mode_of_recovery_the_script_has_by_default(tmp_path: Path) -> None:
    file, script = tmp_path / "job.yaml", tmp_path / "train.py"
    told = {}
    for call in ("join()", "join(in_process=True)", "print()"):
        script.write_text(f"from holdfast.train import join\n{call}\n")
        file.write_text("name: gpt\nscript: train.py\n")
        told[call] = json.loads(holdfast("validate", str(file), "--json").stdout)["notes"]
        file.write_text("name: gpt\nscript: train.py\nrecovery: {mode: processes}\n")
        assert json.loads(holdfast("validate", str(file), "--json").stdout)["notes"] == []
    ((replaced,), (kept,), silent) = told.values()
    assert "all workers are replaced" in replaced and "train.py does not declare" in replaced
    assert "keep their processes; train.py declares join(in_process=True)" in kept
    assert silent == []


def test_validate_refuses_a_bad_file_and_a_missing_script(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: gpt\nscript: train.py\nbad: 1\n")
    run = holdfast("validate", str(file), "--json")
    assert run.returncode == 2
    assert "bad (line 3): unknown key" in json.loads(run.stdout)["error"]["why"]
    file.write_text("name: gpt\nscript: train.py\n")
    assert "error[script-not-found]" in holdfast("validate", str(file)).stderr


def test_schema_is_json() -> None:
    assert json.loads(holdfast("schema").stdout)["properties"]["name"]["maxLength"] == 50


def test_explain_lists_and_explains() -> None:
    listed = holdfast("explain").stdout
    assert all(f"\n{slug} " in listed for slug in SLUGS)
    assert "exit status 2" in holdfast("explain", "job-invalid").stdout
    assert "exit status 2" in holdfast("explain", "error[job-invalid]:").stdout
    assert "did you mean job-invalid?" in holdfast("explain", "job-invalide").stderr


def test_explain_finds_known_problems_in_a_log(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(
        b"step 1\nRuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.4]:46571\n"
        b"\xff\x00 junk\n" + b"x" * 1_000_000 + b"\n"
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert f"holdfast explain - < {log}" in holdfast("explain", str(log)).stderr
    text = log.read_text(errors="replace")
    told = holdfast("explain", "-", given=text).stdout
    assert told.index("gpu-memory (code; line 5)") < told.index("gloo-peer-closed (consequence")
    problems = json.loads(holdfast("explain", "-", "--json", given=text).stdout)["problems"]
    assert [one["slug"] for one in problems] == ["gpu-memory", "gloo-peer-closed"]
    with log.open("rb") as file:
        ran = Warm(["explain"], stdin=file, stdout=subprocess.PIPE, text=True)
    assert ran.communicate(timeout=PATIENCE_S)[0] == told
    assert "no known problem" in holdfast("explain", "-", given="all is well\n").stdout
    assert "| holdfast explain -" in holdfast("explain", given=text).stderr, "a pipe is not read"
    assert "A known problem of logs (code)" in holdfast("explain", "gpu-memory").stdout


@pytest.mark.parametrize(
    "verb", ["status", "watch", "logs", "why", "incidents", "goodput", "stop", "resume"]
)
def test_a_job_that_is_not_there_is_said_with_status_4(home: Path, verb: str) -> None:
    for words in ((verb,), (verb, "no-such-job"), (verb, "../etc")):
        run = holdfast(*words)
        assert run.returncode == 4
        assert run.stderr.startswith("error[job-not-found]: ")
    assert list(home.iterdir()) == []


@pytest.mark.usefixtures("home")
def test_all_jobs_are_none_at_first() -> None:
    run = holdfast("status", "--all", "--json")
    assert (run.returncode, json.loads(run.stdout)) == (0, [])


def test_run_starts_nothing_when_the_script_is_missing(home: Path) -> None:
    run = holdfast("run", "no-such-file.py")
    assert run.returncode == 2
    assert "error[script-not-found]: the script" in run.stderr
    assert list(home.iterdir()) == []


@pytest.mark.usefixtures("home")
def test_a_job_file_takes_no_arguments_but_flags(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: gpt\nscript: none.py\n")
    assert "takes no arguments" in holdfast("run", str(file), "--spares", "1", "extra").stderr
    assert "error[script-not-found]" in holdfast("run", str(file), "--spares", "1").stderr
    assert "no such option: --lr" in holdfast("run", str(file), "--lr", "1").stderr


@pytest.mark.usefixtures("home")
def test_doctor_finds_a_home_that_cannot_be_written() -> None:
    bad = holdfast("doctor", HOLDFAST_HOME="/proc/holdfast")
    assert bad.returncode == 3
    assert "bad  home: /proc" in bad.stdout
    assert "help: set HOLDFAST_HOME" in bad.stdout
    marks = [line.split(":")[0] for line in bad.stdout.splitlines() if line[:1] != " "]
    assert [mark for mark in marks if mark[:2] != "ok"] == ["bad  home", "bad  disk"]


def test_a_reader_that_leaves_is_no_error() -> None:
    pipe = Warm(["schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert pipe.stdout is not None
    assert pipe.stderr is not None
    pipe.stdout.close()
    assert pipe.stderr.read() == b""
    pipe.stderr.close()
    assert pipe.wait(PATIENCE_S) == 0


def test_the_shell_gets_completions() -> None:
    run = holdfast(_HOLDFAST_COMPLETE="complete_bash", COMP_WORDS="holdfast st", COMP_CWORD="1")
    assert {"status", "stop"} <= set(run.stdout.split())


def test_another_ctrl_c_once_all_is_said_does_not_change_the_exit_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "main", lambda: 3)
    former = signal.getsignal(signal.SIGINT)
    try:
        status = cli.command()
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, former)
    assert status == 3
