"""Loaders of PyTorch that know where they stand, for scripts with a loop of their own.

    from holdfast.integrations.resumable import resumable

    state = run.track(model=model, optimizer=optimizer, loader=resumable(DataLoader(...)))

Also around a data set of Hugging Face, indexed or streamed, around WebDataset (`reread=True`) and
MosaicML's StreamingDataLoader. torchdata's StatefulDataLoader can be tracked as it is.
"""

from collections.abc import Iterator
from typing import Any

import torch

from holdfast.integrations.place import LoaderPlace
from holdfast.train import random_state

_CPU = torch.device("cpu")


class ResumableLoader:
    """A loader, and its place. See `resumable`."""

    def __init__(self, loader: Any, *, reread: bool) -> None:
        self._loader = loader
        self.reread = reread
        """Whether all that was used is read again: a process that has read it once is not asked,
        because a data set with random numbers of its own would give something else."""
        self._place = LoaderPlace(loader, reread=reread)
        self._random: dict[str, Any] = {}
        self._place.after_resume = self._put_random_back

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            self._place.used += 1
            yield batch

    def __len__(self) -> int:
        return len(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        return {"place": self._place.state_dict(), "random": random_state.capture(_CPU)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there with the next `iter()`."""
        self._random = state["random"]
        self._place.load_state_dict(state["place"])

    def _put_random_back(self) -> None:
        """The order of an epoch was drawn again with the numbers of its beginning."""
        random_state.restore(self._random, _CPU)


def resumable(loader: Any, *, reread: bool = False) -> ResumableLoader:
    """`loader` with `state_dict()` and `load_state_dict()`.

    An epoch goes on at its next batch: by index, by the position that the loader or its data set
    knows, or, with `reread`, by reading and leaving out what was used.

    Raises `Error` (loader-cannot-resume) for data that cannot be resumed in any of these ways.
    """
    return ResumableLoader(loader, reread=reread)
