"""The processes of `pytest -n`, forked from one that has imported Holdfast and PyTorch.

Each would import them for seconds, and so would the warm server that each has for its commands
(`warm`): now both come from one warm server of the process that hands out the tests. Meanwhile that
process has the assertions of all tests rewritten, which takes as long again in a new checkout and
which all would do at the same moment, in the same order.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite

from tests import warm
from tests.warm_tree import Forked

AS_EXECNET_DOES = ["-u", "-c"]


class Worker(warm.Script):
    """`python -u -c SCRIPT`, which gets a warm server of its own; what else is started is executed
    as ever."""

    def order(self, words: Any) -> dict[str, Any]:
        """The script."""
        return {**super().order(words[3:]), "tests": True}

    def _execute_child(self, words: Any, *how: Any) -> None:
        if list(words[:3]) == [sys.executable, *AS_EXECNET_DOES]:
            with contextlib.suppress(OSError, json.JSONDecodeError):  # what it imports is broken:
                super()._execute_child(words, *how)  # the tests that import it fail, and say why
                return
        super(Forked, self)._execute_child(words, *how)  # type: ignore[misc]


def prepare(config: pytest.Config) -> None:
    """Make the processes that are about to be started cheap."""
    warm.begin()
    if not sys.dont_write_bytecode:
        _rewrite(config)
    subprocess.Popen = Worker  # type: ignore[misc]


def _rewrite(config: pytest.Config) -> None:
    """Rewrite what has changed, on all cores; whatever fails here fails again, and visibly, where
    the tests are collected."""
    files = sorted(_files(config), key=lambda path: path.stat().st_size)
    shares = max(1, min(4, len(os.sched_getaffinity(0))))
    for pid in [_rewriting(config, files[share::shares]) for share in range(shares)]:
        os.waitpid(pid, 0)


def _files(config: pytest.Config) -> Iterator[Path]:
    """The tests that are asked for; what is no path is left to pytest."""
    for word in config.args:
        path = config.invocation_params.dir / word.partition("::")[0]
        yield from path.rglob("test_*.py") if path.is_dir() else [path] if path.is_file() else []


def _rewriting(config: pytest.Config, files: Iterable[Path]) -> int:
    """A process that does it."""
    pid = os.fork()
    if pid == 0:
        try:
            for path in files:
                _rewrite_one(config, path)
        finally:
            os._exit(0)
    return pid


def _rewrite_one(config: pytest.Config, path: Path) -> None:
    """As pytest does where it imports a test, which it does not here."""
    folder = rewrite.get_cache_dir(path)
    kept = folder / (path.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, kept) is None:
        source_hash, code = rewrite._rewrite_test(path, config)
        folder.mkdir(parents=True, exist_ok=True)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, kept)
