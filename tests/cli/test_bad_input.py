"""Whatever is given to a command: an answer or a clear error, a documented exit status, and nothing
left behind. Never a traceback, a wait without end, or characters that a terminal obeys."""

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.cli import controller, foreground, main, output, run
from holdfast.cli.tail import Line, Tail
from holdfast.drivers.records import create, jobs_home
from holdfast.errors import UNSEEN, Error, ExitStatus, clipped, shown, visible
from holdfast.spec import Job, job_from_dict
from tests.more import examples
from tests.patience import PATIENCE_S

JOB = "name: a\nscript: train.py\n"


class Said(NamedTuple):
    """What a command answered."""

    status: int
    out: str
    err: str


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with some files that are no good; home is in it."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "train.py").write_text("")
    (folder / "good.yaml").write_text(JOB)
    (folder / "image.yaml").write_text(f"{JOB}image: train:1\n")
    (folder / "cycle.yaml").write_text(f"{JOB}overlay: &a [*a]\n")
    (folder / "bytes.yaml").write_bytes(b"\xff\x00\x1b")
    (folder / "escape.yaml").write_text(f'{JOB}"\\e[31mx": 1\n')
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "loop.py").symlink_to("loop.py")
    os.mkfifo(folder / "pipe.yaml")
    os.mkfifo(folder / "pipe.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_HOME", str(folder / "home"))
        patch.chdir(folder)
        yield folder


def holdfast(*words: str) -> Said:
    output._json_wanted = False
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    output._json_wanted = False
    return Said(status, out.getvalue(), err.getvalue())


def refused(*words: str) -> str:
    said = holdfast(*words)
    assert said.status == ExitStatus.USAGE, said
    assert said.err.startswith("error[")
    assert not Path("home").exists()
    return said.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "train.py", "\udcff"), "argument 3 is not UTF-8 text: '\\udcff'"),
        (("run", "--env", "A=\udcff", "train.py"), "argument 3 is not UTF-8 text"),
        (("run", "--env", "A\nB=1", "train.py"), "env.A\\nB: the name of a variable"),
        (("run", "--env", "A=" + "x" * 140_000, "train.py"), "the limit of Linux is"),
        (("run", "train.py", "x" * 140_000), "args[0]: has 140,000 bytes"),
        (("run", "--nnodes", "３", "train.py"), "--nnodes ３ is invalid"),
        (("run", "--nnodes", "1" * 5000, "train.py"), "is invalid"),
        (("run", "--nproc-per-node", "1" * 5000, "train.py"), "is invalid"),
        (("run", "--nnodes", "1" * 18, "train.py"), "nodes.count: must be less than or equal"),
        (("run", "--spares", "-1", "train.py"), "nodes.spares: must be greater than or equal to 0"),
        (("run", "--shutdown-timeout", "nan", "train.py"), "must be a finite number"),
        (("run", ""), "script: must have at least 1 character"),
        (("run", "."), "it is a folder"),
        (("run", "/dev/zero"), "it is not a regular file"),
        (("run", "pipe.py"), "it is not a regular file"),
        (("run", "loop.py"), "Too many levels of symbolic links"),
        (("run", "x" * 5000 + ".py"), "File name too long"),
        (("run", "--workdir", "x" * 5000, "train.py"), "File name too long"),
        (("run", "cycle.yaml"), "refers to a node that contains it"),
        (("validate", "loop.yaml"), "Too many levels of symbolic links"),
        (("validate", "pipe.yaml"), "lines are expected"),
        (("validate", "/dev/zero"), "it is larger than"),
        (("validate", "escape.yaml"), "\\x1b[31mx (line 3): unknown key"),
        (("validate", "x" * 5000), "characters ..."),
        (("validate", "a\0b"), "embedded null"),
        (("validate", "good.yaml", "-n", "A B"), "'A B' is not a valid namespace"),
        (("render", "good.yaml", "--engine", "job", "-n", "A"), "'A' is not a valid namespace"),
        (("submit", "good.yaml", "-n", "a/b"), "'a/b' is not a valid namespace"),
        (("status", "a", "--on", "kubernetes", "-n", "a\n"), "is not a valid namespace"),
        (("lint", "pipe.yaml"), "it contains no objects"),
        (("lint", "cycle.yaml"), "refers to a node that contains it"),
        (("lint", "bytes.yaml"), "not UTF-8"),
        (("simulate", "cycle.yaml"), "refers to a node that contains it"),
        (("simulate", "loop.yaml"), "Too many levels of symbolic links"),
        (("simulate", "x" * 5000), "there is no scenario"),
        (("simulate", "spot-256", "--set", "days=&a [*a]"), "refers to a node that contains it"),
        (("simulate", "spot-256", "--set", "nodes=!!bool maybe"), "is not supported"),
        (("simulate", "spot-256", "--set", "nodes=010"), "YAML 1.1 and YAML 1.2"),
        (("simulate", "spot-256", "--set", "nodes=true"), "nodes: must be a valid integer"),
        (("simulate", "spot-256", "--set", 'failures.mix="a\\0"'), "embedded null"),
        (("simulate", "spot-256", "--set", f"failures.mix={'x' * 5000}"), "File name too long"),
        (("simulate", "spot-256", "--sweep", "spares=５..６"), "is not a sweep"),
        (("\x1b[31mfoo",), "no such command '\\x1b[31mfoo'"),
        (("status", "--\x1b[31m"), "no such option: --\\x1b[31m"),
        (("status", "--" + "x" * 100_000), "characters ..."),
    ],
)
def test_bad_input_is_a_usage_error_that_shows_it_safely(words: Sequence[str], told: str) -> None:
    said = refused(*words)
    assert told in said
    assert not UNSEEN.search(said)
    assert len(said) < 8000


def test_a_usage_error_comes_as_json_too_where_that_is_asked_for() -> None:
    for words in (["status", "--json", "--x"], ["validate", "--json", "\udcff"]):
        error = json.loads(holdfast(*words).out)["error"]
        assert (error["slug"], error["exit_status"]) == ("usage", 2)


def test_bytes_that_are_no_text_and_closed_streams_end_no_command_in_a_traceback(
    folder: Path,
) -> None:
    """As a process: what Python makes of raw arguments, and of `>&-`."""
    script = f"""
        h() {{ {sys.executable} -m holdfast.cli "$@"; echo "status $?" >&3; }}
        h run train.py $'\\xff' 3>&1 2>&1
        HOLDFAST_HOME=$'/tmp/\\xff' h list 3>&1 2>&1
        HOLDFAST_HOME= HOME=$'/tmp/\\xff' h list 3>&1 2>&1
        h list --json 3>&2 2>&1 >&-
        h explain no-such-slug 3>&1 >/dev/null 2>&-
        export PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 LC_ALL=C
        h plan layers=2,hidden=64,heads=4,sequence=128,vocab=9 --gpus 8 3>&1 2>&1
    """
    run = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S
    )
    said = run.stdout + run.stderr
    assert "Traceback" not in said
    assert "argument 3 is not UTF-8 text: '\\udcff'" in said
    for name in ("HOLDFAST_HOME", "HOME"):
        assert f"error[usage]: {name} is not UTF-8 text: '/tmp/\\udcff'" in said
    assert [line for line in said.split("\n") if line.startswith("status")] == [
        "status 2", "status 2", "status 2", "status 4", "status 0", "status 0",
    ]  # fmt: skip
    assert "8 \\xd7 h100" in said


def test_what_is_closed_leaves_its_number_to_no_file_of_ours(tmp_path: Path) -> None:
    """With `<&-` the lock of a job got number 0, and its controller something else for it."""
    opens = "import sys; from holdfast.cli import main; main(['explain', 'usage']); "
    opens += "print(open('/dev/null').fileno(), sys.stdin, file=open(sys.argv[1], 'a'))"
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        words = [sys.executable, "-c", opens, str(tmp_path / "numbers")]
        shell = ["bash", "-c", f'"$@" {closed}', "-"]
        subprocess.run([*shell, *words], timeout=PATIENCE_S, check=True)
    numbers = [line.split() for line in (tmp_path / "numbers").read_text().splitlines()]
    assert len(numbers) == 4 and all(int(number) > 2 for number, *_ in numbers), numbers
    assert [stdin for _, stdin, *_ in numbers].count("None") == 2


IN_ASCII = """
import contextlib, io, json, sys
from holdfast.cli import main, output
for words in json.load(sys.stdin):
    output._json_wanted = False
    with contextlib.redirect_stderr(io.StringIO()) as err:
        print(f"status {main([w.encode().decode('ascii', 'surrogateescape') for w in words])}")
    print(err.getvalue())
"""


def test_what_the_encoding_of_the_locale_lacks_is_named_with_the_remedy(folder: Path) -> None:
    """UTF-8 it is, so it was wrong to say that it is not; a path in a job file gave a traceback."""
    (folder / "größe").mkdir()
    (folder / "größe" / "train.py").touch()
    for name, text in {
        "in-path": "script: größe/train.py",
        "in-word": "script: train.py\nargs: [größe]",
        "in-variable": "script: train.py\nenv: {A: größe}",
        "größe/in-folder": "script: train.py",
    }.items():
        (folder / f"{name}.yaml").write_text(f"name: a\n{text}\n", encoding="utf-8")
    commands = [
        ["validate", "in-path.yaml"],
        ["run", "in-word.yaml"],
        ["validate", "in-variable.yaml"],
        ["run", "größe/train.py"],
        ["status", "größe", "--json"],
        ["validate", "good.yaml"],
    ]
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    outs = [
        subprocess.run(
            [sys.executable, "-c", IN_ASCII], cwd=where, input=json.dumps(given), env=environ,
            capture_output=True, text=True, timeout=PATIENCE_S,
        )
        for where, given in ((folder, commands), (folder / "größe", [["run", "in-folder.yaml"]]))
    ]  # fmt: skip
    assert not any(out.returncode for out in outs), outs
    said = outs[0].stdout + outs[1].stdout
    assert said.count("error[locale-encoding]: the locale of this shell cannot represent") == 6
    assert said.count("its encoding is ascii, and PYTHONUTF8=0") == 6 + said.count('{"error"')
    assert said.count("status 2") == 6 and said.count("status 0") == 1
    assert r"gr\xf6\xdfe/train.py" in said
    told = next(line for line in said.splitlines() if line.startswith("{"))
    assert "größe" in json.loads(told)["error"]["what"]


def test_a_folder_whose_name_is_no_text_holds_no_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Path(os.fsdecode(os.fsencode(folder) + b"/\xff"))
    there.mkdir()
    (there / "train.py").touch()
    (there / "good.yaml").write_text(JOB)
    monkeypatch.chdir(there)
    for words in (("run", "train.py"), ("run", "good.yaml"), ("validate", "good.yaml")):
        assert " is not UTF-8 text: " in refused(*words)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["explain"], "output-unwritable"),
        (["list", "--json"], "output-unwritable"),
        (["version"], "output-unwritable"),
        (["--help"], "output-unwritable"),
        (["render", "image.yaml", "--engine", "job", "--mode", "plain"], "output-unwritable"),
        (["status", "nobody", "--json"], "job-not-found"),
    ],
)
def test_a_full_standard_output_is_told_on_standard_error_alone(
    words: list[str],
    first: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(output, "_json_wanted", False)
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        status = main(words)
        full.flush()  # as Python does when it ends: what it still held goes nowhere
    err = capsys.readouterr().err
    assert err.startswith(f"error[{first}]")
    if "--json" in words or first == "output-unwritable":
        assert "standard output cannot be written\n  why: No space left on device" in err
    assert status == (ExitStatus.PLATFORM if first == "output-unwritable" else 4)


def test_a_reader_who_has_gone_before_an_error_is_no_second_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_json_wanted", False)
    there, here = os.pipe()
    os.close(there)
    with open(here, "w") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert main(["status", "nobody", "--json"]) == 4
        pipe.flush()
    assert capsys.readouterr().err.startswith("error[job-not-found]")


def test_workers_that_nobody_can_hear_leave_nothing_that_fails_at_the_end() -> None:
    """A job goes on where its terminal is full, and its exit status is its own."""
    tail = SimpleNamespace(drain=lambda: [Line(1, 0, "step 1")])
    ended = threading.Event()
    ended.set()
    with open("/dev/full", "w") as full:
        foreground._show(cast(Tail, tail), full, ended)
        full.flush()


def test_without_a_home_directory_the_variable_to_set_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    assert main(["status"]) == ExitStatus.USAGE
    said = capsys.readouterr().err
    assert said.startswith("error[home-unknown]")
    assert "HOLDFAST_HOME" in said


def test_a_command_that_may_start_no_thread_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found by hand with `ulimit -u 6`: a traceback of asyncio."""

    def start(_: Sequence[str]) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("holdfast.cli._run", start)
    assert main(["status"]) == ExitStatus.PLATFORM
    said = capsys.readouterr().err
    assert said.startswith("error[limit-too-small]") and "ulimit -u" in said


def test_a_limit_on_memory_that_is_too_small_for_a_command_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_much(_: Sequence[str]) -> int:
        raise MemoryError

    monkeypatch.setattr("holdfast.cli._run", too_much)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (60 << 20, 60 << 20))
    assert main(["status"]) == ExitStatus.PLATFORM
    said = capsys.readouterr().err
    assert said.startswith("error[limit-too-small]") and "(ulimit -v), is 61440" in said
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    with pytest.raises(MemoryError):
        main(["status"])


def test_a_name_that_another_command_takes_first_gets_the_next_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    tried: list[str] = []

    def start(job: Job, *_: object, **__: object) -> None:
        folder = jobs_home() / job.name
        if not tried:
            os.close(create(job, folder, now=0.0))
        tried.append(job.name)
        os.close(create(job, folder, now=0.0))

    monkeypatch.setattr(run, "start", start)
    assert main(["run", "--no-python", "/bin/true"]) == ExitStatus.OK
    assert tried == ["true", "true-2"]


def test_a_job_that_is_stopped_before_anybody_looked_has_not_failed_to_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    job = job_from_dict({"name": "one", "command": ["true"]}, where="test")
    folder = jobs_home() / "one"
    lock = create(job, folder, now=0.0)
    ended = SimpleNamespace(poll=lambda: 130, pid=0, returncode=130)
    monkeypatch.setattr(controller, "_start", lambda *_: ended)
    (folder / "controller.log").write_text("killed while it started")
    with pytest.raises(Error, match="killed while it started"):
        controller.launch(folder, lock)
    assert main(["stop", "one"]) == ExitStatus.OK
    controller.launch(folder, None)


def test_a_name_whose_record_is_a_link_to_nothing_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    jobs_home().mkdir()
    (jobs_home() / "true").symlink_to(tmp_path / "a-disk-that-is-away")
    tried: list[str] = []

    def start(job: Job, *_: object, **__: object) -> None:
        tried.append(job.name)
        assert len(tried) < 9, "it is tried for ever"
        os.close(create(job, jobs_home() / job.name, now=0.0))

    monkeypatch.setattr(run, "start", start)
    assert main(["run", "--no-python", "/bin/true"]) == ExitStatus.OK
    assert tried == ["true-2"]


def test_delete_of_a_job_of_this_machine_says_how_it_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not that a kubeconfig is missing, unless a cluster was asked for; and the help works."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "my home"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    folder = jobs_home() / "gpt"
    os.close(create(Job(name="gpt", script="train.py"), folder, now=0.0))
    for words in ((), ("--on", "local")):
        said = holdfast("delete", "gpt", *words)
        assert said.status == ExitStatus.USAGE
        assert "job 'gpt' is on this machine, and delete is for jobs in a cluster" in said.err
        assert f"holdfast stop gpt && rm -r '{folder}'" in said.err
    assert holdfast("stop", "gpt").status == ExitStatus.OK
    assert "error[kubeconfig-unusable]" in holdfast("delete", "gpt", "--on", "kubernetes").err
    assert "error[kubeconfig-unusable]" in holdfast("delete", "rum").err
    assert holdfast("delete", "rum", "--on", "local").status == ExitStatus.NOT_FOUND
    assert folder.is_dir()


def test_the_home_of_a_variable_that_no_shell_has_read_is_expanded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_HOME", "~/records")
    assert jobs_home() == tmp_path / "records" / "jobs"


def test_a_home_that_is_not_absolute_is_one_folder_wherever_processes_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for home, variable in (("here/.holdfast", "HOME"), ("here", "HOLDFAST_HOME")):
        monkeypatch.delenv("HOLDFAST_HOME", raising=False)
        monkeypatch.setenv(variable, "here")
        assert jobs_home() == tmp_path / home / "jobs"


def test_a_working_directory_that_was_removed_is_said_to_be_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["run", "train.py"]) == ExitStatus.PLATFORM
    assert "the current directory" in capsys.readouterr().err


def test_a_closed_standard_input_holds_no_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "manifests from standard input" in (said := refused("lint", "-"))
    assert "it is closed" in said


def test_a_job_file_comes_from_standard_input_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    given(JOB)
    assert holdfast("validate", "-").out.startswith("standard input is valid: job a")
    given("name: a\nscrpt: train.py\n")
    assert "standard input: 2 problems in the job description" in refused("validate", "-")
    given("script: [")
    assert "the job file standard input" in refused("render", "-", "--engine", "job")
    monkeypatch.setattr(sys, "stdin", None)
    assert "it is closed" in refused("validate", "-")


# ── what is printed ───────────────────────────────────────────────────────────────────────────


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_what_a_terminal_obeys_is_shown_and_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert visible("a\x1b]0;x\x07\r\x9b\u202e\u200b\udcff\tb\nc\u00e9") == (
        "a\\x1b]0;x\\x07\\r\\x9b\\u202e\\u200b\\udcff\tb\nc\u00e9"
    )
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        output.result(f"{output.styled('ours', 'red')} \x1b[2Jtheirs")
        styled = "\x1b[31mours\x1b[0m" if stream.isatty() else "ours"
        assert stream.getvalue() == f"{styled} \\x1b[2Jtheirs\n"


def test_an_error_is_kept_to_a_length_however_long_what_it_quotes() -> None:
    error = Error("usage", "x" * 10**6 + "\n", why="y" * 10**6, help="z" * 10**6)
    assert len(str(error)) < 8000
    assert "1,000,002 characters" in error.what
    again = Error("usage", error.what, why=error.why, help=error.help)
    assert str(again) == str(error)
    assert clipped("short", 10) == "short"
    assert shown("\x1b" * 100).startswith("'\\x1b")
    assert len(shown("x" * 1000)) == 80


# ── fuzz ──────────────────────────────────────────────────────────────────────────────────────

VERBS = (
    "run", "list", "status", "logs", "why", "incidents", "goodput", "stop", "resume", "nodes",
    "validate", "render", "lint", "explain", "schema", "version", "",
)  # fmt: skip
WORDS = st.sampled_from(
    (
        "none.py", "good.yaml", "cycle.yaml", "bytes.yaml", "escape.yaml", "loop.yaml", "pipe.yaml",
        "none.yaml", ".", "/dev/null", "/dev/zero", "--json", "--engine", "pods", "--mode", "plain",
        "--nnodes", "1:2", "0", "-1", "３", "1e9", "nan", "9" * 400, "--spares", "--env", "A=B",
        "=", "--name", "--", "-", "--rank", "--attempt", "--incident", "--help", "--workdir",
        "--max-restarts", "--kubernetes-version", "1.2.3", "--namespace", "\x1b[2J", "\udcff",
        "x" * 5000, "-m", "--no-python", "--from", "--terminal", "--rdzv-endpoint", "usage",
    )
) | st.text(max_size=6)  # fmt: skip


@settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=list(HealthCheck),
)
@given(st.sampled_from(VERBS), st.lists(WORDS, max_size=5))
def test_any_command_line_is_answered(verb: str, words: list[str]) -> None:
    if verb == "run":
        words = [*words, "--name", "A B", "none.py"]  # whatever else, nothing may start
    said = holdfast(verb, *words)
    assert said.status in list(ExitStatus)
    assert not UNSEEN.search(said.err)
    assert len(said.err) < 20_000
    if said.status != ExitStatus.OK:
        assert "error[" in said.err
    assert not Path("home").exists()
