"""The code of a TrainingJob: a ConfigMap that it names, and a hot update where it names another."""

import base64

import pytest

from holdfast import bundles
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, JOBS
from holdfast.drivers.kubernetes.config_map import binary_of
from holdfast.operator import decide, named_code
from tests.operator.asking import Body, training_job
from tests.operator.test_loop import JOB_ENGINE, Site, impatient, on_site

__all__ = ["impatient"]


@pytest.fixture(autouse=True)
def looks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is missing."""
    monkeypatch.setattr(decide, "BLOCKED_S", 0.1)


def code_of(name: str, content: bytes) -> Body:
    """As `kubectl create configmap NAME --from-file=code.tar.gz`."""
    binary = {"code.tar.gz": base64.b64encode(content).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
            "binaryData": binary}  # fmt: skip


def told(it: Site, what: str) -> set[str]:
    return {condition[what] for condition in it.status().get("conditions", [])}


@on_site
async def test_code_of_another_name_is_an_update_without_new_pods(it: Site) -> None:
    it.start()
    it.store.create(CONFIG_MAPS, "default", code_of("code-1", b"first"))
    await it.apply(training_job(kubernetes=JOB_ENGINE, code="code-1"))
    before = await it.until(lambda: it.get(JOBS, "run"))
    volumes = before["spec"]["template"]["spec"]["volumes"]
    assert {"name": "code-bundle", "configMap": {"name": "code-1"}} in volumes
    it.publish("running")
    it.edit(lambda said: said.update(code="code-2", args=["--lr", "2"]))
    await it.until(lambda: "CodeMissing" in told(it, "reason"))
    assert it.asked() is None and it.marks()["Accepted"] == "True"

    content = b"second" * 150_000
    it.store.create(CONFIG_MAPS, "default", code_of("code-2", content))
    order = await it.until(it.asked)
    assert (order.code, order.args) == (bundles.digest(content), ("--lr", "2"))
    parts = [it.get(CONFIG_MAPS, f"run-update-{number}") for number in (1, 2)]
    data = [*binary_of(parts[0] or {}).items(), *binary_of(parts[1] or {}).items()]
    assert [key for key, _ in data] == ["1-of-2", "2-of-2"]
    assert b"".join(piece for _, piece in data) == content
    await it.until(lambda: "Updating" in told(it, "reason"))

    it.edit(lambda said: said.update(args=["--lr", "3"]))
    then = await it.until(lambda: (now := it.asked()) is not None and now.id != order.id and now)
    assert (then.code, then.args) == (order.code, ("--lr", "3")), "the code stays"
    it.edit(lambda said: said.update(code="code-1"))
    back = await it.until(lambda: (now := it.asked()) is not None and now.id != then.id and now)
    assert back.code == bundles.digest(b"first")
    it.edit(lambda said: said.pop("code"))
    await it.until(lambda: "ChangeWaits" in told(it, "reason"))
    after, code = it.get(JOBS, "run"), it.get(CONFIG_MAPS, "code-1")
    assert after is not None and after["spec"] == before["spec"]
    assert code is not None and "ownerReferences" not in code["metadata"], "it is not ours"


@on_site
async def test_code_that_no_update_can_bring_is_told(it: Site) -> None:
    it.start()
    it.store.create(CONFIG_MAPS, "default", code_of("code-1", b"first"))
    await it.apply(training_job(kubernetes=JOB_ENGINE, code="code-1"))
    await it.until(lambda: it.get(JOBS, "run"))
    it.publish("running")

    async def tells(name: str, body: Body, why: str) -> None:
        it.store.create(CONFIG_MAPS, "default", body)
        it.edit(lambda said: said.update(code=name))
        await it.until(lambda: any(why in text for text in told(it, "message")))
        assert it.asked() is None

    await tells("text", {**code_of("text", b""), "binaryData": {}}, "has no file code.tar.gz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(named_code, "ALWAYS_BYTES", 10)
        await tells("vast", code_of("vast", bytes(11)), "suspend and resume")
