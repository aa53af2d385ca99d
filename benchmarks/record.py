"""What it costs to publish the record of a large job: processor time, bytes, objects.

    .venv/bin/python benchmarks/record.py [--quick] [--json]

Each row is one kind of content, published to API objects in memory. `first_` is the first time,
`again_` after one more event: one node has changed its state, one incident or ten lines of journal
have come. `_cpu_s` is processor time of this process, `_bytes` what the API server would store,
`busiest_minute_bytes` the most that such events, one each second, may make of it in a minute.
`largest_bytes` is the largest object, of which Kubernetes allows 1,048,576.
"""

import argparse
import asyncio
import random
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, Kind, NotFoundError
from holdfast.drivers.kubernetes.config_map import binary_of
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.pace import BYTES_PER_S
from holdfast.drivers.kubernetes.record import Record, Recorded, recorded
from holdfast.status import ActionTaken, Goodput, Incident, JobStatus, NodeStatus
from table import Row, report

DICE = random.Random(7)
CAUSES = ("worker-killed", "node-lost", "collective-timeout", "worker-exception", "hang")
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gpt-job", "uid": "0"}


def main() -> None:
    args = _arguments()
    share = 50 if args.quick else 1
    report(
        "Publishing a record to ConfigMaps",
        asyncio.run(measure(12_500 // share, 5_000 // share, 30_000_000 // share)),
        as_json=args.json,
    )


async def measure(nodes: int, incidents: int, journal_bytes: int) -> dict[str, Row]:
    """A row for each kind of content."""
    large = record(nodes, incidents)
    changed = msgspec.structs.replace(large.status.nodes[nodes // 2], state="lost")
    rest = (*large.status.nodes[: nodes // 2], changed, *large.status.nodes[nodes // 2 + 1 :])
    few = msgspec.structs.replace(large.status, nodes=large.status.nodes[:4])
    many = large.incidents
    rows: dict[str, Row] = {}
    for name, before, after in (
        (f"{nodes:,} nodes", (large.status, ()),
         (msgspec.structs.replace(large.status, nodes=rest), ())),
        (f"{incidents:,} incidents", (few, many), (few, (*many, incident(incidents + 1)))),
    ):  # fmt: skip
        first, then = (msgspec.structs.replace(large, status=s, incidents=i)
                       for s, i in (before, after))  # fmt: skip
        rows[name] = await _row(b"", b"", first, then)
    text = journal(journal_bytes)
    small = msgspec.structs.replace(large, status=few, incidents=())
    rows[f"journal of {journal_bytes / 1e6:g} MB"] = await _row(text, journal(5_000), small, small)
    return rows


async def _row(text: bytes, more: bytes, first: Recorded, then: Recorded) -> Row:
    """Published twice, by one controller."""
    cluster = Memory()
    shown = first
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        path = Path(folder) / "journal.jsonl"
        path.write_bytes(text)
        book = Record(cluster, "gpt", path, lambda: shown, OWNER)  # type: ignore[arg-type]
        began = time.process_time()
        await book.publish()
        first_s, first_bytes = time.process_time() - began, cluster.taken()
        shown = then
        with path.open("ab") as file:
            file.write(more)
        began = time.process_time()
        await book.publish()
        again_s, again_bytes = time.process_time() - began, cluster.taken()
    began = time.process_time()
    found = await recorded(cluster, "gpt", journal=False)  # type: ignore[arg-type]
    assert found is not None and found.incidents == then.incidents
    return {
        "first_cpu_s": round(first_s, 4),
        "again_cpu_s": round(again_s, 4),
        "read_cpu_s": round(time.process_time() - began, 4),
        "first_bytes": first_bytes,
        "again_bytes": again_bytes,
        "busiest_minute_bytes": busiest_minute(
            content_bytes(cluster.objects["gpt-record"]), again_bytes
        ),
        "objects": len(cluster.objects),
        "largest_bytes": max(map(content_bytes, cluster.objects.values())),
    }


def busiest_minute(head_bytes: int, again_bytes: int) -> int:
    """The head of the record follows each event, all the rest is paced."""
    paced = again_bytes - head_bytes
    return 60 * (head_bytes + min(paced, BYTES_PER_S))


class Memory:
    """As much of a cluster as publishing needs."""

    namespace = "default"

    def __init__(self) -> None:
        self.objects: dict[str, Body] = {}
        self._written = 0

    async def get(self, _kind: Kind, name: str) -> Body:
        """One that was applied."""
        if name not in self.objects:
            raise NotFoundError(404, "NotFound", name)
        return self.objects[name]

    async def apply(self, body: Body) -> Body:
        """Keep it."""
        name = body["metadata"]["name"]
        self._written += content_bytes(body)
        self.objects[name] = {**body, "metadata": {**body["metadata"], "uid": name}}
        return self.objects[name]

    async def delete(self, _kind: Kind, name: str, *, uid: str) -> None:
        """Forget it."""
        assert self.objects.pop(name)["metadata"]["uid"] == uid

    def taken(self) -> int:
        """Bytes that were written since the last time."""
        found, self._written = self._written, 0
        return found


def content_bytes(body: Body) -> int:
    """As the API server counts them."""
    assert body["kind"] == CONFIG_MAPS.kind
    return sum(map(len, (*body["data"].values(), *binary_of(body).values())))


# ── content ───────────────────────────────────────────────────────────────────────────────────


def record(nodes: int, incidents: int) -> Recorded:
    """Of a job with so many nodes of eight workers."""
    status = JobStatus(
        job="gpt", phase="running", attempt=7, step=81_000, ettr=0.97,
        nodes=tuple(map(node, range(nodes))), incidents_count=incidents, restarts_count=incidents,
        waiting_for=None, started_at=1.7e9, wall_s=1e6,
    )  # fmt: skip
    goodput = Goodput(job="gpt", wall_s=1e6, ettr=0.97, ettr_1h=0.99,
                      buckets={"productive": 9.7e5, "detect": 3e4}, observed=True)  # fmt: skip
    return Recorded(status, tuple(map(incident, range(1, incidents + 1))), goodput)


def node(rank: int) -> NodeStatus:
    """One that trains."""
    first = DICE.randrange(100, 4_000)
    return NodeStatus(
        name=f"gpt-{rank}", state="running", rank=rank, node=f"{_uid()}-0",
        pids=tuple(first + 7 * worker for worker in range(8)),
    )  # fmt: skip


def incident(number: int) -> Incident:
    """One of several causes; about two kilobytes, as those of real scripts are."""
    cause = CAUSES[number % len(CAUSES)]
    name, at = f"gpt-{DICE.randrange(12_500)}", 1.7e9 + 3_000.0 * number
    frames = "".join(
        f'  File "/code/model/layer_{DICE.randrange(96)}.py", line {DICE.randrange(900)}, in f\n'
        for _ in range(12)
    )
    bill = {"detect": DICE.random() * 9, "stop": 2.0, "start": DICE.random() * 30, "replay": 55.5}
    return Incident(
        id=number, cause=cause, summary=f"rank {number} on {name}: {cause}", node=name,
        rank=DICE.randrange(100_000), attempt=number, step=number * 60, started_at=at,
        ended_at=at + 90.0, lost_s=round(sum(bill.values()), 3), steps_lost=3, bill=bill,
        actions=(ActionTaken(at=at + 1.0, action="StopAttempt", reason=cause),
                 ActionTaken(at=at + 9.0, action="StartAttempt", reason=f"{name} is replaced")),
        also_failed=DICE.randrange(99_999), exit_code=1, error_type="RuntimeError",
        traceback=f"Traceback (most recent call last):\n{frames}RuntimeError: {_uid()}",
        log=f"logs/attempt-{number}/rank-0.log", nodes=(name,),
    )  # fmt: skip


def journal(size: int) -> bytes:
    """Lines like those of a journal: facts with identifiers, and a checksum each."""
    lines: list[bytes] = []
    total = 0
    while total < size:
        fact: dict[str, Any] = {
            "seq": len(lines), "at": 1.7e9 + 5.0 * len(lines) + DICE.random(),
            "event": {"type": "NodeReady", "node": f"{_uid()}-0", "attempt": len(lines) // 40,
                      "progress": {"step": len(lines), "age_s": DICE.random()}},
            "actions": [], "xxh": f"{DICE.getrandbits(64):016x}",
        }  # fmt: skip
        lines.append(msgspec.json.encode(fact) + b"\n")
        total += len(lines[-1])
    return b"".join(lines)


def _uid() -> str:
    return str(uuid.UUID(int=DICE.getrandbits(128), version=4))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a fiftieth of it")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
