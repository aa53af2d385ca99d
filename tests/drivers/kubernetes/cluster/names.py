"""Names of Services and of pods, known as late as in a real cluster, and forgotten as late.

A headless Service gives names to the pods that it selects, `HOSTNAME.SERVICE`, and has all of their
addresses itself; others have one of their own. What a name means changes some time after what it
depends on: the API has to tell the DNS server, whose answers are kept for a while. A process finds
the names in a file for its namespace, see `pod_site`.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.drivers.kubernetes.cluster import PODS, SERVICES
from tests.drivers.kubernetes.cluster.conditions import is_true
from tests.drivers.kubernetes.cluster.loops import soonest
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.selectors import fits
from tests.drivers.kubernetes.cluster.store import Store

Table = dict[str, list[str]]


@dataclass
class Names:
    """The DNS server. What it will answer in `pace.names_s` is compared with what it answers."""

    store: Store
    pace: Pace
    folder: Path
    _coming: dict[str, list[tuple[float, Table]]] = field(default_factory=dict)

    def step(self) -> float | None:
        """Look at all namespaces; how long until something becomes known."""
        spaces = {service["metadata"]["namespace"] for service in self.store.all(SERVICES)}
        return soonest(*(self._namespace(name) for name in spaces | self._coming.keys()))

    def _namespace(self, name: str) -> float | None:
        coming = self._coming.setdefault(name, [])
        table, now = self._table(name), time.monotonic()
        if table != (coming[-1][1] if coming else {}):
            coming.append((now + self.pace.s(self.pace.names_s), table))
        known = [told for due, told in coming if due <= now]
        if known:
            self._write(name, known[-1])
            del coming[: len(known) - 1]  # the last one stays, to be compared with
        return soonest(*(due - now for due, _ in coming if due > now))

    def _write(self, namespace: str, table: Table) -> None:
        path = file_of(self.folder, namespace)
        text = json.dumps(table)
        if path.is_file() and path.read_text() == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(path)

    def _table(self, namespace: str) -> Table:
        found: Table = {}
        for service in self.store.all(SERVICES, namespace):
            name, address = service["metadata"]["name"], service["spec"].get("clusterIP")
            if address == "None":
                self._headless(namespace, service, found)
            elif address:
                found[name] = [address]
        return found

    def _headless(self, namespace: str, service: Body, found: Table) -> None:
        name, selector = service["metadata"]["name"], service["spec"].get("selector")
        for pod in self.store.all(PODS, namespace):
            labels = pod["metadata"].get("labels", {})
            if not selector or not fits({"matchLabels": selector}, labels):
                continue
            if not _published(service, pod):
                continue
            found.setdefault(name, []).append(pod["status"]["podIP"])
            if pod["spec"].get("subdomain") == name and "hostname" in pod["spec"]:
                full = f"{pod['spec']['hostname']}.{name}"
                found.setdefault(full, []).append(pod["status"]["podIP"])


def file_of(folder: Path, namespace: str) -> Path:
    """Where the processes of a namespace look names up."""
    return folder / "names" / f"{namespace}.json"


def hostname(pod: Body) -> str:
    """What a pod calls itself."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def _published(service: Body, pod: Body) -> bool:
    status = pod.get("status", {})
    early = service["spec"].get("publishNotReadyAddresses", False)
    over = status.get("phase") in ("Succeeded", "Failed")
    return bool(status.get("podIP")) and not over and (early or is_true(pod, "Ready"))
