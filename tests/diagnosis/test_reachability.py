"""Who is to blame where connections between nodes fail: a node, a link, or nobody."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnosis.reachability import LINKS_MAX, ReachFinding, judge
from holdfast.evidence import PeerReach

LATE = "timed out after 2 s"
Pair = tuple[str, str]


def names(count: int) -> list[str]:
    return [f"node-{n}" for n in range(count)]


def asked(nodes: list[str], *bad: Pair) -> ReachFinding | None:
    """Everybody asks everybody; these could not be reached, from the first to the second."""
    return judge(
        {
            a: [PeerReach(node=b, trouble=LATE if (a, b) in bad else "") for b in nodes if b != a]
            for a in nodes
        }
    )


def both(a: str, b: str) -> tuple[Pair, Pair]:
    return (a, b), (b, a)


def test_where_everybody_reaches_everybody_there_is_nothing_to_tell() -> None:
    assert asked(names(4)) is None
    assert judge({}) is None
    assert judge({"a": []}) is None


def test_one_link_is_told_with_who_can_and_nobody_is_blamed() -> None:
    found = asked(names(4), ("node-3", "node-1"))
    assert found == ReachFinding(
        ("node-3 cannot reach node-1 (timed out after 2 s); 2 others can",), {}
    )


def test_two_nodes_that_cannot_talk_blame_neither() -> None:
    found = asked(names(2), *both("node-0", "node-1"))
    assert found is not None and not found.blamed
    assert found.lines[0] == "node-0 cannot reach node-1 (timed out after 2 s)"


def test_a_node_that_others_cannot_reach_is_named_though_it_can_reach_them() -> None:
    found = asked(names(3), ("node-0", "node-2"), ("node-1", "node-2"))
    line = "node-0, node-1 cannot reach node-2 (timed out after 2 s)"
    assert found == ReachFinding((line,), {"node-2": line})


def test_a_node_that_cannot_reach_others_is_named_though_they_can_reach_it() -> None:
    found = asked(names(3), ("node-2", "node-0"), ("node-2", "node-1"))
    assert found is not None
    assert found.lines == ("node-2 cannot reach node-0, node-1 (timed out after 2 s)",)
    assert set(found.blamed) == {"node-2"}


def test_a_network_that_came_apart_blames_nobody() -> None:
    left, right = names(5)[:3], names(5)[3:]
    found = asked(names(5), *(p for a in left for b in right for p in both(a, b)))
    assert found is not None and not found.blamed
    assert "node-0, node-1, node-2; node-3, node-4" in found.lines[0]


def test_where_nobody_reaches_anybody_nobody_is_blamed() -> None:
    found = asked(names(4), *itertools.permutations(names(4), 2))
    assert found is not None and not found.blamed and len(found.lines) == 1


@given(st.data())
def test_one_or_two_nodes_that_are_cut_off_are_found_among_others(data: st.DataObject) -> None:
    count = data.draw(st.integers(4, 9))
    nodes = names(count)
    cut = data.draw(st.sets(st.sampled_from(nodes), min_size=1, max_size=2 if count > 4 else 1))
    bad = [p for a in cut for b in nodes if a != b for p in both(a, b)]
    found = asked(nodes, *bad)
    assert found is not None and set(found.blamed) == cut


@given(st.data())
def test_single_links_never_blame_a_node(data: st.DataObject) -> None:
    """No two of them at the same node."""
    nodes = data.draw(st.permutations(names(data.draw(st.integers(3, 9)))))
    count = data.draw(st.integers(1, len(nodes) // 2))
    links = [(nodes[2 * n], nodes[2 * n + 1]) for n in range(count)]
    found = asked(nodes, *(p for a, b in links for p in both(a, b)))
    assert found is not None and not found.blamed
    assert len(found.lines) == min(LINKS_MAX, 2 * count)


@given(
    st.dictionaries(
        st.sampled_from(names(6)),
        st.lists(
            st.builds(
                PeerReach,
                node=st.sampled_from(names(7)),
                trouble=st.sampled_from(["", "", LATE, "no route to host"]),
            )
        ),
    )
)
def test_whatever_is_told_those_who_are_blamed_have_several_bad_links(
    looks: dict[str, list[PeerReach]],
) -> None:
    found = judge(looks)
    if found is None:
        assert not any(one.trouble for told in looks.values() for one in told)
        return
    assert found.lines
    for node in found.blamed:
        others = {
            a for a, told in looks.items() for one in told if one.trouble and one.node == node
        }
        others |= {one.node for one in looks.get(node, ()) if one.trouble}
        assert len(others) >= 2
