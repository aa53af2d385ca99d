"""What Holdfast keeps on the Node objects of a cluster: cordons, and what it remembers over jobs.

One annotation holds the memory of a machine (`diagnosis/machine_memory.py`); our taint, and the
notes about it for people, follow from it. They are written together, if nobody else has changed the
object meanwhile: taints are one list with many writers. Taints of others and the `unschedulable`
flag stay as they are. Whoever takes our taint away by hand has lifted the cordon.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from holdfast.diagnosis import machine_memory as memories
from holdfast.diagnosis.lemons import LemonSignal
from holdfast.diagnosis.machine_memory import CordonRecord, MachineMemory
from holdfast.drivers.kubernetes.cluster import (
    NODES,
    ApiError,
    Cluster,
    ConflictError,
    NotFoundError,
)
from holdfast.drivers.kubernetes.machines import (
    EXPIRES,
    MEMORY,
    OWNER,
    REASON,
    TAINT,
    Machine,
    Taint,
)
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.talk import say

TRIES = 5
Change = Callable[[MachineMemory], MachineMemory]


async def cordon(cluster: Cluster, machine: str, *, by: str, why: str, share: float) -> str:
    """Keep everybody off a machine; why not, if not.

    Never more than `share` of the cluster's machines are out. Where several jobs cordon at once and
    it is more for a moment, the newest cordons are taken back by those who made them.
    """
    now = time.time()
    if refusal := await _over(cluster, machine, share):
        return refusal
    made = memories.cordoned(MachineMemory(), by=by, why=why, now=now).cordon
    done = await _change(
        cluster, machine, lambda old: memories.cordoned(old, by=by, why=why, now=now)
    )
    if not done:
        return "its Node object could not be changed"
    if refusal := await _over(cluster, machine, share):
        await _change(cluster, machine, lambda old: memories.undone(old, made))
    return refusal


async def _over(cluster: Cluster, machine: str, share: float) -> str:
    """Why this machine may not be out as well; one that is already, for longer, may stay so."""
    try:
        found = (await cluster.listed(NODES, Machine)).items
    except ApiError as error:
        return f"the machines of the cluster cannot be counted: {error}"
    most = memories.cordons_most(len(found), share)
    out = sorted((_since(one), one.metadata.name) for one in found if one.cordoned)
    before = [name for _, name in out]
    place = before.index(machine) if machine in before else len(before)
    if place < most:
        return ""
    count = f"{place} of {len(found)} machines are already cordoned"
    return f"{count}, and access.cordon_share allows {most}"


def _since(machine: Machine) -> int:
    cordon = memory_of(machine, time.time()).cordon
    return cordon.at if cordon is not None else 0


async def lift(cluster: Cluster, machine: str) -> bool:
    """A person wants the machine back; False if our taint could not be taken off."""
    now = time.time()
    return await _change(cluster, machine, lambda old: memories.ended(old, memories.LIFTED, now))


async def remember(
    cluster: Cluster, machine: str, given: Iterable[tuple[LemonSignal, float]]
) -> bool:
    """Signals that a machine has given; False if they could not be written."""
    signals, now = tuple(given), time.time()
    return await _change(cluster, machine, lambda old: memories.remembered(old, signals, now))


async def settle(cluster: Cluster, machine: str, failed: str, *, by: str) -> bool:
    """The check that was due is over, and `failed` is what it has found."""
    now = time.time()
    return await _change(
        cluster, machine, lambda old: memories.checked(old, failed, by=by, now=now)
    )


def memory_of(machine: Machine, now: float) -> MachineMemory:
    """What is remembered of a machine, in which the taint has the last word: what an older version
    tainted is cordoned, and what is not tainted any more was lifted by hand."""
    notes = machine.metadata.annotations
    known = memories.read(notes.get(MEMORY, "{}"))
    if machine.cordoned and known.cordon is None:
        found = CordonRecord(
            at=int(now), by=notes.get(OWNER, "?"), why=notes.get(REASON, "unknown"),
            until=_expiry(notes.get(EXPIRES, "")),
        )  # fmt: skip
        return msgspec.structs.replace(known, cordons=(*known.cordons, found))
    return known if machine.cordoned else memories.ended(known, memories.LIFTED, now)


def _expiry(text: str) -> int | None:
    """When a cordon ends that only its notes tell of; None, which is until a person lifts it, also
    where somebody has written what is no time."""
    try:
        at = int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return None
    return at if 0 <= at <= memories.LATEST_S else None


async def _change(cluster: Cluster, machine: str, change: Change) -> bool:
    """Read, change, write if nobody else has meanwhile."""
    for attempt in range(TRIES):
        try:
            found = msgspec.convert(await cluster.get(NODES, machine), Machine)
            memory = memory_of(found, time.time())
            await cluster.patch(NODES, machine, _patch(found, change(memory)))
            return True
        except ConflictError:
            continue
        except NotFoundError:
            return False  # it is no part of the cluster any more, and takes its memory along
        except ApiError as error:
            if not error.transient:
                say(f"machine {machine}: its cordon and history cannot be written: {error}")
                return False
            await asyncio.sleep(0.5 * 2**attempt)
    say(f"machine {machine}: its cordon and history could not be written")
    return False


def _patch(machine: Machine, memory: MachineMemory) -> Body:
    cordon = memory.cordon
    until = None if cordon is None or cordon.until is None else stamp(cordon.until)
    notes = {
        MEMORY: memories.written(memory),
        OWNER: cordon and cordon.by,
        REASON: cordon and cordon.why,
        EXPIRES: until,
    }
    meta = {"resourceVersion": machine.metadata.resource_version, "annotations": notes}
    if machine.cordoned == (cordon is not None):
        return {"metadata": meta}
    ours = [Taint(key=TAINT, effect="NoSchedule", value="device-faults")] if cordon else []
    taints = [*(taint for taint in machine.spec.taints if taint.key != TAINT), *ours]
    return {"metadata": meta, "spec": {"taints": msgspec.to_builtins(taints)}}


def stamp(at: float) -> str:
    """A time as people and Kubernetes write it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


async def remembered(cluster: Cluster) -> list[Machine]:
    """Every machine that is cordoned by us, or of which something is remembered."""
    found = await cluster.listed(NODES, Machine)
    return [one for one in found.items if one.cordoned or MEMORY in one.metadata.annotations]
