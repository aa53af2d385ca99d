"""Ending after one step, with digests of the state then: what `holdfast replay` has workers do.

Everything that `run.track()` was given is digested, leaf by leaf and bit by bit. The process ends
there: nothing that a script does after its loop belongs to the step.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash

from holdfast.checkpoint.tensors import local_part
from holdfast.events import Milestone
from holdfast.page import WorkerPhase
from holdfast.train.exchange import Exchange
from holdfast.train.placement import Placement
from holdfast.train.progress import ProgressReporter
from holdfast.train.tracked import Tracked

VARIABLE = "HOLDFAST_REPLAY"  # STEP:FOLDER


def after_each_step(
    tracked: Tracked, placement: Placement, progress: ProgressReporter, exchange: Exchange | None
) -> Callable[[int], None]:
    """What is called with the number of each complete step."""
    wanted, _, folder = os.environ.get(VARIABLE, "").partition(":")

    def stepped(step: int) -> None:
        if not wanted or step < int(wanted):
            return
        leave(Path(folder), digests(tracked), placement)
        if exchange is not None:
            exchange.gather_bytes(b"")  # nobody needs anything of another one any more
        progress.publish(through=step)
        progress.phase(WorkerPhase.FINISHED)
        progress.reach(Milestone.FINISHED)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    return stepped


def leave(folder: Path, found: Mapping[str, str], placement: Placement) -> None:
    """Write what this rank has, whole or not at all."""
    name = f"rank-{placement.rank}.json"
    said = {"world_size": placement.world_size, "digests": found}
    (folder / f"{name}.tmp").write_bytes(msgspec.json.encode(said))
    (folder / f"{name}.tmp").rename(folder / name)


def digests(tracked: Tracked) -> dict[str, str]:
    """Of every leaf of the tracked state, by its path."""
    shared, private = tracked.capture()
    return {path: _digest(leaf) for path, leaf in [*_leaves(shared, ""), *_leaves(private, "")]}


def _leaves(tree: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(tree, Mapping | list | tuple):
        items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        for key, value in items:
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def _digest(leaf: Any) -> str:
    here = local_part(leaf)
    if isinstance(here, torch.Tensor):
        plain = here.detach().cpu().contiguous().reshape(-1)
        data = plain.view(torch.uint8).numpy().tobytes()
    elif isinstance(here, np.ndarray | np.generic):
        data = np.ascontiguousarray(here).tobytes()
    else:
        data = repr(here).encode()
    return str(xxhash.xxh3_64_hexdigest(data))
