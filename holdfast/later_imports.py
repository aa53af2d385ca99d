"""Doing something with a module once it is imported, whoever imports it and whenever.

A finder of modules stands in front of all others, finds as they do and has what runs the module
told to go on with what is wanted. A module that is loaded already is taken at once.
"""

import contextlib
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Wanted = dict[str, Callable[[ModuleType], None]]


class _Watch:
    """A finder of modules that finds none by itself: it does something after an import."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As others find it; only what runs it is told to go on with what is wanted."""
        act = self.wanted.pop(name, None)
        if act is None:
            return None
        if not self.wanted:
            self.stop()
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            loader.exec_module = _followed_by(act, loader)
        return spec

    def stop(self) -> None:
        """Look at no more imports."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]


def _followed_by(act: Callable[[ModuleType], None], loader: Any) -> Callable[[ModuleType], None]:
    plain = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        plain(module)
        with contextlib.suppress(Exception):
            act(module)

    return exec_module


def when_imported(wanted: Wanted) -> Callable[[], None]:
    """Do this with these modules: now with those that are loaded, else after their import. What is
    returned ends the watching."""
    loaded = {name: module for name in wanted if (module := sys.modules.get(name)) is not None}
    for name, module in loaded.items():
        wanted[name](module)
    watch = _Watch({name: act for name, act in wanted.items() if name not in loaded})
    if watch.wanted:
        sys.meta_path.insert(0, watch)
    return watch.stop
