"""From the words of `holdfast run` to a job."""

import os
from pathlib import Path

import pytest

from holdfast.cli.program import (
    Flags,
    fresh_word,
    job_from_file,
    job_from_words,
    place_given,
    unused_name,
)
from holdfast.errors import Error, ExitStatus


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_everything_after_the_script_belongs_to_the_script(folder: Path) -> None:
    words = ["train.py", "--lr", "3e-4", "--name", "x", "--", "-m", "job.yaml"]
    job = job_from_words(words, Flags())
    assert job.args == tuple(words[1:])
    assert (job.name, job.script) == ("train", str(folder / "train.py"))


def test_a_module_and_a_program_are_no_scripts() -> None:
    module = job_from_words(["pkg.train", "--x"], Flags(module=True))
    assert (module.name, module.module, module.script) == ("train", "pkg.train", None)
    program = job_from_words(["./run.sh", "a"], Flags(no_python=True))
    assert (program.name, program.command, program.args) == ("run", ("./run.sh",), ("a",))
    assert program.uses_torch


def test_a_program_and_a_module_at_once_are_refused() -> None:
    with pytest.raises(Error, match="--module cannot be used"):
        job_from_words(["x"], Flags(module=True, no_python=True))


def test_flags_become_settings(folder: Path) -> None:
    flags = Flags(
        name="gpt",
        nodes="2",
        spares=1,
        workers="4",
        max_restarts=0,
        stop_grace_s=3.0,
        env=("A=1=2", "HOME"),
        workdir="sub",
        terminal="rank0",
        preload=("transformers",),
        preload_imports=False,
        instrument=False,
        integrate=False,
    )
    job = job_from_words(["train.py"], flags)
    assert (job.name, job.nodes.count, job.nodes.spares, job.workers_per_node) == ("gpt", 2, 1, 4)
    assert (job.recovery.max_restarts, job.recovery.stop_grace_s) == (0, 3.0)
    assert job.env == {"A": "1=2", "HOME": os.environ["HOME"]}
    assert (job.warm.preload, job.warm.preload_imports) == (("transformers",), False)
    assert (job.workdir, job.logs.terminal) == (str(folder / "sub"), "rank0")
    assert (job.instrument, job.integrate) == ("off", "off")


def test_without_flags_it_is_one_worker_as_with_torchrun(folder: Path) -> None:
    job = job_from_words(["train.py"], Flags())
    assert (job.nodes.count, job.workers_per_node, job.workdir) == (1, 1, str(folder))


@pytest.mark.parametrize("text", ["=1", "no_such_variable_here", ""])
def test_a_variable_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(Error, match="--env"):
        job_from_words(["train.py"], Flags(env=(text,)))


def test_a_bad_name_is_refused_with_the_rule() -> None:
    with pytest.raises(Error) as caught:
        job_from_words(["train.py"], Flags(name="My Job"))
    assert "lower-case letters, digits and dashes" in caught.value.why


@pytest.mark.parametrize(
    ("script", "name"),
    [("Train_GPT.v2.py", "train-gpt-v2"), ("___.py", "job"), ("x" * 80 + ".py", "x" * 50)],
)
def test_a_script_gives_a_valid_name(script: str, name: str) -> None:
    assert job_from_words([script], Flags()).name == name


def test_a_taken_name_gets_a_number() -> None:
    taken = {"a", "a-2"}
    assert unused_name("a", taken.__contains__) == "a-3"
    assert unused_name("b", taken.__contains__) == "b"
    long = "x" * 50
    assert unused_name(long, {long}.__contains__) == "x" * 48 + "-2"


def test_flags_change_a_job_file(folder: Path) -> None:
    file = folder / "job.yaml"
    file.write_text(
        "name: gpt\nscript: a.py\nnodes: 2\nenv: {A: '1', B: '1'}\nrecovery: {window_s: 60}\n"
    )
    flags = Flags(name="other", spares=1, max_restarts=3, env=("B=2",))
    job = job_from_file(file, flags)
    assert (job.name, job.nodes.count, job.nodes.spares) == ("other", 2, 1)
    assert (job.recovery.window_s, job.recovery.max_restarts) == (60.0, 3)
    assert job.env == {"A": "1", "B": "2"}
    assert (job.script, job.workdir) == (str(folder / "a.py"), str(folder / "."))
    assert job.workers_per_node == "auto"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("nodes", ["2:4", "4", "4:4"])
def test_a_range_of_nodes_makes_a_job_elastic(nodes: str) -> None:
    job = job_from_words(["a.py"], Flags(nodes=nodes))
    assert job.nodes.count == 4
    elastic = job.elasticity and (job.elasticity.min_nodes, job.elasticity.max_nodes)
    assert elastic == ((2, 4) if nodes == "2:4" else None)


def test_a_range_of_nodes_changes_the_one_in_a_job_file(folder: Path) -> None:
    file = folder / "job.yaml"
    file.write_text(
        "name: gpt\nscript: a.py\nnodes: 2\nelasticity: {min_nodes: 1, batch: scale_lr}\n"
    )
    job = job_from_file(file, Flags(nodes="3:5"))
    assert job.nodes.count == 5 and job.elasticity is not None
    assert (job.elasticity.min_nodes, job.elasticity.max_nodes) == (3, 5)
    assert job.elasticity.batch == "scale_lr"


@pytest.mark.parametrize("flags", [Flags(module=True), Flags(no_python=True)])
def test_a_job_file_already_says_what_to_run(folder: Path, flags: Flags) -> None:
    with pytest.raises(Error, match="cannot be used here"):
        job_from_file(folder / "job.yaml", flags)


def test_a_job_begins_anew_under_a_word_of_its_own() -> None:
    words = {
        job_from_words(["a.py"], Flags(fresh=fresh_word(True))).checkpoints.fresh for _ in "ab"
    }
    assert len(words) == 2 and None not in words
    assert job_from_words(["a.py"], Flags(fresh=fresh_word(False))).checkpoints.fresh is None


def test_a_job_begins_with_a_checkpoint_of_another(tmp_path: Path) -> None:
    flags = Flags(start_from=place_given(str(tmp_path)))
    assert job_from_words(["train.py"], flags).checkpoints.start_from == str(tmp_path)
    assert place_given("s3://bucket/gpt") == "s3://bucket/gpt"
    with pytest.raises(Error) as caught:
        place_given(str(tmp_path / "none"))
    assert caught.value.slug == "storage-missing"
    assert f"no folder {tmp_path}/none" in caught.value.what


def test_a_folder_with_a_main_is_run_as_python_runs_it_and_standard_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__main__.py").touch()
    for word in ("trainer", "trainer/"):
        job = job_from_words([word, "--lr", "1"], Flags())
        assert job.script == str(tmp_path / "trainer" / "__main__.py")
        assert (job.name, job.args) == ("trainer", ("--lr", "1"))
    with pytest.raises(Error, match="standard input") as raised:
        job_from_words(["-"], Flags())
    assert raised.value.status == ExitStatus.USAGE
