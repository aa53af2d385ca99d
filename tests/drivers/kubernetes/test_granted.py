"""Rights are known from one list where that is whole, and asked one by one where it may not be."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.api import Api
from holdfast.drivers.kubernetes.granted import Right, lacking
from tests.drivers.kubernetes.cluster.fake import FakeCluster
from tests.drivers.kubernetes.playing import playing

RBAC = "rbac.authorization.k8s.io"
ME = {"kind": "ServiceAccount", "name": "me", "namespace": "default"}
LISTED = "selfsubjectrulesreviews"
SINGLY = "selfsubjectaccessreviews"


async def granted(api: Api, *rules: dict[str, Any], cluster_wide: bool = False) -> None:
    """A role with these rules, bound to the account `me`."""
    kind = "ClusterRole" if cluster_wide else "Role"
    role = {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": "r"}}
    await api.create({**role, "rules": list(rules)})
    binding = {"apiVersion": f"{RBAC}/v1", "kind": f"{kind}Binding", "metadata": {"name": "r"}}
    ref = {"apiGroup": RBAC, "kind": kind, "name": "r"}
    await api.create({**binding, "roleRef": ref, "subjects": [ME]})


def rule(groups: str, resources: str, verbs: str, *names: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "apiGroups": groups.split(","),
        "resources": resources.split(","),
        "verbs": verbs.split(","),
    }
    return made | ({"resourceNames": list(names)} if names else {})


GET_POD = Right("", "pods", "get", "a")
CASES: list[tuple[dict[str, Any], Right, bool]] = [
    (rule("", "pods", "get"), GET_POD, True),
    (rule("", "pods", "list"), GET_POD, False),
    (rule("apps", "pods", "get"), GET_POD, False),
    (rule("*", "*", "*"), GET_POD, True),
    (rule("", "pods", "get", "a"), GET_POD, True),
    (rule("", "pods", "get", "b"), GET_POD, False),
    (rule("", "pods", "get", "a"), Right("", "pods", "get"), False),  # any
    (rule("", "pods", "get"), Right("", "pods/log", "get"), False),
    (rule("", "pods/log", "get"), Right("", "pods/log", "get"), True),
    (rule("", "*/log", "get"), Right("", "pods/log", "get"), True),
    (rule("", "*", "get"), Right("", "pods/log", "get"), True),
]


@pytest.mark.parametrize(("given", "right", "has"), CASES)
def test_a_rule_is_read_as_the_server_reads_it(
    given: dict[str, Any], right: Right, has: bool
) -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await granted(api, given)
        mine = it.api(account="me")
        assert (await lacking(mine, [right]) == []) is has
        await mine.close()

    playing(act)


def asked(it: FakeCluster, before: int) -> list[str]:
    return [kind for _, kind in it.server.calls[before:]]


def test_all_of_a_namespace_are_one_question() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        await granted(api, rule("", "pods", "get"))
        mine, before = it.api(account="me"), len(it.server.calls)
        wanted = [Right("", "pods", verb, f"p{n}") for verb in ("get", "delete") for n in range(50)]
        assert {right.verb for right in await lacking(mine, wanted)} == {"delete"}
        assert asked(it, before) == [LISTED]
        await mine.close()

    playing(act)


def test_what_lies_in_no_namespace_is_asked_for_by_itself() -> None:
    """A role of the namespace gives nothing there, though the list has it."""

    async def act(it: FakeCluster, api: Api) -> None:
        await granted(api, rule("", "nodes", "get"))
        mine, before = it.api(account="me"), len(it.server.calls)
        node = Right("", "nodes", "get", "n", namespaced=False)
        assert await lacking(mine, [node]) == [node]
        assert asked(it, before) == [LISTED, SINGLY]
        await mine.close()

    playing(act)


def test_a_list_that_may_be_incomplete_is_not_gone_by() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        it.server.access.denied.add(("delete", "pods"))
        before = len(it.server.calls)
        wanted = [Right("", "pods", "get"), Right("", "pods", "delete")]
        assert await lacking(api, wanted) == [wanted[1]]
        assert asked(it, before) == [LISTED, SINGLY, SINGLY]

    playing(act)


def test_where_there_is_no_list_each_is_asked_for() -> None:
    async def act(it: FakeCluster, api: Api) -> None:
        it.server.access.denied |= {("create", LISTED), ("delete", "pods")}
        wanted = [Right("", "pods", "get"), Right("", "pods", "delete")]
        assert await lacking(api, wanted) == [wanted[1]]

    playing(act)
