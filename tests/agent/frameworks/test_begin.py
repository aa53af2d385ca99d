"""What a worker of another framework does before its script goes on."""

import os
import sys
from types import ModuleType
from typing import Any

import pytest

from holdfast import later_imports, meeting
from holdfast.agent.frameworks import begin, variables
from holdfast.agent.storage.places import ADDRESS
from holdfast.meeting import PeersMet

CLUSTER = "holdfast.pytrees.jax_cluster"


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


def test_jax_finds_us_first_wherever_it_runs(
    wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the module was not loaded ahead, and within an allocation of Slurm."""
    pytest.importorskip("jax")
    wanted["jax"](ModuleType("jax"))
    types = sys.modules[CLUSTER]._clusters.ClusterEnv._cluster_types
    for name in ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HOLDFAST_NODE", "n0")
    present = [one for one in types if one.is_env_present()]
    assert present[0].name == "holdfast" and len(present) > 1


def test_a_child_of_the_script_meets_nobody(
    wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wanted
    monkeypatch.setattr(meeting, "meet", lambda *_: pytest.fail("a child has met the others"))
    begin.begin_in(os.getppid())
