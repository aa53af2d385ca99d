"""Who sends nothing while the others send is told, and nobody where all are alike."""

import pytest

from holdfast.diagnosis.silence import NOBODY, quiet
from holdfast.evidence import LinkKind, Traffic


def sent(kilobytes_s: float, received: float = 0.0, kind: LinkKind = "link") -> Traffic:
    return Traffic(
        kind=kind, sent_bytes=int(kilobytes_s * 2000), received_bytes=int(received * 2000),
        seconds=2.0,
    )  # fmt: skip


def test_the_node_that_sends_nothing_is_named_with_what_it_receives() -> None:
    told = {"a": (sent(5000),), "b": (sent(3, received=2500),), "c": (sent(4000),)}
    assert quiet(told).line == (
        "network traffic while stacks were taken: b sent 3.0 kB/s and received 2.5 MB/s over "
        "interfaces; the median of all sent 4.0 MB/s"
    )


def test_each_is_told_what_it_did_itself() -> None:
    told = {"a": (sent(5000),), "b": (sent(3),), "c": (sent(4000),), "d": (sent(0, 70),)}
    told |= {"e": (sent(9000),)}
    assert quiet(told).nodes == {
        "b": "it sent 3.0 kB/s and received 0.0 kB/s over interfaces; the median of all sent "
        "4.0 MB/s",
        "d": "it sent 0.0 kB/s and received 70.0 kB/s over interfaces; the median of all sent "
        "4.0 MB/s",
    }


def test_ports_of_rdma_adapters_come_first_where_nodes_have_them() -> None:
    manages = sent(2000)
    told = {n: (sent(900_000, kind="rdma"), manages) for n in "acd"}
    told["b"] = (sent(0, kind="rdma"), manages)
    assert "b sent 0.0 kB/s and received 0.0 kB/s over RDMA ports; " in quiet(told).line
    assert quiet({n: rows[1:] for n, rows in told.items()}) == NOBODY


def test_several_are_named_together_and_of_many_only_some() -> None:
    told = {f"n{n}": (sent(0 if n < 6 else 9000),) for n in range(20)}
    assert "taken: n0, n1, n2, n3 and 2 more sent 0.0 kB/s" in quiet(told).line


NOTHING = {
    "all are silent, as in most hangs": {n: (sent(3),) for n in "abcd"},
    "all send": {n: (sent(9000),) for n in "abcd"},
    "most are silent": {"a": (sent(9000),), "b": (sent(0),), "c": (sent(0),)},
    "of two nobody is unusual": {"a": (sent(9000),), "b": (sent(0),)},
    "one sends less": {"a": (sent(9000),), "b": (sent(90),), "c": (sent(9000),)},
    "nodes tell nothing": {"a": (), "b": (), "c": ()},
    "of different kinds": {
        "a": (sent(0),), "b": (sent(9000, kind="rdma"),), "c": (sent(9000, kind="rdma"),)
    },
}  # fmt: skip


@pytest.mark.parametrize("told", NOTHING.values(), ids=NOTHING.keys())
def test_nobody_is_named(told: dict[str, tuple[Traffic, ...]]) -> None:
    assert quiet(told) == NOBODY
