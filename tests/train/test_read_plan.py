"""What is read of a snapshot is copied once: when it is loaded."""

import torch

from holdfast.checkpoint.contents import Ref
from holdfast.checkpoint.pieces import Box
from holdfast.train.fetch import LeafRead, _Asked, _Walk
from holdfast.train.read_plan import _Filler

DATA = torch.arange(6, dtype=torch.float32)


def test_bytes_that_are_all_of_a_tensor_are_taken_as_they_lie() -> None:
    wanted = torch.empty(2, 3)
    _Filler(wanted, wanted).put(DATA.view(torch.uint8))
    assert wanted.tolist() == DATA.view(2, 3).tolist() and wanted.data_ptr() == DATA.data_ptr()


def test_a_box_is_copied_to_where_it_belongs() -> None:
    wanted = torch.zeros(4, 3)
    rows, columns = wanted.narrow(0, 1, 2), wanted.narrow(1, 0, 1)
    filler = _Filler(rows, wanted)
    filler.put(DATA.view(torch.uint8))
    assert wanted[1:3].tolist() == DATA.view(2, 3).tolist() and not wanted[0].any()
    assert filler.room is not None and filler.room.data_ptr() == rows.data_ptr()
    assert _Filler(columns, wanted).room is None, "it does not lie in one piece"


class Link:
    """An exchange on which everything arrives at once."""

    def receive_from(self, _rank: int, data: torch.Tensor) -> "Link":
        data.copy_(DATA.view(torch.uint8))
        return self

    def wait(self) -> None:
        """It has."""


def test_what_comes_from_another_rank_is_received_where_it_belongs() -> None:
    wanted, put = torch.zeros(6), list[torch.Tensor]()
    ref: Ref | None = None
    box: Box = ((0,), (6,))
    length = DATA.nbytes
    asked = [(0, _Asked(1, 0, 0, number, box, length)) for number in range(2)]
    reads = [
        LeafRead(ref, box, put.append, _Filler(wanted, wanted).room),  # type: ignore[arg-type]
        LeafRead(ref, box, put.append),  # type: ignore[arg-type]
    ]
    _Walk(None, Link(), 0)._round(asked, iter(reads))  # type: ignore[arg-type]
    assert wanted.tolist() == DATA.tolist()
    assert [one.data_ptr() == wanted.data_ptr() for one in put] == [False], "the other needs room"
