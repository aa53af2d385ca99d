"""Trees go into an arena and come out of it bit for bit, or not at all."""

import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest

from holdfast.checkpoint.arena import Arena, StatePart
from holdfast.checkpoint.key import Key
from holdfast.errors import Error
from holdfast.pytrees import cells
from holdfast.pytrees.leaves import like, pieces_of, take_apart


class Moments(NamedTuple):
    mean: Any
    seen: int


def stamp(step: int, fingerprint: int = 7) -> cells.TreeStamp:
    return cells.TreeStamp(Key(1, step), 0, 1, fingerprint, 0)


def there_and_back(tree: Any) -> Any:
    arena = Arena(Arena.create())
    leaves, rebuild = take_apart(tree, "state")
    cells.write(arena, leaves, stamp(3), set())
    cell = arena.find(StatePart.PRIVATE, Key(1, 3))
    assert cell is not None and cell.intact()
    found = cells.read(cell)
    made = [like(leaf, found[n]) if pieces_of(leaf) else found[n] for n, leaf in leaves.items()]
    return rebuild(made)


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "int64", "uint8", "bool", "complex64", "uint16"]
)
def test_arrays_of_any_type_keep_their_bits(dtype: str) -> None:
    given = np.random.default_rng(0).integers(0, 255, (3, 4), np.uint8).astype(dtype)
    back = there_and_back({"a": [given, np.asfortranarray(given), given[:0]]})["a"]
    assert all(one.dtype == given.dtype for one in back)
    assert back[0].tobytes() == given.tobytes() and (back[1] == given).all()
    assert back[2].shape == (0, 4)


def test_trees_keep_their_kinds_and_plain_values() -> None:
    random = np.random.default_rng(1).bit_generator.state
    tree = {"m": Moments(np.float32(2.5), 4), "t": (1, None, "x", b"\x00y", 0.1), "r": random}
    back = there_and_back(tree)
    assert isinstance(back["m"], Moments) and back["m"] == tree["m"]
    assert back["t"] == tree["t"] and back["r"] == random


def test_mappings_of_other_kinds_come_back_as_what_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    lists: defaultdict[str, Any] = defaultdict(list, a=[np.ones(2)])
    back = there_and_back({"d": lists, "c": Counter(aab=2), "o": OrderedDict(z=1, a=2)})
    assert type(back["d"]) is defaultdict and back["d"]["new"] == []
    assert (back["d"]["a"][0] == 1).all() and back["d"] is not lists
    assert type(back["c"]) is Counter and back["c"] == {"aab": 2}
    assert type(back["o"]) is OrderedDict and list(back["o"].items()) == [("z", 1), ("a", 2)]


def test_an_object_is_refused_by_its_path() -> None:
    arena = Arena(Arena.create())
    with pytest.raises(Error, match=r"state\['x'\]"):
        cells.write(arena, take_apart({"x": object()}, "state")[0], stamp(1), set())


@pytest.mark.parametrize("dtype", [">f4", [("x", "f4"), ("y", "i8")], object])
def test_an_array_whose_values_would_not_come_back_is_refused(dtype: Any) -> None:
    with pytest.raises(Error, match=r"state\['x'\] is an array of") as caught:
        cells.fingerprint_of(take_apart({"x": np.zeros(2, dtype)}, "state")[0])
    assert caught.value.slug == "not-tracked"


def test_another_shape_is_another_state() -> None:
    one, other = ({"a": np.zeros(size)} for size in (2, 3))
    assert cells.fingerprint_of(one) != cells.fingerprint_of(other)
    assert cells.fingerprint_of(one) == cells.fingerprint_of({"a": np.ones(2)})


def test_the_newest_snapshot_is_not_overwritten() -> None:
    arena = Arena(Arena.create())
    for step in range(1, 6):
        cells.write(arena, {"a": np.full(4, step)}, stamp(step), {Key(1, step - 1)})
    cell = arena.find(StatePart.PRIVATE, Key(1, 4))
    assert cell is not None and (cells.read(cell)["a"][(0,)] == 4).all()


def test_the_library_for_trees_imports_no_torch() -> None:
    look = "import sys, holdfast.pytrees; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0
