"""What the pod that failed has printed can be read after its plain job has, where engines allow it.

Engines remove what still runs when a job fails, and one whose containers start again in their pods
still runs. So an engine that makes pods anew keeps the output of those that failed.
"""

import sys
from typing import Any

import pytest

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.ending import main_object
from holdfast.drivers.kubernetes.manifests.render import unchecked
from holdfast.drivers.kubernetes.remote import look
from holdfast.drivers.kubernetes.remote_logs import everything
from holdfast.operator.observation import DONE
from holdfast.spec.cluster import Engine
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.playing import playing

PROGRAM = """
import socket, sys, time
if "-0" in socket.gethostname():
    print("boom", flush=True)
    sys.exit(3)
time.sleep(600)
"""


def left(engine: Engine, restarts: int) -> list[str]:
    """Lines that can be read once the engine says that the job has failed and nothing runs."""
    command = [sys.executable, "-c", PROGRAM]
    keys: dict[str, Any] = {"recovery": {"max_restarts": restarts}, "command": command}
    request = asked(engine, "plain", nodes=2, namespace="default", **keys)
    kind = main_object(request)
    assert kind is not None

    async def story(it: FakeCluster, api: Api) -> list[str]:
        for body in unchecked(request):
            await api.apply(body)
        await it.until(lambda: _failed(it.store.get(kind, "default", "run")))
        await it.until(lambda: not _running(it))
        return await _lines(api)

    return playing(story, machines=3)


def _failed(body: Body) -> bool:
    status = body.get("status", {})
    told = [c["type"] for c in status.get("conditions", []) if c["status"] == "True"]
    state = status.get("state")
    told += [str(state.get("phase"))] if isinstance(state, dict) else []
    return "failed" in {DONE.get(word) for word in told}


def _running(it: FakeCluster) -> bool:
    return any(p["status"].get("phase") not in ("Failed", "Succeeded") for p in it.pods(job="run"))


async def _lines(api: Api) -> list[str]:
    return [line.text async for line in everything(api, await look(api, "run"), print)]


@pytest.mark.parametrize("engine", ["job", "jobset", "trainjob", "pytorchjob", "volcano"])
def test_a_job_that_is_never_restarted_leaves_the_output_of_its_failure(engine: Engine) -> None:
    assert set(left(engine, 0)) == {"boom"}


@pytest.mark.parametrize("engine", ["job", "jobset", "trainjob"])
def test_a_job_that_was_restarted_leaves_the_output_of_its_last_failure(engine: Engine) -> None:
    found = left(engine, 1)
    assert set(found) == {"boom"}
    assert engine != "job" or len(found) == 2, "a Job leaves that of all, a JobSet makes it anew"
