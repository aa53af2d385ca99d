"""A node is named for its network only if that stands out over both its links."""

from collections.abc import Mapping

import msgspec
import pytest

from holdfast.diagnosis.slow_links import LEAST, LINES_MAX, MANY, judge
from holdfast.links import Link, LinkFigures

GOOD, SICK = 1e9, 1e8
Ways = Mapping[tuple[str, str], float]


def ring(count: int, ways: Ways | None = None, **common: object) -> list[Link]:
    """Each node with the next; `ways` are those from one to another that are not as all others."""
    names, found = [f"n{number}" for number in range(count)], []
    for place, node in enumerate(names):
        other, odd = names[(place + 1) % count], ways or {}
        there, back = odd.get((node, other), GOOD), odd.get((other, node), GOOD)
        figures = LinkFigures(there_bytes_per_s=there, back_bytes_per_s=back)
        found.append(Link(node=node, other=other, found=figures))
    return [msgspec.structs.replace(link, **common) for link in found]


def slow(
    number: int, count: int, rate: float = SICK, *, sends: bool = True
) -> dict[tuple[str, str], float]:
    """All that a node sends, or receives."""
    own, sides = f"n{number}", (f"n{(number - 1) % count}", f"n{(number + 1) % count}")
    return {(own, side) if sends else (side, own): rate for side in sides}


@pytest.mark.parametrize("count", [LEAST, 5, MANY, MANY + 1])
@pytest.mark.parametrize("sends", [True, False])
def test_whoever_sends_or_receives_little_over_both_links_is_named_alone(
    count: int, *, sends: bool
) -> None:
    finding = judge(ring(count, slow(1, count, sends=sends)))
    (line,) = finding.blamed.values()
    assert list(finding.blamed) == ["n1"]
    way = "sends only 100 MB/s to" if sends else "receives only 100 MB/s from"
    assert line.startswith(f"n1 {way} n0, 100 MB/s ") and "1.00 GB/s" in line
    assert line in finding.lines


def test_of_three_nobody_is_named_and_what_was_measured_is_told() -> None:
    finding = judge(ring(3, slow(1, 3)))
    assert not finding.blamed
    (line,) = finding.lines
    assert line == "3 links between machines: median 1.00 GB/s, slowest 100 MB/s between n0 and n1"


def test_a_link_that_is_slow_alone_has_two_ends_and_neither_is_named() -> None:
    finding = judge(ring(6, {("n2", "n3"): SICK, ("n3", "n2"): SICK}))
    assert not finding.blamed
    assert finding.lines[1:] == ("between n2 and n3 only 100 MB/s, back 100 MB/s",)


@pytest.mark.parametrize("share", [0.34, 0.5, 0.9])
def test_what_congestion_or_another_switch_may_do_names_nobody(share: float) -> None:
    finding = judge(ring(8, slow(3, 8, share * GOOD) | slow(3, 8, share * GOOD, sends=False)))
    assert not finding.blamed and len(finding.lines) == 1


def test_two_that_are_slow_side_by_side_are_both_named() -> None:
    assert [*judge(ring(8, slow(3, 8) | slow(4, 8))).blamed] == ["n3", "n4"]


def test_who_stands_between_two_that_are_slow_is_not_named_with_them() -> None:
    both = slow(2, 9) | slow(2, 9, sends=False) | slow(4, 9) | slow(4, 9, sends=False)
    assert [*judge(ring(9, both)).blamed] == ["n2", "n4"]


def test_where_most_are_slow_that_is_what_is_usual() -> None:
    everybody = {way: SICK for number in range(6) for way in slow(number, 6)}
    assert not judge(ring(6, everybody)).blamed
    assert not judge(ring(6, dict.fromkeys(everybody, 0.0))).blamed, "nothing passes anywhere"


def cut(links: list[Link], *places: int, trouble: str = "timed out") -> list[Link]:
    replace = msgspec.structs.replace
    gone = LinkFigures(trouble=trouble)
    return [replace(one, found=gone) if n in places else one for n, one in enumerate(links)]


def test_a_node_that_no_neighbour_reaches_is_named_and_a_pair_is_not() -> None:
    one = judge(cut(ring(5), 2))
    assert not one.blamed and "n2 cannot reach n3 (timed out)" in one.lines
    finding = judge(cut(ring(5), 1, 2))
    told = "n2 and its neighbours n1 and n3 cannot reach each other (timed out)"
    assert finding.blamed == {"n2": told}
    assert finding.lines.count(told) == 1 and not any("n1 cannot" in line for line in finding.lines)


def test_of_what_is_not_known_or_within_one_machine_nothing_follows() -> None:
    assert judge([]) == judge(ring(6, slow(1, 6), found=None))
    here = LinkFigures(there_bytes_per_s=9e9, back_bytes_per_s=9e9, same_machine=True)
    assert judge(ring(6, found=here)).lines == ()
    links = ring(6, slow(1, 6))
    unknown = [*links[:1], msgspec.structs.replace(links[1], found=None), *links[2:]]
    assert not judge(unknown).blamed, "one of its links may be good"


def test_those_that_share_machines_are_no_measure_for_the_one_that_does_not() -> None:
    """Memory is faster than any network."""
    here = LinkFigures(there_bytes_per_s=2e10, back_bytes_per_s=2e10, same_machine=True)
    links = [
        link if "n0" in (link.node, link.other) else msgspec.structs.replace(link, found=here)
        for link in ring(8)
    ]
    assert not judge(links).blamed


def test_of_many_troubles_a_few_are_told() -> None:
    finding = judge(cut(ring(60), *range(0, 60, 3)))
    assert len(finding.lines) == 1 + LINES_MAX + 1
    assert finding.lines[-1] == "14 more links like these"
