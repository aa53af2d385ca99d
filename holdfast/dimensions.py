"""The dimensions of a parallel layout: how many ranks each has, and how that is written and sent.

A layout is asked for with some numbers and at most one -1, which takes the remainder. `resolve`
makes numbers of it for a number of ranks, or says which numbers do not fit and which would. Ranks
are numbered with `tp` innermost, so that its ranks are neighbours on one node (it talks within each
layer), then `cp`, `dp_shard`, `dp_replicate`, and `pp` outermost, which talks least.
`ep` is no dimension of its own: its ranks are neighbours among those of `dp_shard` and `cp`.

A vocabulary of its own, without pydantic: workers read it, too.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

NAMES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")  # outermost first
VARIABLE = "HOLDFAST_PARALLEL"
REMAINDER = -1

Precision = Literal["fp32", "bf16", "fp16"]
Recomputation = Literal["none", "selective", "full"]
Compression = Literal["none", "bf16", "powersgd"]
ScheduleName = Literal["1f1b", "gpipe", "interleaved", "zero_bubble"]


class Dimensions(NamedTuple):
    """Ranks along each dimension, outermost first."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def data(self) -> int:
        """Ranks, or groups of them, that have samples of their own."""
        return self.dp_replicate * self.dp_shard

    @property
    def replicates_only(self) -> bool:
        """Whether all ranks do the same with other samples (DDP)."""
        return self.pp == self.dp_shard == self.cp == self.tp == 1

    def data_rank(self, rank: int) -> int:
        """Which of the `data` shares of a step is that of this rank."""
        return rank // (self.cp * self.tp) % self.data

    def place(self, rank: int) -> dict[str, int]:
        """The number of this rank along each dimension that has more than one."""
        found, below = {}, 1
        for name, size in reversed(list(zip(NAMES, self, strict=True))):
            if size > 1:
                found[name] = rank // below % size
            below *= size
        return dict(reversed(found.items()))


class Layout(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a job asks for; the keys of `parallel` in the job file."""

    dp_replicate: int = 1
    dp_shard: int = REMAINDER
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    schedule: ScheduleName = "1f1b"
    precision: Precision = "fp32"
    activation_checkpointing: Recomputation = "none"
    accumulate: int = 1
    gradient_compression: Compression = "none"
    compile: bool = False

    def resolve(self, world_size: int) -> Dimensions:
        """For this many ranks. Raises `ValueError` where they do not fit."""
        found = resolve({name: getattr(self, name) for name in NAMES}, world_size)
        if found.dp_shard * found.cp % self.ep:
            raise ValueError(_misfit_of_experts(self.ep, found))
        return found

    @property
    def replica_ranks(self) -> int:
        """Of what a smaller copy of the job is made of; 0 where the layout fits no other size."""
        sizes: list[int] = [getattr(self, name) for name in NAMES]
        if REMAINDER not in (self.dp_replicate, self.dp_shard):
            return 0
        shards = math.lcm(self.ep, self.cp) // self.cp if self.dp_shard == REMAINDER else 1
        return shards * math.prod(size for size in sizes if size != REMAINDER)


PLAIN = Layout(dp_replicate=REMAINDER, dp_shard=1)
"""Of a job that asks for none: all ranks do the same with other samples."""


def layout_in(environ: Mapping[str, str]) -> Layout:
    """What the environment says; `PLAIN` where it says nothing."""
    text = environ.get(VARIABLE)
    return PLAIN if text is None else msgspec.json.decode(text, type=Layout)


def told(layout: Layout) -> str:
    """`layout` as the environment has it."""
    return msgspec.json.encode(layout).decode()


def resolve(asked: Mapping[str, int], world_size: int) -> Dimensions:
    """The ranks along each dimension. Raises `ValueError` with the numbers, and what would fit."""
    sizes = dict(asked)
    fixed = math.prod(size for size in sizes.values() if size != REMAINDER)
    open_ = [name for name, size in sizes.items() if size == REMAINDER]
    if world_size % fixed or (not open_ and world_size != fixed):
        raise ValueError(_misfit(sizes, fixed, world_size, open_))
    for name in open_:
        sizes[name] = world_size // fixed
    return Dimensions(**sizes)


def _misfit(sizes: Mapping[str, int], fixed: int, world_size: int, open_: list[str]) -> str:
    given = [f"{name} {n}" for name, n in sizes.items() if n not in (1, REMAINDER)]
    factors = " x ".join(given) or "all dimensions 1"
    product = factors if len(given) == 1 else f"{factors} = {fixed}"
    if open_:
        below = world_size // fixed * fixed
        fits = [n for n in (below, below + fixed) if n]
        return (
            f"{product} does not divide the {_ranks(world_size)}; it would with "
            f"{' or '.join(map(str, fits))} ranks"
        )
    return (
        f"{product}, but there {_are(world_size)}; use "
        f"{_ranks(fixed)}, or let one dimension be {REMAINDER}, which takes the remainder"
    )


def _misfit_of_experts(ep: int, found: Dimensions) -> str:
    shared = found.dp_shard * found.cp
    fits = " or ".join(map(str, divisors(shared)))
    return (
        f"ep {ep} takes its ranks from dp_shard {found.dp_shard} x cp {found.cp} = {shared}, which "
        f"it does not divide; ep {fits} would"
    )


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count:,} ranks"


def _are(count: int) -> str:
    return "is 1 rank" if count == 1 else f"are {count:,} ranks"


def divisors(*numbers: int) -> list[int]:
    """What divides all of these."""
    common = math.gcd(*numbers)
    return [n for n in range(1, common + 1) if common % n == 0]


def parsed(text: str) -> dict[str, int | bool | str]:
    """`tp=2,precision=bf16` as a section of the job file. Raises `ValueError` for other text."""
    found: dict[str, int | bool | str] = {}
    for word in text.split(","):
        key, equals, value = word.strip().partition("=")
        if not (key and equals and value):
            raise ValueError(f"{word!r} is not KEY=NUMBER")
        if key in found:
            raise ValueError(f"{key} occurs twice")
        found[key] = _value(value)
    return found


def _value(text: str) -> int | bool | str:
    if text.removeprefix("-").isdecimal():
        return int(text)
    return {"true": True, "false": False}.get(text, text)


def across_nodes(dimensions: Dimensions, local_world_size: int) -> str:
    """Why tensor parallelism will be slow; empty where its ranks are on one node each."""
    tp = dimensions.tp
    if local_world_size % tp == 0:
        return ""
    fits = " or ".join(map(str, divisors(local_world_size)))
    return (
        f"tp {tp} spans nodes of {local_world_size} workers: its ranks exchange activations "
        f"several times in each layer, over the network instead of links within a node; tp "
        f"{fits} stays within one"
    )
