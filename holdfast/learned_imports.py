"""What a script imports on the way to its first step, learned once and done ahead by the next one.

A worker notes every module of an installed library that is imported before its first step, and
under which surroundings: environment, `sys.path`, working folder. It leaves the list in a file of
the node. Whoever waits for a rank later, where its script starts or at `join()`, imports what is
in the list for the surroundings that it has itself: what the script would find there is the same,
only sooner. So nothing has to be known of a library, and a script that changes a variable above an
import finds a library that has not looked at it yet.

Modules of the user's own are never imported ahead: they may do anything, and may be edited.
"""

import contextlib
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from holdfast import rank
from holdfast.files import read_plain

FILE = "HOLDFAST_IMPORTS"
FOLLOWED_BY = {"torch._inductor.compile_fx": "holdfast.train.compiler_ahead"}
"""What finds out ahead what a library otherwise finds out when it is first used."""
LOOK_S = 0.5  # between two looks for a list that is not there yet
MOST = 20_000
_APART = ("HOLDFAST_", "TORCHELASTIC_", "GLOO_SOCKET_IFNAME", "ACCELERATE_")  # set by us, by it
_seen: "_Seen | None" = None


class _Seen:
    """A finder of modules that finds none, and notes which are looked for and under what."""

    def __init__(self, is_library: Callable[[str], bool]) -> None:
        self._is_library = is_library
        self._before = {*sys.modules}
        self._names: dict[str, str] = {}
        self._seen: tuple[Any, ...] = ()
        self._under = ""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        """None."""
        if len(self._names) < MOST:
            self._names.setdefault(name, self._now())

    def _now(self) -> str:
        """The surroundings, worked out again only when anything of them has changed."""
        variables = getattr(os.environ, "_data", os.environ)  # a script may replace it by a dict
        seen = dict(variables), [*sys.path], _working_folder()
        if seen != self._seen:
            self._seen, self._under = seen, surroundings()
        return self._under

    def learned(self) -> dict[str, list[str]]:
        """Modules of libraries that are there now, in their order, by surroundings."""
        found: dict[str, list[str]] = {}
        for name, under in [*self._names.items()]:
            module = sys.modules.get(name)
            if module is not None and name not in self._before and self._is_library(_place(module)):
                found.setdefault(under, []).append(name)
        return found


def _place(module: ModuleType) -> str:
    spec = getattr(module, "__spec__", None)
    places = [*(getattr(spec, "submodule_search_locations", None) or ())]
    return str(getattr(spec, "origin", None) or (places or [""])[0])


def surroundings() -> str:
    """What an import may find different: the environment without what tells workers apart, where
    modules are looked for, and the working folder."""
    apart = rank.VARIABLES
    told = {
        name: value
        for name, value in dict(os.environ).items()
        if name not in apart and not name.startswith(_APART)
    }
    places = [place for place in sys.path if isinstance(place, str)]  # as Python reads it
    text = json.dumps([sorted(told.items()), places, _working_folder()])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _working_folder() -> str:
    """Empty if it has been deleted, where imports still work."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


# ── in a worker that trains ───────────────────────────────────────────────────────────────────


def watch(is_library: Callable[[str], bool]) -> None:
    """Note imports from now on, up to the first step."""
    global _seen
    if FILE in os.environ:
        _seen = _Seen(is_library)
        sys.meta_path.insert(0, _seen)


def step_ended() -> None:
    """Leave the list, after the first step of this process."""
    global _seen
    seen, _seen = _seen, None
    if seen is None:
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not seen]
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with contextlib.suppress(OSError):  # of a disk that is full others tell
            _leave(seen.learned(), Path(os.environ[FILE]))


def _leave(learned: dict[str, list[str]], path: Path) -> None:
    """Add it to what is known: what was imported ahead this time was not seen again."""
    known = _known(path)
    found = {
        under: [*dict.fromkeys([*known.get(under, ()), *learned.get(under, ())])]
        for under in [*known, *learned]
    }
    if found != known:
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(found))
        fresh.replace(path)


# ── in a worker that waits ────────────────────────────────────────────────────────────────────


def load_while_waiting(
    control: int,
    imported: Callable[[], object] = lambda: None,
    between_looks: Callable[[], object] = lambda: None,
) -> None:
    """Import what was learned for these surroundings, once there is a list, until the rank comes:
    a list may name what the script has ceased to want. What fails is left to the script, which will
    show it. `imported` is called after each import, `between_looks` as long as there is no list."""
    path = Path(os.environ.get(FILE, "/"))
    while not path.is_file():
        between_looks()
        if FILE not in os.environ or rank.has_come(control, LOOK_S):
            return
    for name in _with_what_follows(_known(path).get(surroundings(), ())):
        if name not in sys.modules:
            if rank.has_come(control, 0):
                return
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(name)
            imported()


def _with_what_follows(names: Iterable[str]) -> Iterator[str]:
    yield from names
    for name, follows in FOLLOWED_BY.items():
        if name in sys.modules:
            yield follows


def _known(path: Path) -> dict[str, list[str]]:
    """What the file says; nothing where there is none, or something else."""
    try:
        return msgspec.json.decode(read_plain(path), type=dict[str, list[str]])
    except (OSError, ValueError):  # msgspec's are ValueErrors
        return {}
