"""Which cluster, and who we are there: a context of a kubeconfig, or the pod we run in.

lightkube brings tokens, client certificates and credential plugins. What it lacks is made up for
here: `KUBECONFIG` may name several files, of which the first that says something wins, as with
kubectl; plugins that speak `v1` are those of `v1beta1` plus a variable that tells them so; and a
proxy, another name of the server or of ourselves is never passed over in silence.
"""

import json
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2
import msgspec
import yaml
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import Cluster, Context, User
from lightkube.core.exceptions import ConfigError

from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.errors import Error

DEFAULT = "~/.kube/config"
PLUGINS = "client.authentication.k8s.io"
TIMEOUT = httpx2.Timeout(30.0, connect=5.0)
PATHS = (
    ("cluster", "certificate-authority"),
    ("user", "client-certificate"),
    ("user", "client-key"),
    ("user", "tokenFile"),
)
TROUBLES = (ConfigError, OSError, KeyError, ValueError)
"""What lightkube raises for a configuration that it cannot use, as late as at the first request."""
UNREADABLE = (OSError, ValueError, LookupError, AttributeError, RecursionError, yaml.YAMLError)
"""What PyYAML raises: also for `!!int ""`, `!!timestamp x`, and for what is nested too deep."""
PORT_MAX = 65535


class ClusterClient(NamedTuple):
    """A client for one cluster, the namespace that its context names, and what to call it."""

    client: httpx2.AsyncClient
    namespace: str
    name: str  # of the context
    proxy: str = ""  # without what it is told of us


class Way(NamedTuple):
    """What a kubeconfig says of the way to a cluster, beside its address."""

    proxy: str | None = None
    server_name: str | None = None  # in its certificate, and told to it
    headers: tuple[tuple[str, str], ...] = ()


STRAIGHT = Way()


def connect(context: str | None = None) -> ClusterClient:
    """A client for a context; for the current one, or for the cluster we run in, if none is named.

    In a pod its account is used, unless `KUBECONFIG` or a context is named. Raises `Error`.
    """
    if context is None and "KUBECONFIG" not in os.environ and _in_cluster():
        return _opened(_account())
    return _opened(*_chosen(_read(_files()), context))


def _in_cluster() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and Path(SERVICE_ACCOUNT, "token").is_file()


def _account() -> SingleConfig:
    try:
        found = KubeConfig.from_service_account().get()
    except TROUBLES as exc:
        raise unusable("the service account of this pod", exc) from exc
    assert found is not None, "it is the current context"
    return found


def _opened(config: SingleConfig, way: Way = STRAIGHT) -> ClusterClient:
    try:
        for url in (config.cluster.server, way.proxy):
            _require_port(url or "")
        client = AsyncClient(config, ConnectionParams(timeout=TIMEOUT, proxy=way.proxy))
    except (*TROUBLES, httpx2.InvalidURL, AssertionError, ImportError) as exc:
        raise unusable(f"context {config.context_name}", exc) from exc
    client.headers = httpx2.Headers([*client.headers.multi_items(), *way.headers])
    if way.server_name is not None:
        client.event_hooks = {"request": [_asking_for(way.server_name)]}
    return ClusterClient(client, config.namespace, config.context_name, _shown(way.proxy))


def _require_port(url: str) -> None:
    """httpx2 takes any number, and the socket fails with an OverflowError at the first request."""
    port = httpx2.URL(url).port
    if port is not None and not 0 < port <= PORT_MAX:
        raise ValueError(f"port {port} is not between 1 and {PORT_MAX}")


def _shown(proxy: str | None) -> str:
    scheme, _, rest = (proxy or "").partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if proxy else ""


def _asking_for(name: str) -> Callable[[httpx2.Request], Awaitable[None]]:
    async def ask(request: httpx2.Request) -> None:
        request.extensions = {**request.extensions, "sni_hostname": name}

    return ask


def unusable(where: str, exc: Exception) -> Error:
    """The error for a configuration, or credentials, with which no request can be made."""
    return Error(
        "kubeconfig-unusable",
        f"{where} cannot be used",
        why=str(exc) or type(exc).__name__,
        help="kubectl config view --minify",
    )


# ── what a kubeconfig may say, beside what lightkube knows of it ──────────────────────────────


class _Cluster(Cluster):
    proxy: str | None = msgspec.field(name="proxy-url", default=None)
    server_name: str | None = msgspec.field(name="tls-server-name", default=None)


class _User(User):
    acting_as: str | None = msgspec.field(name="as", default=None)
    uid: str | None = msgspec.field(name="as-uid", default=None)
    groups: list[str] | None = msgspec.field(name="as-groups", default=None)
    extra: dict[str, list[str]] | None = msgspec.field(name="as-user-extra", default=None)


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: _User


class _NamedContext(msgspec.Struct):
    name: str
    context: Context


class _Said(msgspec.Struct):
    """One file. kubectl, too, takes none in which an entry has another shape, used or not."""

    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = msgspec.field(name="current-context", default=None)


# ── files ─────────────────────────────────────────────────────────────────────────────────────


def _files() -> list[Path]:
    named = os.environ.get("KUBECONFIG") or DEFAULT
    paths = [Path(name).expanduser() for name in named.split(os.pathsep) if name]
    found = [path for path in paths if path.is_file()]
    if not found:
        missing = FileNotFoundError(f"{named} does not exist")
        raise unusable("the kubeconfig", missing)
    return found


def _read(paths: Iterable[Path]) -> Body:
    """All files as one: of contexts, clusters and users with the same name the first counts."""
    merged: Body = {"clusters": {}, "contexts": {}, "users": {}, "current-context": None}
    for path in paths:
        said = _parsed(path)
        for section in ("clusters", "contexts", "users"):
            for entry in said.get(section) or []:
                merged[section].setdefault(entry["name"], _prepared(entry, path.parent))
        merged["current-context"] = merged["current-context"] or said.get("current-context")
    return merged


def _parsed(path: Path) -> Body:
    """What a file says, in the shape of `_Said`."""
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(said, dict):
            raise ValueError("it is not a kubeconfig")
        msgspec.convert(said, _Said)
    except UNREADABLE as exc:
        raise unusable(str(path), exc) from exc
    return said


def _prepared(entry: Body, folder: Path) -> Body:
    """An entry with absolute paths, and a plugin as lightkube knows it."""
    for section, key in PATHS:
        if isinstance(entry.get(section), dict) and entry[section].get(key):
            entry[section][key] = str(folder / entry[section][key])
    plugin = (entry.get("user") or {}).get("exec")
    if plugin:
        entry["user"]["exec"] = _plugin(plugin)
    return entry


def _plugin(said: Body) -> Body:
    """KUBERNETES_EXEC_INFO is what plugins since `v1` ask for."""
    info = {"apiVersion": said.get("apiVersion"), "kind": "ExecCredential"}
    told = json.dumps({**info, "spec": {"interactive": False}})
    env = [*(said.get("env") or []), {"name": "KUBERNETES_EXEC_INFO", "value": told}]
    version = said.get("apiVersion")
    spoken = f"{PLUGINS}/v1beta1" if version == f"{PLUGINS}/v1" else version
    return {**said, "env": env, "apiVersion": spoken}


def _chosen(said: Body, context: str | None) -> tuple[SingleConfig, Way]:
    name = context or said["current-context"]
    if not name:
        raise unusable("the kubeconfig", ValueError("it has no current context; use --context"))
    if name not in said["contexts"]:
        raise _unknown(name, said["contexts"])
    try:
        lists = {key: list(said[key].values()) for key in ("clusters", "contexts", "users")}
        found = KubeConfig.from_dict(lists).get(name)
    except TROUBLES as exc:
        raise unusable(f"context {name}", exc) from exc
    assert found is not None, "selected with --context"
    known = found._replace(user=found.user or User())  # a proxy may know us without one
    return known, _way(said, said["contexts"][name]["context"])


def _way(said: Body, context: Body) -> Way:
    cluster = said["clusters"][context["cluster"]]["cluster"]
    user = (said["users"].get(context.get("user")) or {}).get("user") or {}
    return Way(
        proxy=cluster.get("proxy-url") or None,
        server_name=cluster.get("tls-server-name") or None,
        headers=tuple(_impersonated(user)),
    )


def _impersonated(user: Body) -> Iterator[tuple[str, str]]:
    """Who we act as. Somebody who is to have fewer rights must not keep those he has himself."""
    for key, header in (("as", "Impersonate-User"), ("as-uid", "Impersonate-Uid")):
        if user.get(key):
            yield header, str(user[key])
    for group in user.get("as-groups") or ():
        yield "Impersonate-Group", str(group)
    for key, values in (user.get("as-user-extra") or {}).items():
        for value in values:
            yield f"Impersonate-Extra-{quote(key, safe='')}", str(value)


def _unknown(name: str, contexts: dict[str, Any]) -> Error:
    known = ", ".join(sorted(contexts)) or "none"
    return Error(
        "context-unknown",
        f"the kubeconfig has no context {name!r}",
        why=f"it has: {known}",
        help="kubectl config get-contexts",
    )
