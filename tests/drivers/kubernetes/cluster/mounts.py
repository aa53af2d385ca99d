"""What a container finds: folders for its volumes, its environment, its command.

Processes here share the file system of the machine, so a volume mounted at `/etc/x` lies in a
folder of its own, and every variable and word of the command that begins with `/etc/x` is changed
to name that folder. Names of Services become their addresses for the same reason.
"""

import base64
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from holdfast.drivers.kubernetes.cluster import CLAIMS, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from tests.drivers.kubernetes.cluster.names import hostname
from tests.drivers.kubernetes.cluster.pod_program import SITE
from tests.drivers.kubernetes.cluster.rbac import BOUND, token
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.store import Store
from tests.tidy.source import ROOT

JOB = "/etc/holdfast/job"
REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
ADDRESS = re.compile(r"^([a-z][-a-z0-9]*)(?:\.[-a-z0-9.]+)?:(\d+)$")
IMAGE_USER = 1000
INHERITED = ("LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


class NotYetError(Exception):
    """Something that the pod needs is not there: it waits."""


class Place(NamedTuple):
    """Where things of a pod lie on this machine."""

    pod: Path  # folder of the pod
    machine: Path  # what survives the pod
    shared: Path  # what all machines see
    names: Path  # what DNS knows


class Found(NamedTuple):
    """A container ready to be started."""

    command: list[str]
    env: dict[str, str]
    folder: Path


class Mounts:
    """Volumes of one pod; `server` is the address of the API."""

    def __init__(self, store: Store, pod: Body, place: Place, server: str) -> None:
        self._store, self._pod, self._place, self._server = store, pod, place, server
        self._namespace = pod["metadata"]["namespace"]
        self._volumes: dict[str, Path] = {}

    def prepare(self) -> None:
        """Make the folders. Raises `NotYetError` as long as something is missing."""
        for volume in self._pod["spec"].get("volumes", []):
            self._volumes[volume["name"]] = self._volume(volume)

    def _volume(self, volume: Body) -> Path:
        own = self._place.pod / "volumes" / str(volume["name"])
        match volume:
            case {"configMap": {"name": name}}:
                self._write(own, self._data(CONFIG_MAPS, name), volume["configMap"])
            case {"projected": {"sources": sources}}:
                for source in (source["configMap"] for source in sources):
                    self._write(own, self._data(CONFIG_MAPS, source["name"]), source)
            case {"secret": {"secretName": name}}:
                self._write(own, self._data(SECRETS, name), volume["secret"])
            case {"hostPath": {"path": path}}:
                own = self._place.machine / "host" / str(path).lstrip("/")
            case {"persistentVolumeClaim": {"claimName": name}}:
                if self._store.find(CLAIMS, self._namespace, name) is None:
                    raise NotYetError(f'persistentvolumeclaim "{name}" not found')
                own = self._place.shared / "claims" / self._namespace / str(name)
            case _:
                pass
        own.mkdir(parents=True, exist_ok=True)
        return own

    def _data(self, kind: Any, name: str) -> dict[str, bytes]:
        found = self._store.find(kind, self._namespace, name)
        if found is None:
            raise NotYetError(f'{kind.plural[:-1]} "{name}" not found')
        plain = found.get("data") or {}
        if kind == SECRETS:
            return {k: base64.b64decode(v) for k, v in plain.items()}
        binary = {k: base64.b64decode(v) for k, v in (found.get("binaryData") or {}).items()}
        return {**{k: v.encode() for k, v in plain.items()}, **binary}

    def _write(self, folder: Path, data: Mapping[str, bytes], said: Body) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        items = {i["key"]: i["path"] for i in said.get("items", [])} or {k: k for k in data}
        for key, path in items.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.write_bytes(data[key])
            if not self._readable(int(said.get("defaultMode", 0o644))):
                target.chmod(0)

    def _readable(self, mode: int) -> bool:
        """Files are root's and the group's of `fsGroup`, if the pod has one. Images here have the
        user of the documented Dockerfiles."""
        context = self._pod["spec"].get("securityContext", {})
        if context.get("runAsUser", IMAGE_USER) == 0 or mode & 0o004:
            return True
        return "fsGroup" in context and bool(mode & 0o040)

    # ── containers ────────────────────────────────────────────────────────────────────────────

    def container(
        self, spec: Body, ip: str, image: Path | None, addresses: Mapping[str, str]
    ) -> Found:
        """What to start. `addresses`: of Services by name. Raises `NotYetError`."""
        paths = {m["mountPath"].rstrip("/"): self._mounted(m) for m in spec.get("volumeMounts", [])}
        paths.pop("/dev/shm", None)  # shared memory is the machine's own
        env = {name: self._value(entry, ip) for name, entry in self._entries(spec).items()}
        expanded: dict[str, str] = {}
        for name, value in env.items():
            expanded[name] = REFERENCE.sub(lambda m: expanded.get(m[1], m[0]), value)
        known = {k: _local(_resolved(v, addresses), paths) for k, v in expanded.items()}
        if JOB in paths:
            known.setdefault("HOLDFAST_JOB_FILE", str(paths[JOB] / "job.yaml"))
        words = [*spec.get("command", []), *spec.get("args", [])]
        filled = [REFERENCE.sub(lambda m: known.get(m[1], m[0]), word) for word in words]
        command = [_local(word, paths) for word in filled]
        return Found(command, {**self._around(ip), **known}, self._workdir(spec, image, paths))

    def _mounted(self, mount: Body) -> Path:
        folder = self._volumes[mount["name"]] / str(mount.get("subPath", ""))
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _entries(self, spec: Body) -> dict[str, Body]:
        found: dict[str, Body] = {}
        for source in spec.get("envFrom", []):
            kind = SECRETS if "secretRef" in source else CONFIG_MAPS
            ref = source.get("secretRef") or source["configMapRef"]
            for key, value in self._data(kind, ref["name"]).items():
                found[source.get("prefix", "") + key] = {"value": value.decode()}
        return {**found, **{entry["name"]: entry for entry in spec.get("env", [])}}

    def _value(self, entry: Body, ip: str) -> str:
        match entry.get("valueFrom"):
            case None:
                return str(entry.get("value", ""))
            case {"fieldRef": {"fieldPath": path}}:
                return self._field(path, ip)
            case {"secretKeyRef": ref}:
                return self._keyed(SECRETS, ref)
            case {"configMapKeyRef": ref}:
                return self._keyed(CONFIG_MAPS, ref)
            case _:
                return ""

    def _keyed(self, kind: Any, ref: Body) -> str:
        data = self._data(kind, ref["name"])
        if ref["key"] not in data:
            raise NotYetError(f"couldn't find key {ref['key']} in {kind.kind} {ref['name']}")
        return data[ref["key"]].decode()

    def _field(self, path: str, ip: str) -> str:
        meta, spec = self._pod["metadata"], self._pod["spec"]
        labelled = re.match(r"metadata\.(labels|annotations)\['(.+)'\]", path)
        if labelled:
            return str(meta.get(labelled[1], {}).get(labelled[2], ""))
        known = {
            "status.podIP": ip,
            "status.podIPs": ip,
            "status.hostIP": "127.0.0.1",
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.serviceAccountName": spec["serviceAccountName"],
        }
        return known[path] if path in known else str(meta[path.removeprefix("metadata.")])

    def _around(self, ip: str) -> dict[str, str]:
        """What every process gets: our Python, its folders, its address, its credentials."""
        for name in ("home", "tmp"):
            (self._place.pod / name).mkdir(parents=True, exist_ok=True)
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        found = {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
            "PYTHONPATH": f"{SITE}:{ROOT}",
            "PYTHONUNBUFFERED": "1",
            "HOME": str(self._place.pod / "home"),
            "TMPDIR": str(self._place.pod / "tmp"),
            "FAKE_POD_IP": ip,
            "FAKE_POD_NAME": hostname(self._pod),
            "FAKE_NAMES": str(self._place.names),
            "HOLDFAST_HOME": str(self._place.pod / "home"),
            "KUBERNETES_SERVICE_HOST": str(urlsplit(self._server).hostname),
            "KUBERNETES_SERVICE_PORT": str(urlsplit(self._server).port),
        }
        return {**found, "KUBECONFIG": str(self._kubeconfig())} if self._trusted() else found

    def _trusted(self) -> bool:
        """Whether the pod gets a token of its account."""
        spec = self._pod["spec"]
        account = self._store.find(SERVICE_ACCOUNTS, self._namespace, spec["serviceAccountName"])
        said = (account or {}).get("automountServiceAccountToken", True)
        return bool(spec.get("automountServiceAccountToken", said))

    def _kubeconfig(self) -> Path:
        path = self._place.pod / "kubeconfig"
        who = token(self._namespace, self._pod["spec"]["serviceAccountName"])
        who = f"{who}{BOUND}{self._pod['metadata']['uid']}"
        path.write_text(kubeconfig(self._server, self._namespace, who))
        return path

    def _workdir(self, spec: Body, image: Path | None, paths: Mapping[str, Path]) -> Path:
        said = spec.get("workingDir", "")
        local = _local(said, paths)
        if local != said:
            return Path(local)
        inside = (image or self._place.pod / "root") / said.lstrip("/")
        if image is None:
            inside.mkdir(parents=True, exist_ok=True)
        return inside if inside.is_dir() else image or inside

    def remove(self) -> None:
        """What goes with the pod."""
        shutil.rmtree(self._place.pod / "volumes", ignore_errors=True)


def kubeconfig(server: str, namespace: str, bearer: str, name: str = "fake") -> str:
    """A kubeconfig with one context. No certificates are read, where none can be needed."""
    cluster = {"server": server, "insecure-skip-tls-verify": True}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": bearer}}],
            "contexts": [
                {"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}
            ],
            "current-context": name,
        }
    )


def _local(text: str, paths: Mapping[str, Path]) -> str:
    for mount, folder in sorted(paths.items(), key=lambda pair: -len(pair[0])):
        if text == mount or text.startswith(f"{mount}/"):
            return str(folder) + text[len(mount) :]
    return text


def _resolved(value: str, addresses: Mapping[str, str]) -> str:
    found = ADDRESS.match(value)
    if found and found[1] in addresses:
        return f"{addresses[found[1]]}:{found[2]}"
    return value
