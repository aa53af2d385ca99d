"""Which rights one has in a cluster: by the rules that its server lists, else asked one by one.

The list is one call for all that lies in a namespace. Where another authorizer than RBAC has a say
(a webhook, as some clouds have one) the server says that it may be incomplete, and nothing follows
from it; nor does anything for what lies in no namespace, as it also has what a role of the
namespace gives.
"""

import asyncio
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from holdfast.drivers.kubernetes.cluster import (
    ACCESS_REVIEWS,
    RULES_REVIEWS,
    ApiError,
    Cluster,
    Kind,
)

AT_ONCE = 8
EVERY = "*"


class Right(NamedTuple):
    """To do one thing with one resource; `name` "" for any."""

    group: str
    resource: str
    verb: str
    name: str = ""
    namespaced: bool = True

    @property
    def of(self) -> str:
        """The resource as kubectl writes it."""
        head, _, part = self.resource.partition("/")
        whole = f"{head}.{self.group}" if self.group else head
        return f"{whole}/{part}" if part else whole


async def lacking(cluster: Cluster, asked: Iterable[Right]) -> list[Right]:
    """Those of these rights that the caller does not have. Raises `ApiError`."""
    asked = sorted(asked)
    rules = await _rules(cluster)
    listed = {right for right in asked if right.namespaced} if rules is not None else set()
    turns = asyncio.Semaphore(AT_ONCE)

    async def allowed(right: Right) -> bool:
        if right in listed:
            return any(_gives(rule, right) for rule in rules or ())
        async with turns:
            return await _allowed(cluster, right)

    answers = await asyncio.gather(*map(allowed, asked))
    return [right for right, yes in zip(asked, answers, strict=True) if not yes]


async def _rules(cluster: Cluster) -> list[dict[str, Any]] | None:
    """All that hold in the namespace; None if that is not known."""
    try:
        told = await _asked(cluster, RULES_REVIEWS, {"namespace": cluster.namespace})
    except ApiError:
        return None
    return None if told.get("incomplete") else list(told.get("resourceRules") or ())


def _gives(rule: dict[str, Any], right: Right) -> bool:
    """As RBAC reads a rule."""
    part = right.resource.partition("/")[2]
    resources = {EVERY, right.resource} | ({f"{EVERY}/{part}"} if part else set())
    names: Collection[str] = rule.get("resourceNames") or ()
    return (
        not {EVERY, right.verb}.isdisjoint(rule.get("verbs") or ())
        and not {EVERY, right.group}.isdisjoint(rule.get("apiGroups") or ())
        and not resources.isdisjoint(rule.get("resources") or ())
        and (not names or right.name in names)
    )


async def _allowed(cluster: Cluster, right: Right) -> bool:
    resource, _, part = right.resource.partition("/")
    attributes = {
        "group": right.group,
        "resource": resource,
        "verb": right.verb,
        **({"namespace": cluster.namespace} if right.namespaced else {}),
        **({"subresource": part} if part else {}),
        **({"name": right.name} if right.name else {}),
    }
    told = await _asked(cluster, ACCESS_REVIEWS, {"resourceAttributes": attributes})
    return bool(told["allowed"])


async def _asked(cluster: Cluster, kind: Kind, spec: dict[str, Any]) -> dict[str, Any]:
    body = {"apiVersion": kind.api, "kind": kind.kind, "metadata": {}, "spec": spec}
    status: dict[str, Any] = (await cluster.create(body))["status"]
    return status
