"""A loader goes on with the very batch that is next, whatever knows where it stands."""

import io
import random
import tarfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.checkpoint.codec import flatten, unflatten
from holdfast.errors import Error
from holdfast.integrations.place import LoaderPlace
from holdfast.integrations.resumable import resumable
from tests.more import sample

DATA = TensorDataset(torch.arange(22))
WEIGHTED = WeightedRandomSampler([1.0] * 22, 22)


def noisy(items: list[Any]) -> Any:
    """A collator that draws, as those that mask tokens do."""
    numbers = torch.stack([item[0] if isinstance(item, tuple) else item["n"] for item in items])
    return {"n": numbers, "noise": torch.rand(1), "also": [random.random()]}


def rows() -> Any:
    import datasets

    return datasets.Dataset.from_dict({"n": list(range(22))}).with_format("torch")


def stream(**shuffled: Any) -> Any:
    found = rows().to_iterable_dataset(num_shards=2)
    return found.shuffle(**shuffled) if shuffled else found


class Shards(IterableDataset[Any]):
    """An iterable that knows where it stands."""

    def __init__(self) -> None:
        self.at = 0
        self._resumed = False

    def __iter__(self) -> Iterator[Any]:
        self.at, self._resumed = self.at if self._resumed else 0, False
        while self.at < 22:
            self.at += 1
            yield {"n": torch.tensor(self.at)}

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self._resumed = state["at"], True


class StreamingLoader(DataLoader[Any]):
    """With the interface of MosaicML's StreamingDataLoader, which needs another xxhash than we."""

    def state_dict(self) -> dict[str, int]:
        return {"sample_in_epoch": self.dataset.at}  # type: ignore[attr-defined]

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.dataset.load_state_dict({"at": state["sample_in_epoch"]})  # type: ignore[attr-defined]


def shards(folder: Path) -> str:
    for number in range(2):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            for item in range(11):
                info = tarfile.TarInfo(f"{number}{item:02}.txt")
                info.size = 4
                tar.addfile(info, io.BytesIO(b"%04d" % (100 * number + item)))
    return str(folder / "{0..1}.tar")


def web(folder: Path) -> Any:
    import webdataset

    found = webdataset.WebDataset(shards(folder), shardshuffle=False)
    return (
        found.shuffle(5, rng=random.Random(3))
        .decode()
        .map(lambda one: {"n": torch.tensor(int(one["txt"]))})
    )


KINDS: dict[str, Callable[[Path], Any]] = {
    "shuffled": lambda _: DataLoader(DATA, 4, shuffle=True, collate_fn=noisy),
    "own generator": lambda _: DataLoader(
        DATA, 4, shuffle=True, collate_fn=noisy, generator=torch.Generator().manual_seed(5)
    ),
    "weighted": lambda _: DataLoader(DATA, 4, sampler=WEIGHTED, collate_fn=noisy),
    "persistent workers": lambda _: DataLoader(
        DATA, 4, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "torchdata": lambda _: StatefulDataLoader(DATA, 4, shuffle=True, collate_fn=noisy),
    "Hugging Face, by index": lambda _: DataLoader(rows(), 4, True, collate_fn=noisy),
    "Hugging Face, streamed": lambda _: DataLoader(stream(), 4, collate_fn=noisy),
    "MosaicML's interface": lambda _: StreamingLoader(Shards(), 4, collate_fn=noisy),
    "a dataset that knows": lambda _: DataLoader(Shards(), 4, collate_fn=noisy),
}  # fmt: skip
REREAD: dict[str, Callable[[Path], Any]] = {
    "shuffled in a buffer": lambda _: DataLoader(
        stream(buffer_size=7, seed=1),
        4,
        collate_fn=lambda items: torch.stack([i["n"] for i in items]),
    ),
    "WebDataset": lambda folder: DataLoader(
        web(folder), 4, collate_fn=lambda items: torch.stack([i["n"] for i in items])
    ),
}


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def stored(state: Any) -> Any:
    """As a snapshot gives it back."""
    flat = flatten(state, lambda one: hasattr(one, "dtype"), "loader")
    return unflatten(
        flat.plain,
        [
            torch.as_tensor(x).clone() if isinstance(x, torch.Tensor) else x.copy()
            for x in flat.leaves
        ],
    )


@pytest.mark.parametrize("stop", sample([3, 6], [1, 2, 5, 7, 11, 12]))
@pytest.mark.parametrize("kind", [*KINDS, *REREAD])
def test_it_goes_on_with_the_next_batch(tmp_path: Path, kind: str, stop: int) -> None:
    """Another loader in a new process, and the same one in a process that is kept."""
    make = (KINDS | REREAD)[kind]
    torch.manual_seed(1)
    random.seed(1)
    first = resumable(make(tmp_path), reread=kind in REREAD)
    batches = endless(first)
    for _ in range(stop):
        next(batches)
    states = [stored(first.state_dict()) for _ in range(2)]
    expected = [str(batch) for batch in islice(batches, 9)]
    batches.close()  # type: ignore[attr-defined]
    second = resumable(make(tmp_path), reread=kind in REREAD)
    kept = [] if first.reread else [first]  # no process is kept that would have to read it again
    for again, state in zip([second, *kept], states, strict=False):
        torch.manual_seed(99)
        random.seed(99)
        again.load_state_dict(state)
        assert [str(batch) for batch in islice(endless(again), 9)] == expected


class OneShot(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(range(5))


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (lambda: DataLoader(OneShot()), "without state_dict"),
        (lambda: DataLoader(stream(buffer_size=3)), "shuffle buffer"),
        (lambda: DataLoader(Shards(), num_workers=1), "1 process"),
    ],
)
def test_data_that_cannot_resume_is_refused_before_the_first_step(
    loader: Callable[[], Any], why: str
) -> None:
    with pytest.raises(Error, match="cannot be resumed") as caught:
        resumable(loader())
    assert why in caught.value.why and "reread=True" in caught.value.help
    resumable(loader(), reread=True)


def test_a_batch_that_waits_is_kept_as_it_is() -> None:
    """A trainer looks one batch ahead; fetching it again would draw other numbers."""
    torch.manual_seed(1)
    loader = DataLoader(DATA, 4, shuffle=True, collate_fn=noisy)
    place = LoaderPlace(loader, ahead=1)
    batches = iter(loader)
    seen = [next(batches) for _ in range(3)]
    place.used = 2
    state = stored(place.state_dict())
    rest = [str(batch) for batch in (seen[2], *batches)]
    left_at = torch.get_rng_state()
    again = DataLoader(DATA, 4, shuffle=True, collate_fn=noisy)
    other = LoaderPlace(again, ahead=1)
    other.load_state_dict(state)
    other.after_resume = lambda: None
    found = list(again)
    assert str(found[0]) == rest[0] and len(found) == len(rest)
    assert [str(f["n"]) for f in found] == [r.split("'n': ")[1].split(", 'noise'")[0] for r in rest]
    assert left_at is not None


def test_batches_that_are_not_here_any_more_are_fetched_again() -> None:
    """A trainer has fetched more of them ahead than it said: none is left out."""
    loader = DataLoader(TensorDataset(torch.arange(22)), 4)
    place = LoaderPlace(loader, ahead=1)
    batches = iter(loader)
    seen = [next(batches) for _ in range(4)]
    place.used = 2
    state = stored(place.state_dict())
    again = DataLoader(TensorDataset(torch.arange(22)), 4)
    LoaderPlace(again, ahead=1).load_state_dict(state)
    assert [str(batch) for batch in again] == [str(batch) for batch in (*seen[2:], *batches)]


def test_batches_ahead_that_only_the_data_set_could_give_again_are_refused() -> None:
    loader = StatefulDataLoader(DATA, 4, collate_fn=noisy)
    place = LoaderPlace(loader, ahead=1)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    place.used = 2
    with pytest.raises(Error, match=r"a prefetched batch \(one of 2\)"):
        place.state_dict()


def test_a_trainer_that_resumes_by_itself_leaves_out_what_it_has_used() -> None:
    torch.manual_seed(1)
    whole = [str(batch["n"]) for batch in DataLoader(DATA, 4, shuffle=True, collate_fn=noisy)]
    torch.manual_seed(1)
    loader = DataLoader(DATA, 4, shuffle=True, collate_fn=noisy)
    place = LoaderPlace(loader)
    place.begin_after(2)
    assert [str(batch["n"]) for batch in loader] == whole[2:]
    assert place.fetched == len(whole)
