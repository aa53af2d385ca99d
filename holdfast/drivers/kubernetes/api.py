"""A cluster over HTTP: the protocol `Cluster` on the client that lightkube sets up.

lightkube knows kubeconfigs and credentials; its models of objects are left aside. Objects are plain
dicts, and of long lists and watches only the fields that the caller names are decoded, which is
what keeps a resync of 12,500 pods below a second (benchmarks/watch.py).

Calls that may be made twice are made again when the server is busy or away: with growing pauses,
and as late as `Retry-After` asks, but `TRIES` times at most. A `create` is only made again when it
surely was not made: otherwise the caller could not tell its own object from another's.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import httpx2
import msgspec

from holdfast.drivers.kubernetes import config
from holdfast.drivers.kubernetes.cluster import (
    FIELD_MANAGER,
    PODS,
    ApiError,
    Bookmark,
    Change,
    ConflictError,
    DeniedError,
    GoneError,
    InvalidError,
    Kind,
    Listed,
    NotFoundError,
    kind_of,
    timestamp,
)
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.errors import Error

T = TypeVar("T")

TRIES = 5
PAUSE_S = 0.1  # before the second try; doubles
PAUSE_MAX_S = 10.0  # also when the server asks for more
PAGE = 500  # objects in an answer: bounds the memory that a list takes
WATCH_S = 60  # how long one watch lasts: a dead connection is noticed then
SLACK_S = 15.0  # silence beyond that is one
REFUSAL_BYTES = 64 << 10  # of what a refusal says
NO_PATH = b"404 page not found"
MARKUP = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
STRICT = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
JSON, MERGE = "application/json", "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
BUDGET = "DisruptionBudget"  # why an eviction is refused
TWO = "more than one PodDisruptionBudget"  # for ever: Kubernetes knows no way, and says 500


class _Details(msgspec.Struct):
    causes: list[dict[str, Any]] = []
    retry_after_s: int = msgspec.field(name="retryAfterSeconds", default=0)


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


class _Meta(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion", default="")
    more: str = msgspec.field(name="continue", default="")


class _Only(msgspec.Struct):
    """Of any object its version."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Page(msgspec.Struct, Generic[T]):
    items: list[T]
    metadata: _Meta


class _Told(msgspec.Struct):
    """A line of a watch."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _Call(NamedTuple):
    """One request. `again`: it may be made twice."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Body | None = None
    media: str = JSON
    again: bool = True


_TOLD = msgspec.json.Decoder(_Told)
_VERSION = msgspec.json.Decoder(_Only)


class Api:
    """One cluster and a namespace in it, over HTTP; see the protocol `Cluster`."""

    def __init__(self, client: httpx2.AsyncClient, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Body:
        """One object. Raises `NotFoundError`."""
        return await self._object(_Call("GET", self._path(kind, namespace, name), {}))

    async def listed(
        self, kind: Kind, shape: type[T], *, labels: str = "", name: str = "",
        namespace: str | None = None,
    ) -> Listed[T]:  # fmt: skip
        """All objects with these labels, in pages; all at once if a page has expired meanwhile."""
        path, chosen = self._path(kind, namespace), _chosen(labels, name)
        try:
            return await self._pages(path, shape, {**chosen, "limit": str(PAGE)})
        except GoneError:
            return await self._pages(path, shape, chosen)

    async def _pages(self, path: str, shape: type[T], query: dict[str, str]) -> Listed[T]:
        items: list[T] = []
        more = ""
        decoder = msgspec.json.Decoder(_Page[shape])  # type: ignore[valid-type]
        while True:
            asked = {**query, **_given(**{"continue": more})}
            page = _decoded(decoder, await self._send(_Call("GET", path, asked)))
            items += page.items
            more = page.metadata.more
            if not more:
                return Listed(items, page.metadata.version)

    async def watched(
        self, kind: Kind, shape: type[T], *, since: str, labels: str = "", name: str = "",
        namespace: str | None = None,
    ) -> AsyncIterator[Change[T] | Bookmark]:  # fmt: skip
        """Changes since a version, until the server ends the stream. Raises `GoneError`."""
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": since}
        query |= {"timeoutSeconds": str(WATCH_S), **_chosen(labels, name)}
        decoder = msgspec.json.Decoder(shape)
        timeout = httpx2.Timeout(WATCH_S + SLACK_S, connect=5.0)
        async with self._stream(self._path(kind, namespace), query, timeout) as response:
            async for line in _lines(response):
                yield _change(line, decoder)

    async def create(self, body: Body) -> Body:
        """Create, strictly. Raises `ConflictError` if it exists."""
        path = self._path(kind_of(body), body["metadata"].get("namespace"))
        return await self._object(_Call("POST", path, STRICT, body, again=False))

    async def apply(self, body: Body, *, force: bool = True, dry_run: bool = False) -> Body:
        """Server-side apply as `holdfast`, strictly. Raises `ConflictError` unless forced."""
        meta = body["metadata"]
        path = self._path(kind_of(body), meta.get("namespace"), meta["name"])
        query = {**STRICT, "force": str(force).lower(), **({"dryRun": "All"} if dry_run else {})}
        return await self._object(_Call("PATCH", path, query, body, APPLY))

    async def patch(
        self, kind: Kind, name: str, patch: Body, *, part: str = "", namespace: str | None = None
    ) -> Body:
        """JSON merge patch of an object or of its subresource `part`."""
        path = self._path(kind, namespace, name) + (f"/{part}" if part else "")
        return await self._object(_Call("PATCH", path, STRICT, patch, MERGE))

    async def delete(
        self, kind: Kind, name: str, *, uid: str | None = None, version: str | None = None,
        grace_s: int | None = None, foreground: bool = False, namespace: str | None = None,
    ) -> None:  # fmt: skip
        """Delete; one that is not there, or is another (by UID), is as good as deleted. With
        `version`, only what it was then: raises `ConflictError` if it was changed since."""
        options: Body = {"propagationPolicy": "Foreground" if foreground else "Background"}
        options |= _only(uid, grace_s, version)
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        try:
            await self._send(_Call("DELETE", self._path(kind, namespace, name), {}, body))
        except NotFoundError:
            return
        except ConflictError:
            if uid is None or version is not None:
                raise

    async def evict(self, pod: str, *, uid: str, grace_s: int | None = None) -> bool:
        """Evict by the Eviction API; False if a disruption budget forbids it now, or two do."""
        meta = {"name": pod, "namespace": self.namespace}
        options = _only(uid, grace_s)
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        path = f"{self._path(PODS, None, pod)}/eviction"
        try:
            await self._send(_Call("POST", path, {}, {**body, "deleteOptions": options}))
        except (NotFoundError, ConflictError):
            return True  # gone, or another pod of that name
        except ApiError as exc:
            if exc.reason != BUDGET:
                raise
            return False
        return True

    async def log(
        self,
        pod: str,
        *,
        container: str,
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
    ) -> AsyncIterator[str]:
        """Lines of a container's log, as long as it runs if they are followed."""
        query = {"container": container, **({"follow": "true"} if follow else {})}
        query |= {} if tail is None else {"tailLines": str(tail)}
        query |= {} if since is None else {"sinceTime": timestamp(since)}
        timeout = httpx2.Timeout(None if follow else 30.0, connect=5.0)
        path = f"{self._path(PODS, None, pod)}/log"
        async with self._stream(path, query, timeout) as response:
            async for line in _lines(response):
                yield line.decode(errors="replace")

    async def ask(self, path: str, *, query: Mapping[str, str] | None = None) -> Any:
        """GET any path of the API: `/version`, `/apis`, ..."""
        return _json(await self._send(_Call("GET", path, query or {})))

    async def read(self, path: str, most_bytes: int) -> bytes:
        """GET what is no object of the API, such as what a pod behind its proxy answers."""
        content = bytearray()
        async with self._stream(path, {}, httpx2.Timeout(30.0, connect=5.0)) as response:
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > most_bytes:
                    raise ApiError(0, "TooLarge", f"more than {most_bytes >> 20} MiB")
        return bytes(content)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _path(self, kind: Kind, namespace: str | None, name: str | None = None) -> str:
        return kind.path(self.namespace if namespace is None else namespace, name)

    async def _object(self, call: _Call) -> Body:
        """An object: what else comes with a good status is a proxy's page, or half an answer."""
        found = _json(await self._send(call))
        if not (isinstance(found, dict) and isinstance(found.get("metadata"), dict)):
            raise ApiError(0, "Undecodable", "the response is not an API object")
        return found

    async def _send(self, call: _Call) -> bytes:
        """The answer to a call, which is tried again where that may help and cannot harm."""
        for tried in range(1, TRIES + 1):
            try:
                return await self._once(call)
            except _RefusedError as exc:
                if tried == TRIES or not exc.again(call):
                    raise exc.error from exc.__cause__
                await asyncio.sleep(exc.pause_s(tried))
        raise AssertionError("the last try returns or raises")

    async def _once(self, call: _Call) -> bytes:
        content = None if call.body is None else msgspec.json.encode(call.body)
        headers = {} if content is None else {"Content-Type": call.media}
        try:
            response = await self._client.request(
                call.method, call.path, params=dict(call.query), content=content, headers=headers
            )
        except httpx2.RequestError as exc:
            unsent = isinstance(exc, (httpx2.ConnectError, httpx2.ConnectTimeout))
            raise _RefusedError(_unreachable(exc), unsent=unsent) from exc
        except config.TROUBLES as exc:
            raise DeniedError(401, "Unauthorized", _credentials(exc)) from exc
        if response.is_success:
            return response.content
        raise _refused(response, response.content)

    @asynccontextmanager
    async def _stream(
        self, path: str, query: Mapping[str, str], timeout: httpx2.Timeout
    ) -> AsyncIterator[httpx2.Response]:
        """An answer that comes in pieces; one that ends without its end is as good as ended."""
        try:
            async with self._client.stream(
                "GET", path, params=dict(query), timeout=timeout
            ) as response:
                if not response.is_success:
                    raise _refused(response, await _beginning(response)).error
                yield response
        except httpx2.RequestError as exc:
            raise _unreachable(exc) from exc
        except config.TROUBLES as exc:
            raise DeniedError(401, "Unauthorized", _credentials(exc)) from exc


async def opened(context: str | None = None, namespace: str | None = None) -> Api:
    """A cluster that answers, with its namespace. Raises `Error`, not `ApiError`."""
    connection = config.connect(context)
    api = Api(connection.client, namespace or connection.namespace)
    try:
        await api.ask("/version")
    except DeniedError as exc:
        if exc.status == 401:
            await api.close()
            raise config.unusable(f"context {connection.name}", exc) from exc
    except ApiError as exc:
        await api.close()
        raise _away(connection, exc) from exc
    return api


def _away(connection: config.ClusterClient, exc: ApiError) -> Error:
    through = f" through the proxy {connection.proxy}" if connection.proxy else ""
    return Error(
        "cluster-unreachable",
        f"the API server of context {connection.name} does not answer",
        why=f"{connection.client.base_url}{through}: {exc.message}",
        help="kubectl cluster-info",
    )


# ── refusals ──────────────────────────────────────────────────────────────────────────────────


class _RefusedError(Exception):
    """A call that came to nothing, and what speaks for another try."""

    def __init__(self, error: ApiError, *, unsent: bool = False, after_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.unsent = unsent  # the server surely did nothing
        self.after_s = after_s

    def again(self, call: _Call) -> bool:
        if self.error.reason == BUDGET:
            return False
        return self.unsent or (call.again and self.error.transient)

    def pause_s(self, tried: int) -> float:
        """At least what the server asks for; a bit at random, so that not all come at once."""
        grown = PAUSE_S * 2 ** (tried - 1) * random.uniform(0.5, 1.5)
        return float(min(PAUSE_MAX_S, max(grown, self.after_s)))


async def _beginning(response: httpx2.Response) -> bytes:
    """Enough of a refusal to say why; a pod behind the proxy of the API may talk without end."""
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > REFUSAL_BYTES:
            break
    return bytes(content)


def _refused(response: httpx2.Response, content: bytes) -> _RefusedError:
    status = _status(content)
    code = response.status_code
    details = status.details or _Details()
    after = response.headers.get("Retry-After", "")
    after_s = float(after) if after.isdecimal() else float(details.retry_after_s)
    message = status.message or _words(content) or response.reason_phrase
    if code == 404 and not status.reason and not _from_server(content):
        return _RefusedError(ApiError(0, "NotAnApiServer", f"404 from a proxy: {message}"))
    budget = any(cause.get("reason") == BUDGET for cause in details.causes) or TWO in message
    reason = BUDGET if budget else status.reason or response.reason_phrase
    return _RefusedError(_error(code, reason, message), unsent=code == 429, after_s=after_s)


def _from_server(content: bytes) -> bool:
    """An API server says so of a path that it does not know. A proxy in between that does not find
    the server may say anything, and nothing is gone by that."""
    return content.strip() == NO_PATH


def _words(content: bytes) -> str:
    """What somebody says who is no API server, without its markup."""
    if content.strip() == NO_PATH:
        return "the server could not find the requested resource"
    text = content[:REFUSAL_BYTES].decode(errors="replace")
    return " ".join(MARKUP.sub(" ", text).split())[:300]


def _status(content: bytes) -> _Status:
    """What the server says; a proxy before it may say anything."""
    try:
        return msgspec.json.decode(content, type=_Status)
    except msgspec.DecodeError:
        return _Status()


def _error(status: int, reason: str, message: str) -> ApiError:
    match status:
        case 404:
            return NotFoundError(status, reason, message)
        case 409:
            return ConflictError(status, reason, message)
        case 410:
            return GoneError(status, reason, message)
        case 401 | 403:
            return DeniedError(status, reason, message)
        case 400 | 422:
            return InvalidError(status, reason, message)
        case _:
            return ApiError(status, reason, message)


def _unreachable(exc: httpx2.RequestError) -> ApiError:
    return ApiError(0, type(exc).__name__, str(exc) or type(exc).__name__)


def _credentials(exc: Exception) -> str:
    """lightkube looks a plugin's token up, and for nothing else in its answer."""
    if isinstance(exc, KeyError):
        return (
            f"no credentials: the credential plugin returned no {exc.args[0]} (plugins that return "
            "client certificates are not supported)"
        )
    return f"no credentials: {exc or type(exc).__name__}"


# ── answers ───────────────────────────────────────────────────────────────────────────────────


def _json(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError as exc:
        raise _undecodable("the answer", exc) from exc


def _decoded(decoder: "msgspec.json.Decoder[_Page[T]]", content: bytes) -> _Page[T]:
    try:
        return decoder.decode(content)
    except msgspec.DecodeError as exc:
        raise _undecodable("the answer", exc) from exc


def _undecodable(what: str, exc: Exception) -> ApiError:
    return ApiError(0, "Undecodable", f"{what} cannot be read: {exc}")


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Whole lines; what follows the last line end counts only if the stream ended properly."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _change(line: bytes, decoder: "msgspec.json.Decoder[T]") -> Change[T] | Bookmark:
    try:
        told = _TOLD.decode(line)
        if told.type == "ERROR":
            status = _status(bytes(told.object))
            raise _error(status.code, status.reason, status.message)
        version = _VERSION.decode(told.object).metadata.version
        if told.type == "BOOKMARK":
            return Bookmark(version)
        return Change(told.type, decoder.decode(told.object), version)
    except msgspec.DecodeError as exc:
        raise _undecodable("a line of the watch", exc) from exc


def _chosen(labels: str, name: str) -> dict[str, str]:
    """Which objects. The right to one of them by name covers its list and its watch."""
    field = f"metadata.name={name}" if name else ""
    return _given(labelSelector=labels, fieldSelector=field)


def _given(**query: str) -> dict[str, str]:
    return {key: value for key, value in query.items() if value}


def _only(uid: str | None, grace_s: int | None, version: str | None = None) -> Body:
    """Options of a deletion: of this object only, as it was at this version, in so much time."""
    given = {"uid": uid, "resourceVersion": version}
    only = {key: value for key, value in given.items() if value is not None}
    found: Body = {"preconditions": only} if only else {}
    return found if grace_s is None else {**found, "gracePeriodSeconds": grace_s}
