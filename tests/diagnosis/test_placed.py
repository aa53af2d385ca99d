"""What ranks that stand out have in common is said by dimensions."""

from holdfast.diagnosis.placed import in_layout
from holdfast.dimensions import Dimensions

LARGE = Dimensions(pp=2, dp_shard=4, tp=8)


def test_one_rank_is_told_with_its_place() -> None:
    assert in_layout([37], LARGE) == "layout: rank 37 is at pp 1, dp_shard 0, tp 5"


def test_of_several_what_they_share_is_told_and_whether_they_are_all_of_it() -> None:
    assert in_layout([*range(8, 16)], LARGE) == (
        "layout: ranks 8-15 are all ranks at pp 0, dp_shard 1"
    )
    assert in_layout([8, 9], LARGE) == "layout: ranks 8-9 are ranks at pp 0, dp_shard 1"
    assert in_layout([*range(32, 64)], LARGE) == "layout: ranks 32-63 are all ranks at pp 1"


def test_what_says_nothing_is_not_told() -> None:
    assert in_layout([], LARGE) == ""
    assert in_layout([*range(64)], LARGE) == ""
    assert in_layout([0, 63], LARGE) == "", "they share nothing"
    assert in_layout([5], Dimensions(dp_replicate=64)) == "", "its number says it"
