"""Cordoned machines are checked when their time is over, by `holdfast check` in a pod."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.checks.outcome import CheckResult
from holdfast.diagnosis import machine_memory as memories
from holdfast.diagnosis.machine_memory import CORDON_S, PASSED, MachineMemory
from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.cluster import (
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITIES,
    SERVICE_ACCOUNTS,
)
from holdfast.drivers.kubernetes.cordons import cordon, memory_of
from holdfast.drivers.kubernetes.machines import (
    EXPIRES,
    MEMORY,
    OUT_OF_SERVICE,
    OWNER,
    REASON,
    Machine,
)
from holdfast.operator import machine_care
from holdfast.operator.machine_care import CHECKED, MachineCare, judged, pod_name
from tests import quick_yaml
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.playing import playing
from tests.more import sample
from tests.tidy.source import ROOT

BEFORE_S = 2 * CORDON_S + 60
END = ("Succeeded", "Failed")


class Ward:
    """A cluster with one cordoned machine whose time is over, and who looks after it."""

    def __init__(self, it: FakeCluster, api: Api, image: str = "img:1") -> None:
        self.it, self.told = it, list[str]()
        self.care = MachineCare(api, image, self.told.append)

    def machine(self) -> Machine:
        return msgspec.convert(self.it.store.find(NODES, "", "m-0"), Machine)

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        self.it.store.change(NODES, "", "m-0", change)

    def cordoned_before(self, times: int) -> None:
        """So often lately, each one ended by a check; the last one is over by now."""
        memory, now = MachineMemory(), time.time() - (times + 2) * times * CORDON_S
        for number in range(1, times + 1):
            memory = memories.cordoned(memory, by="team/run", why="XID 79", now=now)
            now += number * CORDON_S
            if number < times:
                memory = memories.ended(memory, PASSED, now)
        self.edit(lambda b: b["metadata"]["annotations"].update({MEMORY: memories.written(memory)}))

    def pods(self) -> list[dict[str, Any]]:
        return [p for p in self.it.store.all(PODS) if CHECKED in p["metadata"].get("labels", {})]

    async def checked(self) -> MachineMemory:
        """Look until the check is over, and once more."""
        await self.care.look(time.time())
        await self.it.until(lambda: any(p["status"]["phase"] in END for p in self.pods()))
        await self.care.look(time.time())
        await self.it.until(lambda: not self.pods())
        return memory_of(self.machine(), time.time())


def cared_for(story: Callable[[Ward], Any], *, image: str = "img:1", times: int = 1) -> None:
    async def whole(it: FakeCluster, api: Api) -> None:
        it.machine("m-0", gpu="0")
        it.machine("m-1")
        assert await cordon(api, "m-0", by="team/run", why="XID 79", share=0.5) == ""
        ward = Ward(it, api, image)
        ward.cordoned_before(times)
        await story(ward)

    playing(whole)


@pytest.mark.parametrize("real", sample([False], [True]))
def test_a_machine_that_passes_its_check_is_returned(
    monkeypatch: pytest.MonkeyPatch, real: bool
) -> None:
    """Without being asked for more, the pod prints what a check prints."""
    if not real:
        echo = ["/bin/sh", "-c", f"echo '{lines(GOOD)[-1]}'"]
        monkeypatch.setattr(machine_care, "COMMAND", echo)

    async def story(ward: Ward) -> None:
        memory = await ward.checked()
        assert not ward.machine().cordoned, ward.told
        assert memory.cordons[-1].ended == PASSED and not memory.failed
        assert ward.told[-1] == "machine m-0 passed its checks and is returned"

    cared_for(story)


@pytest.mark.parametrize("times", [1, 2])
def test_a_machine_that_fails_its_check_stays_out_and_in_the_end_for_good(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    printed = lines(_bad("memory", "3 words differ"))[-1]
    monkeypatch.setattr(machine_care, "COMMAND", ["/bin/sh", "-c", f"echo '{printed}'; exit 1"])

    async def story(ward: Ward) -> None:
        memory = await ward.checked()
        assert ward.machine().cordoned and memory.cordon is not None
        assert memory.cordon.why == "memory: 3 words differ"
        assert (memory.cordon.until is None) == (times == 2), "the third has no expiry"
        assert ("until it is lifted manually" in ward.told[-1]) == (times == 2)

    cared_for(story, times=times)


def test_a_check_without_a_verdict_changes_nothing_and_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_care, "COMMAND", ["/bin/sh", "-c", "echo Killed; exit 137"])

    async def story(ward: Ward) -> None:
        memory = await ward.checked()
        assert ward.machine().cordoned and memory.checked_at is None
        assert ward.told[-1] == "machine m-0 stays cordoned: its check returned no result: Killed"
        await ward.care.look(time.time())
        assert not ward.pods(), "not at once"
        await ward.care.look(time.time() + machine_care.AGAIN_S)
        assert len(ward.pods()) == 1

    cared_for(story)


def _bad(name: str, found: str) -> CheckResult:
    return CheckResult(name=name, state="failed", found=found)


def test_before_its_time_a_person_s_cordon_and_a_dead_machine_are_left_alone() -> None:
    async def story(ward: Ward) -> None:
        ward.edit(lambda b: b["spec"].update(unschedulable=True))
        assert not await ward.care.look(time.time())
        ward.edit(lambda b: b["spec"].pop("unschedulable"))
        gone = {"key": OUT_OF_SERVICE, "effect": "NoExecute"}
        ward.edit(lambda b: b["spec"]["taints"].append(gone))
        assert not await ward.care.look(time.time())
        ward.edit(lambda b: b["spec"]["taints"].pop())
        assert not await ward.care.look(time.time() - BEFORE_S), "its time is not over"
        assert not ward.pods() and ward.machine().cordoned

    cared_for(story)


def test_a_check_may_run_where_the_operator_is_installed_and_on_machines_that_are_kept_for_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the namespace that deploy/ makes, which enforces the restricted standard, with the rights
    of the operator, and on a machine with a taint for its users."""
    says(monkeypatch, lines(GOOD)[-1])
    kept = {"key": "team/training", "effect": "NoSchedule", "value": "x"}
    [home] = quick_yaml.load_all((ROOT / "deploy" / "namespace.yaml").read_text())

    async def story(ward: Ward) -> None:
        it = ward.it
        install(it, home)
        ward.edit(lambda b: b["spec"]["taints"].append(kept))
        api = it.api("holdfast-system", account="holdfast-operator")
        ward.care = MachineCare(api, "img:1", ward.told.append)
        await ward.checked()
        assert [taint.key for taint in ward.machine().spec.taints] == [kept["key"]], ward.told
        await api.close()

    cared_for(story)


def install(it: FakeCluster, home: dict[str, Any]) -> None:
    """The namespace of the operator, and its account with all of its roles."""
    it.store.create(NAMESPACES, "", home)
    name, namespace = "holdfast-operator", home["metadata"]["name"]
    for account in ("default", name):
        it.store.create(SERVICE_ACCOUNTS, namespace, {"metadata": {"name": account}})
    rules = ROOT / "deploy" / "rbac"
    for path in ("role.yaml", "binding.yaml", "cordon/cordon.yaml"):
        for body in quick_yaml.load_all((rules / path).read_text()):
            kind = CLUSTER_ROLES if body["kind"] == "ClusterRole" else CLUSTER_BINDINGS
            it.store.create(kind, "", body)


def test_a_check_that_waits_says_for_what_and_is_not_let_onto_a_machine_that_is_unwell() -> None:
    full = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}

    async def story(ward: Ward) -> None:
        ward.edit(lambda b: b["spec"]["taints"].append(full))
        await ward.care.look(time.time())
        await ward.it.until(lambda: ward.pods()[0]["status"].get("conditions"))
        for _ in range(2):
            await ward.care.look(time.time())
        (told,) = [text for text in ward.told if "its check waits for a machine" in text]
        assert "disk-pressure" in told and ward.machine().cordoned

    cared_for(story)


def test_the_third_time_nobody_checks_it_until_a_person_has_lifted_the_cordon() -> None:
    async def story(ward: Ward) -> None:
        assert not await ward.care.look(time.time() + 27 * 86_400)
        assert not ward.pods() and ward.machine().cordoned

    cared_for(story, times=3)


def test_without_an_image_it_says_what_to_do_and_changes_nothing() -> None:
    async def story(ward: Ward) -> None:
        assert await ward.care.look(time.time())
        assert "--check-image" in ward.told[-1] and "holdfast nodes --lift" in ward.told[-1]
        assert not ward.pods() and ward.machine().cordoned

    cared_for(story, image="")


def says(monkeypatch: pytest.MonkeyPatch, printed: str) -> None:
    monkeypatch.setattr(machine_care, "COMMAND", ["/bin/sh", "-c", f"echo '{printed}'"])


def test_a_verdict_that_cannot_be_written_down_is_kept_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each check takes all GPUs of a machine: without the right to patch it, one after the other
    would."""
    says(monkeypatch, lines(GOOD)[-1])

    async def story(ward: Ward) -> None:
        now = time.time()
        await ward.care.look(now)
        await ward.it.until(lambda: any(p["status"]["phase"] in END for p in ward.pods()))
        (pod,) = ward.pods()
        ward.it.server.access.denied.add(("patch", "nodes"))
        for later in (0.0, 1.0, machine_care.LOOK_S + 1):
            await ward.care.look(now + later)
            assert ward.pods() == [pod] and ward.machine().cordoned
        ward.it.server.access.denied.clear()
        await ward.care.look(now + 3 * machine_care.LOOK_S)
        assert not ward.machine().cordoned
        await ward.it.until(lambda: not ward.pods())

    cared_for(story)


@pytest.mark.parametrize("right", [("create", "pods"), ("get", "pods/log")])
def test_a_right_that_is_missing_is_named_and_holds_up_no_other_machine(
    monkeypatch: pytest.MonkeyPatch, right: tuple[str, str]
) -> None:
    says(monkeypatch, lines(GOOD)[-1])

    async def story(ward: Ward) -> None:
        api = ward.it.api()
        assert await cordon(api, "m-1", by="team/run", why="XID 79", share=1.0) == ""
        await api.close()
        ward.it.server.access.denied.add(right)
        now = time.time() + 3 * CORDON_S
        await ward.care.look(now)
        if ward.pods():
            over = lambda: all(p["status"]["phase"] in END for p in ward.pods())  # noqa: E731
            await ward.it.until(over)
            await ward.care.look(now)
        named = [text for text in ward.told if "cannot be checked: " in text]
        assert [text.split()[1] for text in named] == ["m-0", "m-1"]
        assert all(f'cannot {right[0]} resource "{right[1]}"' in text for text in named)
        said = len(ward.told)
        await ward.care.look(now + 1)
        assert len(ward.told) == said, "not at every look"

    cared_for(story)


def annotate(notes: dict[str, str], body: dict[str, Any]) -> None:
    body["metadata"]["annotations"].update(notes)


def test_notes_of_strangers_stop_nobody_and_no_machine_is_returned_for_them() -> None:
    """What people, or other programs, have written where our notes are."""

    async def story(ward: Ward) -> None:
        for text in ("?", '{"cordons": [{"at": 1, "by": "x", "why": "y", "until": 9e99}]}'):
            notes = {MEMORY: text, EXPIRES: "whenever", OWNER: "", REASON: "²"}
            ward.edit(partial(annotate, notes))
            assert not await ward.care.look(time.time() + 1000 * CORDON_S)
            assert ward.machine().cordoned and not ward.pods() and ward.told == []

    cared_for(story)


def lines(*checks: CheckResult) -> list[str]:
    report = {"ok": True, "machine": "m-0", "checks": checks}
    return ["checking memory ...", msgspec.json.encode(report).decode()]


GOOD = CheckResult(name="memory", state="ok", found="")
NO_GPU = CheckResult(name="matmul", state="skipped", found="no PyTorch")
GPU = CheckResult(name="matmul", state="ok", found="")


POOL = ROOT / "deploy" / "spares"


def spare_machines(command: str, story: Callable[[Ward], Any], count: int = 10) -> None:
    """A cluster whose pool keeps one machine, and what its check does there."""

    async def whole(it: FakeCluster, api: Api) -> None:
        for body in quick_yaml.load_all((POOL / "classes.yaml").read_text()):
            it.store.create(PRIORITIES, "", body)
        (pool,) = quick_yaml.load_all((POOL / "pool.yaml").read_text())
        pod = pool["spec"]["template"]["spec"]
        (check,) = pod["initContainers"]
        assert check["command"] == machine_care.COMMAND, "its verdict can be read"
        check["command"] = ["/bin/sh", "-c", command]
        for container in (check, *pod["containers"]):
            container["image"] = "img:1"
        pool["metadata"]["namespace"] = "default"
        it.store.create(DEPLOYMENTS, "default", pool)
        it.machine("m-0", cpu="4")
        for number in range(1, count):
            it.machine(f"m-{number}", cpu="1")  # no room for it
        await story(Ward(it, api))

    playing(whole)


def pool_pods(ward: Ward) -> list[dict[str, Any]]:
    labels = {"app.kubernetes.io/name": "holdfast-spares"}
    return [p for p in ward.it.store.all(PODS) if labels.items() <= p["metadata"]["labels"].items()]


async def checked_there(ward: Ward, exit_code: int) -> str:
    """The name of the pod of the pool, once its check has ended like this."""

    def is_over() -> bool:
        told = [
            one.get(key, {}).get("terminated", {}).get("exitCode")
            for pod in pool_pods(ward)
            for one in pod["status"].get("initContainerStatuses", [])
            for key in ("state", "lastState")
        ]
        return exit_code in told

    await ward.it.until(is_over)
    return str(pool_pods(ward)[0]["metadata"]["name"])


def test_a_machine_of_the_pool_that_fails_its_check_is_not_given_to_anybody() -> None:
    async def story(ward: Ward) -> None:
        name = await checked_there(ward, 1)
        await ward.care.look(time.time())
        memory = memory_of(ward.machine(), time.time())
        assert ward.machine().cordoned and memory.cordon is not None
        assert memory.cordon.why == "failed its checks: memory: 3 words differ"
        assert "it is cordoned, and another one is kept" in ward.told[-1]
        ward.it.machine("m-new", cpu="4")
        await ward.it.until(
            lambda: [p["spec"].get("nodeName") for p in pool_pods(ward)] == ["m-new"]
        )
        assert pool_pods(ward)[0]["metadata"]["name"] != name

    printed = lines(_bad("memory", "3 words differ"))[-1]
    spare_machines(f"echo '{printed}'; exit 1", story)


def test_a_machine_of_the_pool_that_passes_or_of_which_nothing_is_known_stays() -> None:
    async def story(ward: Ward) -> None:
        name = await checked_there(ward, code)
        await ward.care.look(time.time())
        assert not ward.machine().cordoned and ward.told == []
        assert [p["metadata"]["name"] for p in pool_pods(ward)] == [name]
        assert "deletionTimestamp" not in pool_pods(ward)[0]["metadata"]

    for code, printed in ((0, lines(GOOD)[-1]), (1, lines(GOOD)[-1]), (137, "Killed")):
        spare_machines(f"echo '{printed}'; exit {code}", story)


def test_a_pod_of_the_pool_stays_where_its_machine_cannot_be_cordoned() -> None:
    """Else the next one would come to the same machine, and fail, and go."""

    async def story(ward: Ward) -> None:
        name = await checked_there(ward, 1)
        ward.it.server.access.denied.add(("patch", "nodes"))
        await ward.care.look(time.time())
        assert [p["metadata"]["name"] for p in pool_pods(ward)] == [name]
        assert ward.told[-1].endswith("it is not cordoned: its Node object could not be changed")

    printed = lines(_bad("memory", "3 words differ"))[-1]
    spare_machines(f"echo '{printed}'; exit 1", story)


def test_no_more_machines_of_the_pool_are_cordoned_than_a_job_might() -> None:
    """Not the last one there is: what fails may be the check."""

    async def story(ward: Ward) -> None:
        await checked_there(ward, 1)
        await ward.care.look(time.time())
        assert not ward.machine().cordoned and len(pool_pods(ward)) == 1
        assert "it is not cordoned: " in ward.told[-1]

    printed = lines(_bad("memory", "3 words differ"))[-1]
    spare_machines(f"echo '{printed}'; exit 1", story, count=1)


@pytest.mark.parametrize(
    ("said", "gpus", "verdict", "why"),
    [
        (lines(GOOD, NO_GPU), False, True, ""),
        (lines(GOOD, GPU), True, True, ""),
        (lines(GOOD, NO_GPU), True, False, "it checked no GPU"),
        (lines(GOOD, _bad("disk /", "full")), True, True, "disk /: full"),
        (["Killed"], False, False, "Killed"),
        ([], False, False, "it printed nothing"),
    ],
)
def test_only_what_the_check_has_found_is_a_verdict(
    said: list[str], gpus: bool, verdict: bool, why: str
) -> None:
    assert judged(said, gpus=gpus) == (verdict, why)


def test_each_machine_has_one_check_pod_at_a_time_whatever_its_name() -> None:
    names = {pod_name("m" * 253), pod_name("m-0"), pod_name("m-1")}
    assert len(names) == 3 and all(len(name) <= 63 for name in names)
