"""The API server: paths and verbs of Kubernetes over the store.

Reading, writing and watching as a client sees them, with subresources, field ownership, access
rules and injected faults. What the kinds mean is left to the controllers.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from email.utils import formatdate
from typing import Any, NamedTuple

import msgspec
import yaml

from holdfast.drivers.kubernetes.cluster import (
    DEFINITIONS,
    JOBS,
    NAMESPACES,
    PODS,
    SERVICE_ACCOUNTS,
    Kind,
)
from tests.drivers.kubernetes.cluster import admission, fields
from tests.drivers.kubernetes.cluster.custom import Custom
from tests.drivers.kubernetes.cluster.discovery import described
from tests.drivers.kubernetes.cluster.evictions import evict
from tests.drivers.kubernetes.cluster.faults import Faults, strike
from tests.drivers.kubernetes.cluster.http import Answer, CutError, Request
from tests.drivers.kubernetes.cluster.kinds import ONLY_CREATED, PARTS, PLAIN, Kinds
from tests.drivers.kubernetes.cluster.output import Extent
from tests.drivers.kubernetes.cluster.rbac import Access, Wish, bound_to
from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError, copied
from tests.drivers.kubernetes.cluster.selectors import Test, chosen
from tests.drivers.kubernetes.cluster.service_proxy import Find, service_behind
from tests.drivers.kubernetes.cluster.store import Event, Store, written
from tests.drivers.kubernetes.cluster.webhooks import Webhooks

BOOKMARK_S = 0.5
VERSION = {"major": "1", "minor": "37", "gitVersion": "v1.37.0", "platform": "linux/amd64"}
Logs = Callable[[str, str, str, bool, Extent], Awaitable[AsyncIterator[bytes]]]


class Route(NamedTuple):
    """What a path names: objects, one of them, or a part of one."""

    kind: Kind
    namespace: str
    name: str
    part: str


class NoPathError(Exception):
    """Nothing is served at that path."""


class ApiServer:
    """Answers requests. `logs` gives a container's output: namespace, pod, container, follow, part.

    `skew_s` is how far the server's clock is ahead of ours.
    """

    def __init__(self, kinds: Kinds, logs: Logs) -> None:
        self.kinds, self.faults, self.skew_s = kinds, Faults(), 0.0
        self.store = Store(lambda: time.time() + self.skew_s)
        self.access = Access(self.store)
        self.custom = Custom(kinds)
        self.webhooks = Webhooks(self.store)
        self.calls: list[tuple[str, str]] = []  # verb and kind of every call
        self.cut_off: set[str] = set()  # UIDs of pods that we hear nothing of
        self.told = 0  # the newest version that a bookmark was sent of
        self.service: Find = lambda _namespace, _name, _port: None  # a pod behind a Service
        self._logs = logs
        self._pages: dict[str, tuple[int, list[Body]]] = {}

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    async def handle(self, request: Request) -> Answer:
        """Answer a request. Raises `CutError` where the connection is to be dropped."""
        while bound_to(request.headers.get("authorization", "")) in self.cut_off:
            await asyncio.sleep(0.1)  # the client does not get an answer, nor an error
        try:
            answer = await self._answer(request)
        except NoPathError:  # whatever comes before anything that speaks JSON
            answer = Answer(404, b"404 page not found\n", {"Content-Type": "text/plain"})
        except RefusalError as exc:
            answer = _json(exc.status(), exc.code)
            if exc.retry_after_s is not None:
                answer.headers["Retry-After"] = str(exc.retry_after_s)
        answer.headers["Date"] = formatdate(self.store.clock(), usegmt=True)
        return answer

    async def _answer(self, request: Request) -> Answer:
        if (behind := service_behind(request.path)) is not None:
            user = self.access.user(request.headers.get("authorization", ""))
            self.access.check(user, behind.wish)
            return await behind.answer(self.service)
        route = self._route(request.path)
        if route is None:
            return await self._about(request)
        verb = _verb(request, route)
        created = verb == "create"
        if created and (route.kind.namespaced != bool(route.namespace) or _misplaced(route)):
            raise RefusalError(
                405, "the server does not allow this method on the requested resource"
            )
        self.calls.append((verb, route.kind.plural))
        user = self.access.user(request.headers.get("authorization", ""))
        self.access.check(user, _wish(verb, route, request.query.get("fieldSelector", "")))
        fault = await self.faults.before(verb, route.kind.plural)
        if verb == "watch":
            return self._watch(request, route, fault.cut_after if fault else None)
        answer = await self._carry_out(verb, request, route, user)
        if fault and fault.done:
            strike(fault)
        return answer

    def _route(self, path: str) -> Route | None:
        """The objects that a path is about, None for everything else."""
        match path.strip("/").split("/"):
            case ["api", version, *rest] if rest:
                api = version
            case ["apis", group, version, *rest] if rest:
                api = f"{group}/{version}"
            case _:
                return None
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
            namespace, rest = rest[1], rest[2:]
        kind = self.kinds.find(api, rest[0])
        if kind is None or len(rest) > 3 or not _served(kind, namespace, *rest[1:]):
            raise NoPathError
        return Route(kind, namespace, *[*rest[1:3], "", ""][:2])

    async def _about(self, request: Request) -> Answer:
        """Versions, health, discovery."""
        self.access.user(request.headers.get("authorization", ""))
        path = request.path.rstrip("/")
        if path == "/version":
            return _json(VERSION)
        if path in ("/healthz", "/readyz", "/livez"):
            await self.faults.before("get", "health")
            return Answer(200, b"ok", {"Content-Type": "text/plain"})
        found = described(self.kinds, path)
        if found is None:
            raise NoPathError
        return _json(found)

    async def _carry_out(self, verb: str, request: Request, route: Route, user: str) -> Answer:
        if route.part == "log":
            return await self._log(request, route)
        match verb:
            case "get":
                return _json(self._get(route))
            case "list":
                return _json(self._list(request, route))
            case "create":
                return _json(self._create(request, route, user), 201)
            case "update" | "patch":
                return _json(self._change(verb, request, route, user))
            case "delete":
                return _json(self._delete(request, route))
            case "deletecollection":
                for body in self._chosen(request, route):
                    self.store.delete(route.kind, route.namespace, body["metadata"]["name"])
                return _json({"kind": "Status", "apiVersion": "v1", "status": "Success"})
            case other:
                raise RefusalError(405, f"the server does not allow {other}")

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def _get(self, route: Route) -> Body:
        found = self.store.get(route.kind, route.namespace, route.name)
        return _scale(found) if route.part == "scale" else found

    def _chosen(self, request: Request, route: Route) -> list[Body]:
        test = _test(request)
        return [b for b in self.store.all(route.kind, route.namespace) if test(b)]

    def _list(self, request: Request, route: Route) -> Body:
        version = self.store.version
        rest: list[Body] = []
        token = request.query.get("continue", "")
        if token:
            version, rest = self._pages.pop(token, (0, []))
            if version < self.store.oldest:
                raise RefusalError(410, "The provided continue parameter is too old")
        else:
            rest = self._chosen(request, route)
        limit = int(request.query.get("limit") or len(rest) or 1)
        meta: Body = {"resourceVersion": str(version)}
        if len(rest) > limit:
            meta["continue"] = base64.b64encode(f"{version} {len(self._pages)}".encode()).decode()
            self._pages[meta["continue"]] = (version, rest[limit:])
        kind = {"kind": f"{route.kind.kind}List", "apiVersion": route.kind.api}
        return {**kind, "metadata": meta, "items": rest[:limit]}

    def _watch(self, request: Request, route: Route, cut_after: int | None) -> Answer:
        return Answer(200, self._changes(request, route, cut_after))

    async def _changes(
        self, request: Request, route: Route, cut_after: int | None
    ) -> AsyncIterator[bytes]:
        lines = 0
        async for line in self._told(request, route):
            if cut_after is not None and lines >= cut_after:
                raise CutError
            lines += 1
            yield line

    async def _told(self, request: Request, route: Route) -> AsyncIterator[bytes]:
        """Changes as lines; at the start all objects if no version is named."""
        test, version = _test(request), request.query.get("resourceVersion", "")
        seen = int(version or 0)
        if seen == 0:
            seen = self.store.version
            for body in self._chosen(request, route):
                yield _line("ADDED", body)
        until = time.monotonic() + float(request.query.get("timeoutSeconds", 1800))
        while time.monotonic() < until:
            try:
                events = list(self.store.since(seen))
            except RefusalError as exc:
                yield _line("ERROR", exc.status())
                return
            for event in events:
                line = _shown(event, route, test)
                if line:
                    yield line
            seen = self.store.version if not events else events[-1].version
            left = min(BOOKMARK_S, max(0.0, until - time.monotonic()))
            try:
                async with asyncio.timeout(left):
                    await self.store.changed(seen)
            except TimeoutError:
                if request.query.get("allowWatchBookmarks") == "true":
                    yield _line("BOOKMARK", _bookmark(route.kind, seen))
                    self.told = seen

    async def _log(self, request: Request, route: Route) -> Answer:
        pod = self.store.get(PODS, route.namespace, route.name)
        container = request.query.get("container") or pod["spec"]["containers"][0]["name"]
        waiting = _waiting(pod, container)
        if waiting:
            why = f'container "{container}" in pod "{route.name}" is waiting to start: {waiting}'
            raise RefusalError(400, why)
        tail = request.query.get("tailLines")
        follow = request.query.get("follow") == "true"
        uid = pod["metadata"]["uid"]
        since = request.query.get("sinceTime")
        extent = Extent(
            int(tail) if tail else None,
            datetime.fromisoformat(since).timestamp() if since else None,
        )
        pieces = await self._logs(route.namespace, uid, container, follow, extent)
        return Answer(200, pieces, {"Content-Type": "text/plain"})

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    def _create(self, request: Request, route: Route, user: str) -> Body:
        body = _parsed(request)
        if route.part == "eviction":
            return evict(self.store, route.namespace, route.name, body)
        if route.kind.plural in ONLY_CREATED:
            return self._review(body, user)
        self._expected(route, body)
        if not (body["metadata"].get("name") or body["metadata"].get("generateName")):
            raise RefusalError(422, "name or generateName is required")
        self._validate(request, body)
        namespace = route.namespace if route.kind.namespaced else ""
        return self._made(request, route.kind, namespace, body)

    def _made(self, request: Request, kind: Kind, namespace: str, body: Body) -> Body:
        """The new object; with `dryRun` as it would be."""
        owned = {k: v for k, v in body.items() if k != "status" or kind.plural in PLAIN}
        made = admission.admit(self.store, kind, namespace, owned)
        self.webhooks.check(kind, namespace, made)
        if not made["metadata"].get("managedFields"):
            fields.record_update(None, made, _writer(request), "", self._now())
        if kind == NAMESPACES:
            made["metadata"]["finalizers"] = ["kubernetes"]  # of its controller, which empties it
        new = self.store.create(kind, namespace, made, dry=_dry(request))
        if kind == NAMESPACES and not _dry(request):
            account = {"metadata": {"name": "default"}}
            self.store.create(SERVICE_ACCOUNTS, new["metadata"]["name"], account)
        if kind == DEFINITIONS and not _dry(request):
            self.custom.add(new)
        if kind == JOBS:
            admission.mark_job(new)
        return new

    def _change(self, verb: str, request: Request, route: Route, user: str) -> Body:
        media = request.headers.get("content-type", "").partition(";")[0]
        body = _parsed(request)
        old = self.store.find(route.kind, route.namespace, route.name)
        at_home = route.namespace if route.kind.namespaced else ""
        if verb == "patch" and media == "application/apply-patch+yaml":
            self._expected(route, body)
            self._validate(request, body)
            if old is None:
                self.access.check(user, _wish("create", route, ""))
                return self._applied_anew(request, route.kind, at_home, body)
            force = request.query.get("force") == "true"
            wish = {k: v for k, v in body.items() if route.part or k != "status"}
            manager, now = _writer(request), self._now()
            new = fields.apply(old, wish, manager, force=force, part=route.part, at=now)
            return self._saved(request, route, old, new)
        old = self.store.get(route.kind, route.namespace, route.name)
        new = self._patched(old, body, media, route) if verb == "patch" else _put(body, old)
        new = _only_part(route, old, copied(new))
        if verb == "patch" or route.part == "":
            self._validate(request, new)
        fields.record_update(old, new, _writer(request), route.part, self._now())
        return self._saved(request, route, old, new)

    def _applied_anew(self, request: Request, kind: Kind, namespace: str, body: Body) -> Body:
        blank = {"apiVersion": kind.api, "kind": kind.kind, "metadata": {"name": ""}}
        made = fields.apply(blank, body, _writer(request), force=True, part="", at=self._now())
        return self._made(request, kind, namespace, made)

    def _patched(self, old: Body, patch: Any, media: str, route: Route) -> Body:
        base = _scale(old) if route.part == "scale" else old
        match media:
            case "application/merge-patch+json":
                found = fields.merge_patched(base, patch)
            case "application/strategic-merge-patch+json":
                found = fields.merged(base, patch, fields.schema_of(base))
            case "application/json-patch+json":
                found = fields.json_patched(base, patch)
            case other:
                raise RefusalError(
                    415, f"the body of the request was in an unknown format: {other}"
                )
        named = patch.get("metadata", {}).get("resourceVersion") if isinstance(patch, dict) else 0
        if not named:
            found = {**found, "metadata": {**found["metadata"]}}
            found["metadata"]["resourceVersion"] = base["metadata"]["resourceVersion"]
        return {**old, "spec": {**old["spec"], **found["spec"]}} if base is not old else found

    def _saved(self, request: Request, route: Route, old: Body, new: Body) -> Body:
        if _same_but_for_records(old, new):
            return old
        if route.part == "":
            admission.check_change(route.kind, old, new)
            self.webhooks.check_change(route.kind, old, new)
            self.webhooks.check(route.kind, route.namespace, new)
        return self.store.replace(route.kind, new, dry=_dry(request))

    def _delete(self, request: Request, route: Route) -> Body:
        options = _parsed(request) if request.body else {}
        wanted = {**options, **request.query}
        grace = wanted.get("gracePeriodSeconds")
        only = options.get("preconditions") or {}
        return self.store.delete(
            route.kind,
            route.namespace,
            route.name,
            uid=only.get("uid"),
            version=only.get("resourceVersion"),
            grace_s=None if grace is None else int(grace),
            policy=wanted.get("propagationPolicy", "Background"),
            dry=_dry(request) or bool(options.get("dryRun")),
        )

    def _review(self, body: Body, user: str) -> Body:
        """Whose a token is; whether the one who asks, or who is named, may do something."""
        if body["kind"] == "TokenReview":
            return {**body, "status": self.access.reviewed(body["spec"]["token"])}
        if body["kind"] == "SelfSubjectRulesReview":
            return {**body, "status": self.access.listed(user, body["spec"]["namespace"])}
        user = body["spec"].get("user", user)
        asked = body["spec"].get("resourceAttributes", {})
        part = asked.get("subresource", "")
        resource = asked.get("resource", "") + (f"/{part}" if part else "")
        where = (asked.get("namespace", ""), asked.get("name", ""))
        wish = Wish(asked.get("verb", ""), asked.get("group", ""), resource, *where)
        return {**body, "status": {"allowed": self.access.allows(user, wish)}}

    def _expected(self, route: Route, body: Body) -> None:
        said = (body.get("apiVersion"), body.get("kind"))
        if said != (route.kind.api, route.kind.kind):
            raise RefusalError(400, f"the object is {said}, not {route.kind.kind} at that path")
        named = body["metadata"].get("namespace")
        if named not in (None, route.namespace) and route.kind.namespaced:
            why = "the namespace of the provided object does not match the namespace sent on the"
            raise RefusalError(400, f"{why} request")

    def _validate(self, request: Request, body: Body) -> None:
        strict = request.query.get("fieldValidation") == "Strict"
        if not self.custom.validate(body, strict=strict):
            admission.validate(body, strict=strict)

    def _now(self) -> str:
        return written(self.store.clock())


def _served(kind: Kind, namespace: str, name: str = "", part: str = "") -> bool:
    """Whether there is such a path: with the namespace exactly where the kind has one, and only the
    parts that it has. All objects of all namespaces are there to be listed."""
    if namespace and not kind.namespaced:
        return False
    if kind.namespaced and name and not namespace:
        return False
    plain = kind.plural in PLAIN | ONLY_CREATED
    return part in ("", *(() if plain else ("status",)), *PARTS.get(kind.plural, ()))


def _misplaced(route: Route) -> bool:
    """Whether a name stands where it may not, or is missing where it has to be."""
    return bool(route.name) != bool(route.part)


def _json(body: Any, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(body))


def _line(type_: str, body: Body) -> bytes:
    return msgspec.json.encode({"type": type_, "object": body}) + b"\n"


def _verb(request: Request, route: Route) -> str:
    match request.method:
        case "GET" if route.name:
            return "get"
        case "GET":
            return "watch" if request.query.get("watch") in ("true", "1") else "list"
        case "DELETE":
            return "delete" if route.name else "deletecollection"
        case method:
            return {"POST": "create", "PUT": "update", "PATCH": "patch"}[method]


def _wish(verb: str, route: Route, fields: str) -> Wish:
    """A list or a watch of the one object with a name needs the right to that object only."""
    path, _, value = fields.partition("=")
    name = route.name or (value if path == "metadata.name" else "")
    group = route.kind.api.rpartition("/")[0]
    resource = route.kind.plural + (f"/{route.part}" if route.part else "")
    return Wish(verb, group, resource, route.namespace, name)


def _parsed(request: Request) -> Any:
    try:
        return msgspec.json.decode(request.body)
    except msgspec.DecodeError:
        found = yaml.safe_load(request.body)
        if not isinstance(found, dict | list):
            raise RefusalError(400, "the body of the request is not an object") from None
        return found


def _test(request: Request) -> Test:
    query = request.query
    return chosen(query.get("labelSelector", ""), query.get("fieldSelector", ""))


def _writer(request: Request) -> str:
    agent = request.headers.get("user-agent", "unknown").partition("/")[0]
    return request.query.get("fieldManager", agent)


def _dry(request: Request) -> bool:
    return request.query.get("dryRun") == "All"


def _shown(event: Event, route: Route, test: Test) -> bytes | None:
    """A change as the selector sees it: an object may come into sight, or leave it."""
    if event.kind != route.kind:
        return None
    if route.namespace not in ("", event.object["metadata"].get("namespace")):
        return None
    before = event.before is not None and test(event.before)
    after = event.type != "DELETED" and test(event.object)
    match before, after:
        case True, False:
            return _line("DELETED", event.object)
        case False, True:
            return _line("ADDED", event.object)
        case True, True:
            return _line("MODIFIED", event.object)
        case _:
            return None


def _bookmark(kind: Kind, version: int) -> Body:
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    return {"kind": kind.kind, "apiVersion": kind.api, "metadata": meta}


def _waiting(pod: Body, container: str) -> str:
    statuses = pod.get("status", {})
    every = [*statuses.get("initContainerStatuses", []), *statuses.get("containerStatuses", [])]
    state = next((s for s in every if s["name"] == container), None)
    if state is None:
        return "ContainerCreating"
    never = state["restartCount"] == 0 and "waiting" in state["state"]
    return str(state["state"]["waiting"].get("reason", "")) if never else ""


def _put(body: Body, old: Body) -> Body:
    meta = {**body["metadata"]}
    meta.setdefault("managedFields", old["metadata"].get("managedFields", []))
    return {**body, "metadata": meta}


def _only_part(route: Route, old: Body, new: Body) -> Body:
    """What may change through this path: the status through `status`, all else without it."""
    meta = {**new["metadata"], "managedFields": old["metadata"].get("managedFields", [])}
    new = {**new, "metadata": meta}
    if route.part == "status":
        kept = {**old["metadata"], "annotations": meta.get("annotations")}
        kept = {k: v for k, v in kept.items() if v is not None}
        kept["resourceVersion"] = meta.get("resourceVersion")
        return {**old, "metadata": kept, "status": new.get("status", {})}
    if route.kind.plural in PLAIN or "status" not in old:
        return new if route.kind.plural in PLAIN else _without_status(new)
    return {**new, "status": old["status"]}


def _without_status(body: Body) -> Body:
    return {k: v for k, v in body.items() if k != "status"}


def _same_but_for_records(old: Body, new: Body) -> bool:
    def bare(body: Body) -> Body:
        skipped = ("managedFields", "resourceVersion")
        meta = {k: v for k, v in body["metadata"].items() if k not in skipped}
        return {**body, "metadata": meta}

    owners = [_owners(body) for body in (old, new)]
    return bare(old) == bare(new) and owners[0] == owners[1]


def _owners(body: Body) -> list[Body]:
    entries = body["metadata"].get("managedFields", [])
    return [{k: v for k, v in entry.items() if k != "time"} for entry in entries]


def _scale(body: Body) -> Body:
    meta = {k: body["metadata"][k] for k in ("name", "namespace", "uid", "resourceVersion")}
    said = {"spec": {"replicas": body["spec"].get("replicas", 1)}}
    status = {"replicas": body.get("status", {}).get("replicas", 0)}
    kind = {"kind": "Scale", "apiVersion": "autoscaling/v1"}
    return {**kind, "metadata": meta, **said, "status": status}
