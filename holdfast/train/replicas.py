"""Whether replicas of parameters are still the same on all ranks: sums of their bits, compared.

Silent corruption shows in nothing but the numbers themselves. Data-parallel ranks hold the same
parameters bit for bit, so one of them that differs has computed or kept something wrong. Every
`recovery.check_replicas_every` steps, and after each step that ends with a snapshot, the bits of
each parameter are summed where they lie: as 64-bit integers, modulo 2^64, in the order of memory.
Any change of a single word changes the sum. The digest is the first 62 bits of XXH3-64 over the
sums of all parameters that the same ranks hold.

Digests travel in the meeting of the next step (`exchange`), which goes on beside training: if the
largest and the smallest are not the same, replicas differ. So all ranks know it at the same step,
throw away the snapshot that was taken since they last agreed, and take no more. Who differs from
whom is for the controller to tell, from what each has left in its progress page.

Compared is what is the same by construction: parameters that DDP keeps, and DTensors over mesh
dimensions whose name has `replicate` in it. Replicas that only compute alike (norms under tensor
parallelism) may drift apart in their last bits with nothing broken.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import xxhash

from holdfast.checkpoint.tensors import is_distributed, local_part
from holdfast.digests import ReplicaDigest
from holdfast.train.exchange import LEAST, Exchange
from holdfast.train.tracked import Tracked

logger = logging.getLogger(__name__)

GROUPS_MAX = 256  # of ranks with the same parameters; two numbers of each are in a meeting
WORD_BYTES = 8

Group = tuple[int, ...]


class _Look(NamedTuple):
    """The sums after one step, perhaps still on their way from the GPU."""

    step: int
    at: float  # monotonic
    sums: dict[Group, torch.Tensor]  # on the CPU
    arrived: Any  # torch.cuda.Event; None where there is nothing to wait for

    def digests(self) -> dict[Group, int]:
        """By group of ranks. Waits for the sums."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return {group: _digest(sums) for group, sums in self.sums.items()}


class ReplicaChecks:
    """Those of one rank; does nothing where `every` is 0 or there is nobody to compare with."""

    def __init__(
        self, tracked: Tracked, exchange: Exchange | None, every: int, *, says: bool = True
    ) -> None:
        """`says`: this rank warns for all."""
        self._says = says
        self._tracked = tracked
        self._exchange = exchange if every else None
        self._every = every
        self._mine: dict[Group, list[torch.Tensor]] = {}
        self._places: dict[Group, int] = {}  # of all groups, in what is told at meetings
        self._looks: deque[_Look] = deque(maxlen=2)
        self._told: _Look | None = None  # at the meeting that is under way
        self._newest_told = 0
        self._agreed = 0  # newest step after which all replicas were the same
        self._agreed_at = 0.0
        self.cost_s = 0.0
        """What the newest look took."""
        self.differ: ReplicaDigest | None = None
        """What this rank has, once replicas differ anywhere. A `count` of 0: not its own."""

    def begin(self, step: int) -> None:
        """Training goes on after this step. Agrees with the other ranks who compares what."""
        if self._exchange is None:
            return
        self._mine = _groups(self._tracked)
        told = self._exchange.gather_bytes(msgspec.msgpack.encode(list(self._mine)))
        known = {group for one in told for group in msgspec.msgpack.decode(one, type=list[Group])}
        if not 0 < len(known) <= GROUPS_MAX:
            if self._says:
                logger.warning("recovery.check_replicas_every has no effect: %s", _why_not(known))
            self._exchange = None
            return
        self._places = {group: at for at, group in enumerate(sorted(known))}
        self._agreed, self._agreed_at = max(0, step - 1), time.monotonic()
        if step:
            self.look(step)

    def step_done(self, step: int, *, last: bool) -> None:
        """Look, if this step is one of those."""
        if self._exchange is not None and (last or step % self._every == 0):
            self.look(step)

    def look(self, step: int) -> None:
        """Sum the bits after this step, unless that was done."""
        if self._exchange is None or (self._looks and self._looks[-1].step >= step):
            return
        began = time.monotonic()
        sums = {group: _sums(tensors) for group, tensors in self._mine.items()}
        here = {group: one.to("cpu", non_blocking=True) for group, one in sums.items()}
        self._looks.append(_Look(step, began, here, _arrival(sums.values())))
        self.cost_s = time.monotonic() - began

    def wait(self, through: int) -> bool:
        """Whether there are sums of a step up to this one that other ranks do not know."""
        return any(self._newest_told < one.step <= through for one in self._looks)

    def say(self, through: int) -> list[int]:
        """The newest digests of a step up to this one, for a meeting; of each group the digest, and
        its negative, so that the largest of both show whether they differ."""
        self._told = next((one for one in reversed(self._looks) if one.step <= through), None)
        self._newest_told = self._told.step if self._told is not None else 0
        said = [LEAST] * (2 * len(self._places))
        digests = self._told.digests() if self._told is not None else {}
        for group, digest in digests.items():
            at = 2 * self._places[group]
            said[at : at + 2] = digest, -digest
        return said

    def learn(self, heard: Sequence[int]) -> bool:
        """What all ranks have said: whether replicas differ, now for the first time."""
        told, self._told = self._told, None
        if told is None or self.differ is not None:
            return False
        bad = [group for group, at in self._places.items() if heard[2 * at] != -heard[2 * at + 1]]
        if not bad:
            self._agreed, self._agreed_at = told.step, told.at
            return False
        digests = told.digests()
        mine = next((group for group in bad if group in digests), ())
        self.differ = ReplicaDigest(
            step=told.step,
            agreed=self._agreed,
            digest=digests.get(mine, 0),
            first=mine[0] if mine else 0,
            count=len(mine),
            ago_s=time.monotonic() - self._agreed_at,
        )
        return True


def _why_not(known: set[Group]) -> str:
    if known:
        return f"parameters are replicated over more than {GROUPS_MAX} groups of ranks"
    return "no parameter is replicated over ranks by DDP or a mesh dimension named replicate"


def _groups(tracked: Tracked) -> dict[Group, list[torch.Tensor]]:
    """The parameters that lie here, by the ranks that hold the same; each once."""
    found: dict[Group, list[torch.Tensor]] = {}
    seen: set[int] = set()
    for path, parameter in tracked.names.parameters.items():
        group = _holders(parameter) if is_distributed(parameter) else tracked.equal_on(path)
        if len(group) > 1 and id(parameter) not in seen:
            seen.add(id(parameter))
            found.setdefault(group, []).append(parameter)
    return found


def _holders(parameter: Any) -> Group:
    """The ranks that hold the same part of a DTensor, along dimensions that replicate."""
    mesh, here = parameter.device_mesh, parameter.device_mesh.get_coordinate()
    if here is None:
        return ()
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    where = tuple(
        slice(None) if "replicate" in name and placement.is_replicate() else at
        for name, placement, at in zip(names, parameter.placements, here, strict=True)
    )
    return tuple(sorted(mesh.mesh[where].flatten().tolist()))


def _sums(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One number for each tensor, on the device of the first."""
    with torch.no_grad():
        sums = [_sum(local_part(tensor).detach()) for tensor in tensors]
        return torch.stack([one.to(sums[0].device) for one in sums])


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    """The bits as 64-bit integers, what is left at the end as bytes; modulo 2^64."""
    flat = _flat(tensor).view(torch.uint8)
    whole = flat.numel() // WORD_BYTES * WORD_BYTES
    rest = flat[whole:].sum(dtype=torch.int64)
    if flat.storage_offset() % WORD_BYTES:
        return rest + flat[:whole].clone().view(torch.int64).sum()
    return rest + flat[:whole].view(torch.int64).sum()


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in the order of memory, or of their indices where there are gaps."""
    strides = [*tensor.stride()]
    order = sorted(range(tensor.ndim), key=lambda dim: -strides[dim])
    ordered = tensor.permute(order)
    flat = (ordered if ordered.is_contiguous() else tensor.contiguous()).reshape(-1)
    return flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)


def _digest(sums: torch.Tensor) -> int:
    array = np.ascontiguousarray(sums.numpy())
    return xxhash.xxh3_64_intdigest(array.tobytes()) >> 2


def _arrival(sums: Any) -> Any:
    """What tells that the sums have arrived; None where they are here."""
    if not any(one.is_cuda for one in sums):
        return None
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return arrived
