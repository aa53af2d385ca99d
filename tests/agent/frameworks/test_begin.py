"""What a worker of another framework does before its script goes on."""

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest

from holdfast import later_imports, meeting
from holdfast.agent.frameworks import begin, variables
from holdfast.agent.storage.places import ADDRESS
from holdfast.meeting import PeersMet


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is to be done after which import, in the only worker of a job with JAX."""
    found: dict[str, Any] = {}
    told = {
        variables.FRAMEWORK: "jax", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "HOLDFAST_ATTEMPT": "1",
        ADDRESS: "127.0.0.1:1", meeting.KEY: "key",
        **dict.fromkeys(("JAX_COORDINATOR_ADDRESS", "PROCESS_ID", "NUM_PROCESSES"), "0"),
    }  # fmt: skip
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(meeting, "meet", lambda *_: PeersMet(("127.0.0.1:1",), ()))
    monkeypatch.setattr(later_imports, "when_imported", found.update)
    begin.begin_in(os.getpid())
    return found


LOOK = """
import sys
from holdfast.agent.frameworks import begin
begin.begin()
import jax
types = sys.modules["holdfast.pytrees.jax_cluster"]._clusters.ClusterEnv._cluster_types
print([one.name for one in types if one.is_env_present()])
"""


@pytest.mark.usefixtures("wanted")
def test_jax_finds_us_first_wherever_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the module was not loaded ahead, and within an allocation of Slurm. In a process
    of its own, because one that has imported JAX should not fork."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("needs JAX")
    for name in ("JOB_ID", "STEP_NODELIST", "NTASKS", "PROCID", "LOCALID", "STEP_NUM_NODES"):
        monkeypatch.setenv(f"SLURM_{name}", "1")
    monkeypatch.setenv("HOLDFAST_NODE", "n0")
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("['holdfast', 'slurm'"), done.stdout + done.stderr


def test_a_child_of_the_script_meets_nobody(
    wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wanted
    monkeypatch.setattr(meeting, "meet", lambda *_: pytest.fail("a child has met the others"))
    begin.begin_in(os.getppid())
