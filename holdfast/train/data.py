"""A data loader that several ranks share and that resumes at a batch without replaying any.

Position is the number of samples of the epoch that all ranks have used together. It and the seed
determine every later batch by arithmetic (`permutation`), for any number of ranks, so resuming is
the same as starting there. The position moves when the script takes a batch, not when a worker
process fetches one ahead. Worker processes seed their generators per batch, so random augmentation
resumes exactly too. In a layout where several ranks have the same samples (`tp`, `cp`, `pp`) this
process does so, too, while it fetches a batch: the script's own numbers may differ between them.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info

from holdfast.checkpoint.dealing import next_turn, share
from holdfast.counts import count
from holdfast.dimensions import layout_in
from holdfast.errors import Error
from holdfast.train import random_state
from holdfast.train.elastic import policy_in
from holdfast.train.permutation import combine, permute
from holdfast.train.placement import find_placement

_CPU = torch.device("cpu")


class Ticket(NamedTuple):
    """One batch of one rank: which samples, where the epoch stands once it is used, and how many
    samples all ranks have together."""

    epoch: int
    samples_after: int
    indices: list[int]
    seed: int
    total: int = 0


class SampleOrder(NamedTuple):
    """How samples become batches. `batch_size` is per rank."""

    sample_count: int
    batch_size: int
    seed: int
    shuffle: bool
    drop_last: bool

    def tickets(
        self, epoch: int, samples: int, rank: int, world_size: int, total: int | None = None
    ) -> Iterator[Ticket]:
        """Tickets of one rank without end, from this position on; `total` samples at once over all
        ranks, by default `batch_size` for each of them.

        With `drop_last` an epoch ends before a batch that not all ranks can fill; otherwise the
        rest is divided evenly, less than one sample per rank being dropped.
        """
        whole = self.batch_size * world_size if total is None else total
        least = whole if self.drop_last else world_size
        while True:
            turn = next_turn(epoch, samples, count=self.sample_count, whole=whole, least=least)
            epoch, samples = turn.epoch, turn.first + turn.size
            indices = self._samples(epoch, share(turn, rank, world_size))
            seed = combine(self.seed, epoch, samples, rank)
            yield Ticket(epoch, samples, indices, seed, turn.size)

    def _samples(self, epoch: int, positions: range) -> list[int]:
        if not self.shuffle:
            return list(positions)
        key = combine(self.seed, epoch)
        return cast("list[int]", permute(np.array(positions), self.sample_count, key).tolist())


class _Batches:
    """A dataset whose items are whole batches, fetched by ticket."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate
        self.several = False
        """Whether other ranks fetch the same samples."""

    def __getitem__(self, ticket: Ticket) -> tuple[Ticket, Any]:
        in_worker = get_worker_info() is not None
        own = random_state.capture(_CPU) if self.several and not in_worker else None
        if in_worker or own is not None:
            _seed_all(ticket.seed)
        batch = self._collate(_fetch(self._dataset, ticket.indices))
        if own is not None:
            random_state.restore(own, _CPU)
        return ticket, batch


class Loader:
    """Batches for this rank, epoch after epoch without end. See `loader`."""

    def __init__(
        self, dataset: Any, order: SampleOrder, collate: Callable[[list[Any]], Any], options: Any
    ) -> None:
        self._batches = _Batches(dataset, collate)
        self._order = order
        self._options = options
        self.epoch = 0
        self.samples = 0  # of this epoch, used by all ranks together
        self.dealt = (0, 0)  # samples of the step under way: of this rank, of all who average

    def __iter__(self) -> Iterator[Any]:
        placement = find_placement()
        dimensions = layout_in(os.environ).resolve(placement.world_size)
        rank, world_size = dimensions.data_rank(placement.rank), dimensions.data
        self._batches.several = placement.world_size > world_size
        policy = policy_in(placement.world_size)
        total = policy.samples(self._order.batch_size)
        self._require_one_batch(world_size, total)
        tickets = self._order.tickets(self.epoch, self.samples, rank, world_size, total)
        # a generator of its own: DataLoader would draw from the script's random numbers
        own = torch.Generator().manual_seed(self._order.seed)
        fetched = DataLoader(
            cast("Any", self._batches),
            sampler=cast("Any", tickets),
            batch_size=None,
            generator=own,
            collate_fn=_as_is,
            **self._options,
        )
        for ticket, batch in fetched:
            self.epoch, self.samples = ticket.epoch, ticket.samples_after
            self.dealt = (len(ticket.indices), policy.replica_samples(rank, ticket.total))
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Where the loader stands, for any number of ranks."""
        return {"epoch": self.epoch, "samples": self.samples, "seed": self._order.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there with the next `iter()`."""
        self.epoch, self.samples = state["epoch"], state["samples"]
        self._order = self._order._replace(seed=state["seed"])

    @property
    def batch_size(self) -> int:
        """Samples of a rank at a time."""
        return self._order.batch_size

    def _require_one_batch(self, world_size: int, total: int) -> None:
        if total < world_size:
            raise Error(
                "loader-empty",
                f"a step of {count(total, 'sample')} cannot be divided among {world_size} ranks",
                why="elasticity.batch is keep_global_batch: each step has as many samples as on "
                "nodes.count nodes",
                help="use a larger batch size, fewer nodes, or elasticity.batch: scale_lr",
            )
        needed = total if self._order.drop_last else world_size
        if self._order.sample_count < needed:
            has, each = (count(n, "sample") for n in (self._order.sample_count, self.batch_size))
            raise Error(
                "loader-empty",
                f"the dataset has {has}, one step needs {needed}",
                why=f"{count(world_size, 'rank uses', 'ranks use')} {each} each",
                help="use a smaller batch size or more data",
            )


def loader(
    dataset: Sized,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = True,
    collate: Callable[[list[Any]], Any] = default_collate,
    num_workers: int = 0,
    pin_memory: bool = False,
    prefetch_factor: int | None = None,
) -> Loader:
    """A resumable loader over a dataset with `len()` and `[]`; may be made above `join()`.

    `batch_size` samples per rank and step. The order is determined by `seed` and the epoch.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    order = SampleOrder(len(dataset), batch_size, seed, shuffle, drop_last)
    options = {
        "num_workers": num_workers,
        "pin_memory": pin_memory,
        "prefetch_factor": prefetch_factor,
    }
    return Loader(dataset, order, collate, options)


def _fetch(dataset: Any, indices: Sequence[int]) -> list[Any]:
    many = getattr(dataset, "__getitems__", None)
    return many(list(indices)) if many is not None else [dataset[i] for i in indices]


def _as_is(item: Any) -> Any:
    return item


def _seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.default_generator.manual_seed(seed)  # not those of GPUs, which belong to the script
