"""A recorded job, published in a fake cluster as its controller would do it."""

import time
from pathlib import Path

from holdfast.drivers import records
from holdfast.drivers.kubernetes.manifests.names import JOB, MANAGED_BY
from holdfast.drivers.kubernetes.record import Record, Recorded
from tests.drivers.kubernetes.cluster.fake import FakeCluster


async def published(it: FakeCluster, folder: Path) -> None:
    """Job file, record and journal, as a controller has them there."""
    api, now = it.api(), time.time()
    labels = {JOB: folder.name, MANAGED_BY: "holdfast"}
    meta = {"name": f"{folder.name}-job", "namespace": "default", "labels": labels}
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    text = (folder / "job.json").read_text()
    made = await api.create({**kind, "metadata": meta, "data": {"job.yaml": text}})
    owner = {**kind, "name": meta["name"], "uid": made["metadata"]["uid"]}
    shown = Recorded(
        records.status(folder, now),
        tuple(records.incidents(folder, now)),
        records.goodput(folder, now),
    )
    await Record(api, folder.name, folder / "journal.jsonl", lambda: shown, owner).publish()
    await api.close()
