"""The code of updates on its way to the pods: from the command line to the controller's disk.

A bundle is cut into parts, each in a ConfigMap of a fixed name, because a controller may read only
what its role names, and labelled with what it belongs to. The wish on the job's ConfigMap follows
once all parts are there. The controller puts them together, checks the hash and keeps the bundle;
agents get it over their connections. One that begins with an empty disk reads them anew, so parts
stay for as long as a version may be used again, and afterwards until their room is needed.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from holdfast import bundles
from holdfast.drivers.kubernetes.cluster import (
    CONFIG_MAPS,
    ApiError,
    Cluster,
    ConflictError,
    NotFoundError,
)
from holdfast.drivers.kubernetes.config_map import Content, binary_of, config_map
from holdfast.drivers.kubernetes.manifests.names import CODE, JOB, UPDATE_PARTS, update_parts
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.talk import Complaint
from holdfast.errors import Error
from holdfast.messages import AskCode, CodePart, UpdateJob
from holdfast.status import UpdateStatus

PART_BYTES = 700_000  # base64 makes a third more of it, and a ConfigMap has 1 MiB
ALWAYS_BYTES = UPDATE_PARTS // 4 * PART_BYTES  # fits beside all versions that may be used again
TOLD_BYTES = 512_000  # of one message to an agent
MARK_CHARS = 40  # of a label there are 63
RETRY_S = 2.0
GONE_TRIES, GONE_S = 50, 0.1


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    name: str
    creation_timestamp: str = ""
    labels: dict[str, str] = {}


class _Part(msgspec.Struct, frozen=True):
    """Of a part only what it is called, and of which bundle it is."""

    metadata: _Meta


def mark(code: str) -> str:
    """What a part of this bundle is labelled with."""
    return code[:MARK_CHARS]


# ── the command line ──────────────────────────────────────────────────────────────────────────


def needed(updates: Sequence[UpdateStatus]) -> list[str]:
    """The code of versions that may be used again: the newest that was used, the one before, and
    one that is not used yet."""
    alive = [one for one in updates if one.stage in ("used", "preparing", "waiting")]
    return [one.code for one in alive[-3:] if one.code]


async def ship(
    cluster: Cluster,
    job: str,
    data: bytes,
    owner: Body,
    needed: Collection[str],
    namespace: str | None = None,
) -> None:
    """Write a bundle where the controller finds it. Where there is no room, the oldest that are
    not `needed` give way. Raises `Error` code-unusable, `ApiError`."""
    code, names = bundles.digest(data), update_parts(job)
    labels = f"{JOB}={job},{CODE}"
    found = (await cluster.listed(CONFIG_MAPS, _Part, labels=labels, namespace=namespace)).items
    taken = {part.metadata.name: part.metadata.labels[CODE] for part in found}
    pieces = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    if list(taken.values()).count(mark(code)) == len(pieces):
        return  # it was used before
    ages = {part.metadata.labels[CODE]: part.metadata.creation_timestamp for part in found}
    ages.pop(mark(code), None)
    free = [name for name in names if taken.get(name) in (None, mark(code))]
    for old in sorted(ages.keys() - map(mark, needed), key=lambda one: ages[one]):
        if len(free) < len(pieces):
            free += [name for name in names if taken.get(name) == old]
    if len(pieces) > len(free):
        raise _no_room(job, len(data), len(free))
    for name in free:
        if name in taken:
            await cluster.delete(CONFIG_MAPS, name, namespace=namespace)
    for number, (name, piece) in enumerate(zip(free, pieces, strict=False)):
        content = Content(binary={f"{number + 1}-of-{len(pieces)}": piece})
        body = config_map(cluster, job, name, owner, content, bulk=True)
        body["metadata"]["labels"][CODE] = mark(code)
        body["metadata"]["namespace"] = namespace or cluster.namespace
        await _create(cluster, body)


async def _create(cluster: Cluster, body: Body) -> None:
    """What was deleted may still be on its way out. Raises `ConflictError` for what stays."""
    for left in reversed(range(GONE_TRIES)):
        try:
            await cluster.create(body)
            return
        except ConflictError:
            if not left:
                raise
            await asyncio.sleep(GONE_S)


def _no_room(job: str, size: int, free: int) -> Error:
    return Error(
        "code-unusable",
        f"the code is too large for an update of job {job!r}",
        why=f"compressed it has {size / 1e6:.1f} MB, and besides the versions that may be used "
        f"again there is room for {free * PART_BYTES / 1e6:.1f} MB",
        help="use a smaller folder, or build the code into the image",
    )


# ── the controller ────────────────────────────────────────────────────────────────────────────


class ShippedCode:
    """The bundles of one job. `tell` hears of each update once its code is here, or never will be:
    then the nodes are told why, and refuse it."""

    def __init__(
        self, cluster: Cluster, job: str, folder: Path, tell: Callable[[UpdateJob], None]
    ) -> None:
        self._cluster, self._job, self._folder, self._tell = cluster, job, folder, tell
        self._wanted: asyncio.Queue[str | UpdateJob] = asyncio.Queue()
        self._asked: set[str] = set()  # bundles that nodes wait for
        self._failed: dict[str, str] = {}  # why they cannot be had
        self._complain = Complaint()

    def hear(self, order: UpdateJob) -> None:
        """Somebody wants another version."""
        self._failed.pop(order.code, None)
        self._wanted.put_nowait(order)

    def part(self, asked: AskCode) -> CodePart:
        """What a node has asked for."""
        code, path = asked.code, bundles.packed(self._folder, asked.code)
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(asked.offset)
                data = file.read(TOLD_BYTES)
        except FileNotFoundError:
            if code not in self._failed and code not in self._asked:
                self._asked.add(code)
                self._wanted.put_nowait(code)
            return CodePart(code=code, offset=asked.offset, why=self._failed.get(code, ""))
        return CodePart(code=code, offset=asked.offset, data=data, size=size)

    async def run(self) -> None:
        """Get what is wanted, for ever."""
        while True:
            wanted = await self._wanted.get()
            code = wanted if isinstance(wanted, str) else wanted.code
            if code and not bundles.packed(self._folder, code).exists():
                await self._get(code)
            self._asked.discard(code)
            if isinstance(wanted, UpdateJob):
                self._tell(wanted)

    async def _get(self, code: str) -> None:
        while True:
            try:
                data = await self._read(code)
                await asyncio.to_thread(bundles.keep, data, self._folder)
                self._complain("")
                return
            except ValueError as error:
                self._failed[code] = str(error)
                return
            except (ApiError, OSError) as error:
                self._complain(f"the code of an update cannot be fetched: {error}")
                if isinstance(error, ApiError) and not error.transient:
                    self._failed[code] = f"its controller cannot read the code: {error}"
                    return
            await asyncio.sleep(RETRY_S)

    async def _read(self, code: str) -> bytes:
        """All parts, in order. Raises `ValueError` where they are not all there, `ApiError`."""
        found: dict[int, bytes] = {}
        for name in update_parts(self._job):
            try:
                body = await self._cluster.get(CONFIG_MAPS, name)
            except NotFoundError:
                continue
            if (body["metadata"].get("labels") or {}).get(CODE) == mark(code):
                for key, piece in binary_of(body).items():
                    number, _, count = key.partition("-of-")
                    found[int(number)] = piece
                    if len(found) == int(count):
                        return _whole(code, found)
        raise ValueError(f"parts of the code bundle {mark(code)} are missing")


def _whole(code: str, parts: dict[int, bytes]) -> bytes:
    data = b"".join(piece for _, piece in sorted(parts.items()))
    if (found := bundles.digest(data)) != code:
        raise ValueError(f"the bundle of code has SHA-256 {found}, not {code}")
    return data
