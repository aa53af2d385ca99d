"""What a process that is kept does while it waits for the next attempt."""

import pytest
import torch

from holdfast.checkpoint.arena import OWN, Key
from holdfast.checkpoint.arena_ahead import FD
from holdfast.train.attempt_parts import AttemptParts
from holdfast.train.placement import Placement
from tests.checkpoint.test_arena import ahead
from tests.checkpoint.test_arena import fd as fd

ALONE = Placement(0, 0, 1, 1, 1, 0, distributed=False)


def parts(fd: int, monkeypatch: pytest.MonkeyPatch) -> AttemptParts:
    ahead(fd, 1)
    monkeypatch.setenv(FD, str(fd))
    return AttemptParts(ALONE, torch.device("cpu"), None)


def verified(made: AttemptParts) -> list[bool]:
    """Of the parts of the newest snapshot: whether checksums are being taken."""
    assert made.arena is not None
    cells = [made.arena.find(part, Key(1, 1)) for part in OWN]
    return [cell is not None and cell._ahead is not None for cell in cells]


def test_what_it_will_put_back_is_verified_from_the_start_and_again_when_an_attempt_is_broken(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = parts(fd, monkeypatch)
    assert verified(made) == [True, True]
    assert made.arena is not None and all(
        cell.intact() for part in OWN for cell in made.arena.cells(part) if cell.header()
    )
    assert verified(made) == [False, False]
    made.leave_off()
    assert verified(made) == [True, True]
