"""What the agent reads off a job without running it."""

from pathlib import Path

import pytest

from holdfast.agent import environment
from holdfast.agent.wire import Kind, Program
from holdfast.spec import Job


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from holdfast.train import join", True),
        ("import holdfast.train", True),
        ("import holdfast.train.data as d", True),
        ("from holdfast import train", True),
        ("def f():\n    from holdfast.train import join", True),
        ("# import holdfast.train", False),
        ("text = 'import holdfast.train'", False),
        ("import holdfast", False),
        ("import holdfast.training_wheels", False),
        ("from .holdfast.train import join", False),
        ("this is not python", False),
    ],
)
def test_a_script_is_instrumented_if_it_imports_the_library(
    tmp_path: Path, source: str, expected: bool
) -> None:
    (tmp_path / "script.py").write_text(source)
    program = Program(script=str(tmp_path / "script.py"))
    assert environment.is_instrumented(program) is expected


def test_a_module_is_looked_into_without_being_imported(tmp_path: Path) -> None:
    package = tmp_path / "some_pack"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "one.py").write_text("import holdfast.train")
    (package / "__main__.py").write_text("import os")
    found = {
        name: environment.is_instrumented(Program(module=name, workdir=str(tmp_path)))
        for name in ("some_pack", "some_pack.one", "some_pack.two", "json.tool")
    }
    assert found == {
        "some_pack": False,
        "some_pack.one": True,
        "some_pack.two": False,
        "json.tool": False,
    }


@pytest.mark.parametrize(
    ("given", "instrumented", "expected"),
    [
        ({"script": "a.py"}, True, (Kind.RUN, Kind.RUN)),
        ({"script": "a.py"}, False, (Kind.RUN, Kind.WAIT)),
        ({"script": "a.py", "warm": {"mode": "imports"}}, True, (Kind.RUN, Kind.WAIT)),
        ({"script": "a.py", "warm": {"mode": "script"}}, False, (Kind.RUN, Kind.RUN)),
        ({"script": "a.py", "warm": {"mode": "off"}}, True, (Kind.RUN, None)),
        ({"command": ["a"]}, False, (Kind.EXEC, None)),
    ],
)
def test_how_workers_are_made(
    given: dict[str, object], instrumented: bool, expected: tuple[Kind, Kind | None]
) -> None:
    job = Job.model_validate({"name": "a", **given})
    assert environment.kinds_of(job, instrumented) == expected


def test_auto_is_one_worker_per_gpu_and_at_least_one(tmp_path: Path) -> None:
    job = Job(name="a", script="a.py")
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert environment.gpu_count({}, tmp_path) == 2
    assert environment.gpu_count({"CUDA_VISIBLE_DEVICES": "3"}, tmp_path) == 1
    assert environment.gpu_count({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0
    assert [environment.worker_count(job, count) for count in (0, 1, 4)] == [1, 1, 4]


def test_variables_of_an_outer_launcher_do_not_reach_warm_workers() -> None:
    job = Job(name="a", script="a.py", env={"MINE": "1"})
    env = environment.node_environment(
        job, "n", 1, {"RANK": "5", "WORLD_SIZE": "8", "PATH": "p"}, {}
    )
    assert "RANK" not in env and "WORLD_SIZE" not in env
    assert (env["MINE"], env["PATH"], env["HOLDFAST_NODE"]) == ("1", "p", "n")
    assert "OMP_NUM_THREADS" not in env
