"""Tokens of a cluster: its API server says whose one is, and whether they may see what is shown.

What the page shows is in ConfigMaps and in the logs of pods of its namespace, so who may read both
may see it. Answers are kept for a minute: a page asks many questions, and a right that was taken
away ends soon enough.
"""

import hashlib
import time
from typing import Any

from holdfast.drivers.kubernetes.cluster import ApiError, Cluster

KNOWN_S, UNKNOWN_S = 60.0, 5.0  # for so long an answer holds
NEEDED = ({"resource": "configmaps"}, {"resource": "pods", "subresource": "log"})
TOKENS_MAX = 1000
TOKEN_MAX = 16 << 10  # characters


class Tokens:
    """What is known of the tokens that were shown lately, by their digests."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[bytes, tuple[float, bool]] = {}  # until when, and the answer

    async def verify(self, token: str) -> bool:
        """Whether whoever has this token may see the page; nobody while the server is silent."""
        if not token or len(token) > TOKEN_MAX:
            return False
        digest = hashlib.sha256(token.encode()).digest()
        until, may = self._known.get(digest, (0.0, False))
        if time.monotonic() < until:
            return may
        try:
            may = await self._ask(token)
        except ApiError:
            return False
        if len(self._known) >= TOKENS_MAX:
            self._known.clear()
        self._known[digest] = time.monotonic() + (KNOWN_S if may else UNKNOWN_S), may
        return may

    async def _ask(self, token: str) -> bool:
        said = await self._review("authentication.k8s.io/v1", "TokenReview", {"token": token})
        if not said.get("authenticated"):
            return False
        user = said["user"]
        subject = {
            "user": user.get("username", ""),
            "groups": user.get("groups", []),
            "extra": user.get("extra", {}),
            "uid": user.get("uid", ""),
        }
        for thing in NEEDED:
            right = {"namespace": self._cluster.namespace, "verb": "get", **thing}
            asked = {**subject, "resourceAttributes": right}
            said = await self._review("authorization.k8s.io/v1", "SubjectAccessReview", asked)
            if said.get("allowed") is not True:
                return False
        return True

    async def _review(self, api: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": api, "kind": kind, "metadata": {}, "spec": spec}
        found = await self._cluster.create(body)
        return found.get("status") or {}
