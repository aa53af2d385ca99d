"""Where a data loader of PyTorch stands, so that it can go on with the very batch that is next.

The order of an epoch is determined by the random numbers at its beginning and by the sampler. These
numbers are kept, and so is how many batches were fetched; going on repeats the order, without
fetching what was used. A batch that was fetched and not used yet, because a trainer looks one
ahead, is kept as it is: fetching it again would draw other random numbers. Loaders and datasets
that know their own position (`state_dict()`) are asked for it instead.

A loader is watched through a class of its own, so that it stays what it was for everybody else.
Random numbers inside worker processes of a loader are not kept: what they draw depends on where
the epoch was begun again.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from holdfast.errors import Error
from holdfast.train import random_state

_CPU = torch.device("cpu")
_PLAIN = (type(None), bool, int, float, str, bytes, torch.Tensor)


class LoaderPlace:
    """The position of one loader. `ahead` is how many batches a trainer may fetch before it uses
    them; `reread` allows to read an iterable dataset from its beginning again."""

    def __init__(self, loader: Any, *, ahead: int = 0, reread: bool = False) -> None:
        self._loader = loader
        self._newest: deque[Any] = deque(maxlen=max(ahead, 1))
        self._at_start: Any = None
        self.fetched = 0
        self.used = 0
        """Batches of this epoch that training has used: counted by whoever takes them."""
        self._resume: dict[str, Any] | None = None
        self._left_out = 0
        self._loaded = False
        self.after_resume: Callable[[], None] = lambda: None
        """Called when the place is reached again, before the next batch is fetched."""
        self.keeper = _keeper(loader)
        if self.keeper is None and not reread:
            _require_repeatable(loader)
        if "_place" not in vars(loader):
            _watch(loader)
        vars(loader)["_place"] = self

    # ── the state ──

    def state_dict(self) -> dict[str, Any]:
        """Where it stands between two steps."""
        waiting = self.fetched - self.used
        pending = list(self._newest)[-waiting:] if 0 < waiting <= len(self._newest) else []
        packed = [_packed(batch) for batch in pending]
        kept = len(pending) == max(waiting, 0) and all(one is not None for one in packed)
        if not kept and self.keeper is not None:
            pairs = zip(pending, packed, strict=True)
            kinds = (type(batch).__qualname__ for batch, one in pairs if one is None)
            raise _unstorable(next(kinds, f"one of {waiting}"))
        return {
            "fetched": self.fetched if kept else self.used,
            "used": self.used,
            "pending": packed if kept else [],
            "at_start": self._at_start,
            "own": None if self.keeper is None else self.keeper.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there with the next `iter()`."""
        self._loaded = True
        self._resume = state if state["at_start"] is not None else None
        self.used = state["used"]

    def begin_after(self, count: int) -> None:
        """Leave out so many batches of the epoch that is begun next, unless a state was loaded:
        what a trainer does that resumes from its own checkpoint."""
        if not self._loaded:
            self._left_out = count

    def forget(self) -> None:
        """What is left of the epoch is nothing."""
        self._resume = None

    # ── iterating ──

    def iterate(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The batches of an epoch, or what is left of one. `begin` is the loader's own `iter()`,
        and is called now, because it draws a random number."""
        resume, self._resume = self._resume, None
        self._newest.clear()
        if resume is not None:
            batches = self._begin_again(begin, resume)
            return self._counted(batches, [*map(_unpacked, resume["pending"])])
        self.fetched = self.used = self._left_out
        self._left_out = 0
        self._at_start = self._start_of_epoch()
        if getattr(self.keeper, "_starting_state_dict", None) is not None:
            # a stream of Hugging Face's would begin each epoch where one was resumed
            self.keeper._starting_state_dict = None
        return self._counted(self._after_fetched(begin, self._note_first), [])

    def _counted(self, batches: Iterator[Any], pending: list[Any]) -> Iterator[Any]:
        self._newest.extend(pending)
        yield from pending
        if self.fetched == 0:
            self._note_first()
        for batch in batches:
            self.fetched += 1
            self._newest.append(batch)
            yield batch

    def _start_of_epoch(self) -> dict[str, Any]:
        generator = _generator(self._loader)
        own = None if generator is None else generator.get_state()
        now = random_state.capture(_CPU)
        return {"random": now, "first": now, "generator": own}

    def _begin_again(
        self, begin: Callable[[], Iterator[Any]], state: dict[str, Any]
    ) -> Iterator[Any]:
        self.fetched, self.used = state["fetched"], state["used"]
        self._at_start = state["at_start"]
        random_state.restore(self._at_start["random"], _CPU)
        generator = _generator(self._loader)
        if generator is not None and self._at_start["generator"] is not None:
            generator.set_state(self._at_start["generator"])
        if getattr(self._loader, "_iterator", None) is not None:
            self._loader._iterator = None  # of persistent workers: it would keep its own sampler
        if state["own"] is not None and self.keeper is not None:
            self.keeper.load_state_dict(state["own"])
            batches = begin()
        else:
            batches = self._after_fetched(begin, self._put_first_back)
        self.after_resume()
        return batches

    def _note_first(self) -> None:
        self._at_start["first"] = random_state.capture(_CPU)

    def _put_first_back(self) -> None:
        random_state.restore(self._at_start["first"], _CPU)

    def _after_fetched(
        self, begin: Callable[[], Iterator[Any]], begun: Callable[[], None]
    ) -> Iterator[Any]:
        """The epoch without what was fetched, by index or by reading it again. `begun` is called
        before its first batch: samplers draw an order then."""
        if self.fetched == 0:
            return begin()
        if not isinstance(self._loader.dataset, IterableDataset):
            return _without_first(self._loader, begin, self.fetched, begun)
        batches = begin()
        begun()
        for _ in range(self.fetched):
            next(batches, None)
        return batches


def _watch(loader: Any) -> None:
    """Have `iter(loader)` go through its place."""
    plain = object.__getattribute__(loader, "__class__")

    def begin(self: Any) -> Iterator[Any]:
        place: LoaderPlace = vars(self)["_place"]
        return place.iterate(lambda: plain.__iter__(self))

    object.__setattr__(loader, "__class__", type(plain.__name__, (plain,), {"__iter__": begin}))


class _Rest:
    """What a sampler gives after its first batches, which are left out once. It begins when it is
    first needed: after the loader has drawn a random number for itself, as ever."""

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler, self._count = sampler, count
        self._begun: Iterator[Any] | None = None

    def __iter__(self) -> "_Rest":
        self._begun = None
        return self

    def __next__(self) -> Any:
        return next(self.begin())

    def begin(self) -> Iterator[Any]:
        """The sampler's iterator, made now at the latest."""
        if self._begun is None:
            self._begun = iter(self._sampler)
            for _ in range(self._count):
                next(self._begun, None)
            self._count = 0
        return self._begun

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def _without_first(
    loader: Any, begin: Callable[[], Iterator[Any]], count: int, begun: Callable[[], None]
) -> Iterator[Any]:
    """An epoch of a loader whose dataset has indices, without its first batches."""
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    plain = getattr(loader, name)
    rest = _Rest(plain, count)
    object.__setattr__(loader, name, rest)
    try:
        batches = begin()
        begun()
        rest.begin()
    finally:
        object.__setattr__(loader, name, plain)
    return batches


def _generator(loader: Any) -> torch.Generator | None:
    """The generator of the innermost sampler, if it has one of its own."""
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    while sampler is not None:
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            return generator
        inner = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
        sampler = inner if inner is not sampler else None
    return None


# ── who knows the position ────────────────────────────────────────────────────────────────────


def _keeper(loader: Any) -> Any:
    """What can be asked for the position: the loader itself, or its dataset where that is read in
    this process; None: it is counted."""
    if hasattr(type(loader), "state_dict") and hasattr(type(loader), "load_state_dict"):
        return loader
    dataset = loader.dataset
    if not isinstance(dataset, IterableDataset) or loader.num_workers:
        return None
    inner = _inner(dataset)
    return inner if _knows_place(inner) else None


def _inner(dataset: Any) -> Any:
    """The dataset inside the one that deals it out to ranks."""
    shard = type(dataset).__name__ == "IterableDatasetShard"
    return dataset.dataset if shard else dataset


def _knows_place(dataset: Any) -> bool:
    has = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
    return has and not _loses_buffer(getattr(dataset, "_ex_iterable", None))


def _loses_buffer(examples: Any) -> bool:
    """Whether a stream of Hugging Face's datasets is shuffled in a buffer, which its position does
    not tell."""
    while examples is not None:
        if "BufferShuffled" in type(examples).__name__:
            return True
        examples = getattr(examples, "ex_iterable", None)
    return False


def _require_repeatable(loader: Any) -> None:
    """Raise `Error` (loader-cannot-resume) for data whose position nobody knows."""
    dataset = loader.dataset
    if not isinstance(dataset, IterableDataset):
        return
    name = type(_inner(dataset)).__qualname__
    if _loses_buffer(getattr(_inner(dataset), "_ex_iterable", None)):
        why = "its shuffle buffer is not part of its state_dict()"
    elif loader.num_workers and _knows_place(_inner(dataset)):
        why = f"{loader.num_workers} processes read it, and the loader does not save their state"
    else:
        why = "it is an iterable dataset without state_dict() and load_state_dict()"
    raise Error(
        "loader-cannot-resume",
        f"the training data ({name}) cannot be resumed",
        why=why,
        help="use torchdata's StatefulDataLoader with a dataset that has both methods, or read it "
        "from its beginning again after a restart: reread=True",
    )


def _unstorable(kind: str) -> Error:
    return Error(
        "loader-cannot-resume",
        f"a prefetched batch ({kind}) cannot be saved",
        why="the position of its data set is already after it",
        help="return tensors, numbers and strings in dicts, lists and tuples from collate_fn",
    )


# ── batches that wait ─────────────────────────────────────────────────────────────────────────


def _packed(batch: Any) -> Any:
    """A batch as plain data; None for one that cannot be."""
    if isinstance(batch, _PLAIN):
        return [batch]
    if isinstance(batch, Mapping):
        return _packed_parts(type(batch).__name__, [*batch.keys()], [*batch.values()])
    if type(batch) in (list, tuple):
        return _packed_parts(type(batch).__name__, [], list(batch))
    return None


def _packed_parts(kind: str, keys: list[Any], values: list[Any]) -> Any:
    parts = [_packed(value) for value in values]
    if any(part is None for part in parts) or not all(isinstance(key, str) for key in keys):
        return None
    known = kind in ("dict", "list", "tuple", "BatchEncoding")
    return [kind, keys, parts] if known else None


def _unpacked(packed: Any) -> Any:
    if len(packed) == 1:
        return packed[0]
    kind, keys, parts = packed
    values = [_unpacked(part) for part in parts]
    if kind in ("list", "tuple"):
        return tuple(values) if kind == "tuple" else values
    found = dict(zip(keys, values, strict=True))
    if kind == "BatchEncoding":
        from transformers import BatchEncoding

        return BatchEncoding(found)
    return found


def loader_under(loader: Any) -> Any:
    """The loader of PyTorch in a wrapper of Accelerate's."""
    inner = getattr(loader, "__dict__", {}).get("base_dataloader")
    return loader if inner is None else inner


def is_loader(thing: Any) -> bool:
    """Whether this is a loader whose place can be kept."""
    return isinstance(thing, DataLoader)
