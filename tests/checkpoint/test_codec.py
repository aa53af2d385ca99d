"""Whatever goes into a snapshot comes out the same, and nothing else goes in."""

from collections import Counter, OrderedDict, deque
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.codec import flatten, unflatten
from holdfast.errors import Error

patient = settings(deadline=None)  # other tests may share the machine


class Leaf:
    """Stands for a tensor."""


LEAVES = [Leaf() for _ in range(4)]
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 140), 1 << 140)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
keys = st.recursive(plain, lambda k: st.tuples(k, k) | st.frozensets(k), max_leaves=3)
trees = st.recursive(
    plain | st.sampled_from(LEAVES),
    lambda t: (
        st.lists(t)
        | st.lists(t).map(tuple)
        | st.dictionaries(keys, t)
        | st.dictionaries(keys, t).map(OrderedDict)
        | st.frozensets(keys)
        | st.sets(keys)
        | st.lists(t).map(lambda items: deque(items, maxlen=9))
        | st.dictionaries(st.text(), st.integers(0, 5)).map(Counter)
    ),
    max_leaves=20,
)


def is_leaf(value: object) -> bool:
    return isinstance(value, Leaf)


def same(a: Any, b: Any) -> bool:
    """Equal, of the same type throughout, in the same order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b if isinstance(a, Leaf) else bool(a == b)


@patient
@given(trees)
def test_what_goes_in_comes_out(tree: Any) -> None:
    flat, leaves, names = flatten(tree, is_leaf, "")
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(flat))
    assert same(unflatten(sent, leaves), tree)
    assert len(names) == len(leaves)


def test_every_leaf_is_named_by_its_path() -> None:
    tree = {"net": {"a.weight": Leaf(), 3: [Leaf(), {"x": Leaf()}]}}
    names = flatten(tree, is_leaf, "").names
    assert names == ["net.a.weight", "net[3][0]", "net[3][1].x"]


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"lr_lambdas": [lambda x: x]}, r"scheduler\.lr_lambdas\[0\] is a function"),
        ({"a": {3: object()}}, r"scheduler\.a\[3\] is a object"),
        ((1, {2, len}), r"scheduler\[1\]\[\d\] is a builtin_function_or_method"),
        ({object(): 1}, r"key scheduler\[.*\] is a object"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_path(tree: Any, path: str) -> None:
    with pytest.raises(Error, match=path) as caught:
        flatten(tree, is_leaf, "scheduler")
    assert caught.value.slug == "not-tracked"


def test_subclasses_are_refused_because_they_would_come_back_as_something_else() -> None:
    class Special(dict[str, int]):
        pass

    with pytest.raises(Error):
        flatten({"a": Special()}, is_leaf, "")
