"""What the agent reads off a job without running it."""

from pathlib import Path

import msgspec
import pytest

from holdfast import rank
from holdfast.agent import environment
from holdfast.agent.fork_protocol import ChildKind
from holdfast.checkpoint.lineage import BAD, bad_steps
from holdfast.dimensions import VARIABLE, layout_in
from holdfast.spec import Job
from holdfast.train.candidates import BELOW
from tests.agent.parts import start


@pytest.mark.parametrize(
    ("given", "instrumented", "expected"),
    [
        ({"script": "a.py"}, True, (ChildKind.RUN, ChildKind.RUN)),
        ({"script": "a.py"}, False, (ChildKind.RUN, ChildKind.WAIT)),
        ({"script": "a.py", "warm": {"mode": "imports"}}, True, (ChildKind.RUN, ChildKind.WAIT)),
        ({"script": "a.py", "warm": {"mode": "script"}}, False, (ChildKind.RUN, ChildKind.RUN)),
        ({"script": "a.py", "warm": {"mode": "off"}}, True, (ChildKind.RUN, None)),
        ({"command": ["a"]}, False, (ChildKind.EXEC, None)),
    ],
)
def test_how_workers_are_made(
    given: dict[str, object], instrumented: bool, expected: tuple[ChildKind, ChildKind | None]
) -> None:
    job = Job.model_validate({"name": "a", **given})
    assert environment.kinds_of(job, instrumented) == expected


def test_workers_are_told_what_they_may_not_restore() -> None:
    job, told = Job(name="a", script="a.py"), start()
    env = environment.rank_environment(job, told, 0)
    assert not {BELOW, BAD} & env.keys()
    told = msgspec.structs.replace(told, restore_below=7, bad_steps=((2, 9), (4, 12)))
    env = environment.rank_environment(job, told, 0)
    assert env[BELOW] == "7" and bad_steps(env) == {2: 9, 4: 12}
    assert {BELOW, BAD} <= rank.VARIABLES, "a worker that has no rank yet waits for them"


def test_auto_is_one_worker_per_gpu_and_at_least_one() -> None:
    job = Job(name="a", script="a.py")
    for chosen, count in (("", 1), ("3", 1), ("0,1,2,3", 4)):
        assert environment.worker_count(job, {"CUDA_VISIBLE_DEVICES": chosen}) == count
    own = job.model_copy(update={"env": {"CUDA_VISIBLE_DEVICES": "0,1"}})
    assert environment.worker_count(own, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}) == 2


def test_a_job_for_the_processor_has_one_worker_and_sees_no_device() -> None:
    job = Job(name="a", script="a.py", device="cpu")
    given = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert environment.worker_count(job, given) == 1
    env = environment.node_environment(job, "n", 1, given, {})
    assert (env["HOLDFAST_DEVICE"], env["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")


def test_variables_of_an_outer_launcher_do_not_reach_warm_workers() -> None:
    job = Job(name="a", script="a.py", env={"MINE": "1"})
    env = environment.node_environment(
        job, "n", 1, {"RANK": "5", "WORLD_SIZE": "8", "PATH": "p"}, {}
    )
    assert "RANK" not in env and "WORLD_SIZE" not in env
    assert (env["MINE"], env["PATH"], env["HOLDFAST_NODE"]) == ("1", "p", "n")
    assert "OMP_NUM_THREADS" not in env


def test_compiled_code_is_kept_beside_the_jobs_unless_the_user_says_where() -> None:
    found = environment.compile_caches(Path("/home/compiled"))
    assert found.pop("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS") == "0"
    assert {Path(where).parts[2] for where in found.values()} == {"compiled"}
    given = {**found, "TRITON_CACHE_DIR": "/mine"}
    env = environment.node_environment(Job(name="a", script="a.py"), "n", 1, given, {})
    assert env["TRITON_CACHE_DIR"] == "/mine"
    assert env["TORCHINDUCTOR_CACHE_DIR"] == "/home/compiled/inductor"


def test_a_layout_reaches_the_workers_and_stages_preload_what_they_need() -> None:
    given = {"name": "a", "script": "a.py", "nodes": 2, "parallel": {"pp": 2}}
    job = Job.model_validate(given)
    env = environment.node_environment(job, "n", 1, {}, {})
    assert layout_in(env).pp == 2
    assert "torch.distributed.pipelining" in environment.preload_of(job).framework
    plain = Job(name="a", script="a.py")
    assert VARIABLE not in environment.node_environment(plain, "n", 1, {}, {})
    assert "torch.distributed.pipelining" not in environment.preload_of(plain).framework


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [({"compile": True}, ("json", "holdfast.train.compiler_ahead")), ({"pp": 2}, ("json",))],
)
def test_a_job_that_compiles_has_the_compiler_loaded_where_it_may_turn_out_to_be_unfit(
    parallel: dict[str, object], expected: tuple[str, ...]
) -> None:
    given = {"name": "a", "script": "a.py", "nodes": 2, "parallel": parallel}
    job = Job.model_validate({**given, "warm": {"preload": ["json"]}})
    assert environment.preload_of(job).modules == expected
