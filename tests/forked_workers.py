"""The processes of `pytest -n`, forked from one that has imported Holdfast and PyTorch.

Each would import them for seconds, and so would the warm server that each has for its commands
(`warm`): now both come from one warm server of the process that hands out the tests. Meanwhile that
process has the assertions of all tests rewritten, which takes as long again in a new checkout and
which all would do at the same moment, in the same order. The server then imports the tests, too,
which is half of what it takes to collect them; its commands know nothing of that (`warm_server`).
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from _pytest.config import _prepareconfig
from _pytest.pathlib import module_name_from_path
from _pytest.python import importtestmodule

from tests import warm
from tests.warm_tree import Forked

AS_EXECNET_DOES = ["-u", "-c"]
TRAINERS = (  # they start threads, or look at what else is imported: tests that need them do it
    "accelerate", "jax", "lightning", "orbax", "ray", "tensorflow", "transformers",
)  # fmt: skip
FIRST_USED = {  # by which tests
    "tests.checkpoint.conftest": ("moto.server", "s3fs"),
    "tests.drivers.kubernetes.schemas": ("kubeflow_trainer_api.models",),
}


class Worker(warm.Script):
    """`python -u -c SCRIPT`, which gets a warm server of its own; what else is started is executed
    as ever."""

    imports: tuple[Sequence[str], Sequence[str]] = (), ()  # how pytest was called, and the tests

    def order(self, words: Any) -> dict[str, Any]:
        """The script."""
        return {**super().order(words[3:]), "tests": True, "imports": self.imports}

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
    words = ["-c", str(config.inipath)] if config.inipath else []
    Worker.imports = [*words, f"--rootdir={config.rootpath}"], [*map(str, _files(config))]
    subprocess.Popen = Worker  # type: ignore[misc]


class _LeftError(BaseException):
    """Nobody who can do without a module takes this for its absence."""


class _Left:
    """Imports none of TRAINERS."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Leave it to others."""
        if name in TRAINERS:
            raise _LeftError(name)


def import_tests(words: Sequence[str], files: Sequence[str]) -> list[str]:
    """Import these as pytest would that is called so, but for those of which that cannot be done
    here: they are imported, and fail, where they are collected. The names of all modules of this
    folder that are new."""
    before, path = set(sys.modules), [*sys.path]
    sys.meta_path.insert(0, _Left())
    config = _prepareconfig([*words, "--capture=no", *files])
    with warnings.catch_warnings(action="ignore"):
        for file in map(Path, files):
            try:
                importtestmodule(file, config)
            except (Exception, _LeftError, pytest.skip.Exception):
                sys.modules.pop(module_name_from_path(file, config.rootpath), None)
    own = [name for name in {*sys.modules} - before if _is_below(config.rootpath, name)]
    config._ensure_unconfigure()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Left)]
    sys.path[:] = path
    return own


def use_first() -> None:
    """What takes seconds when it is used for the first time: Hypothesis reads all modules for their
    constants, and asks for each character what it is."""
    from hypothesis import given, settings, strategies  # pytest has begun to rewrite it

    @settings(database=None, max_examples=200)
    @given(strategies.text())
    def draw(_: str) -> None:
        """All it can."""

    with warnings.catch_warnings(action="ignore"):  # that it is early
        draw()
    for test, names in FIRST_USED.items():
        for name in names if test in sys.modules else ():
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _is_below(folder: Path, name: str) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    return file is not None and Path(file).is_relative_to(folder) and "site-packages" not in file


def _rewrite(config: pytest.Config) -> None:
    """Rewrite what has changed, on all cores; whatever fails here fails again, and visibly, where
    the tests are collected."""
    files = sorted(_files(config), key=lambda path: path.stat().st_size)
    shares = max(1, min(4, len(os.sched_getaffinity(0))))
    for pid in [_rewriting(config, files[share::shares]) for share in range(shares)]:
        os.waitpid(pid, 0)


def require_paths(config: pytest.Config) -> None:
    """What pytest refuses, its processes of `-n` run nothing for, without a word. Raises
    `UsageError`."""
    for word in config.args if not config.option.pyargs else ():
        if not _path_of(config, word).exists():
            raise pytest.UsageError(f"file or directory not found: {word}")


def say_if_nothing_ran(config: pytest.Config, exitstatus: int) -> None:
    """The processes of `-n` also say nothing of a test that does not exist in a file that does, and
    two `-q`, of which ours is one, leave out that nothing was collected."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and config.option.numprocesses:
        words = " ".join(config.args)
        print(f"ERROR: no test was run: nothing was collected from {words}", file=sys.stderr)


def _path_of(config: pytest.Config, word: str) -> Path:
    return config.invocation_params.dir / word.partition("::")[0]


def _files(config: pytest.Config) -> Iterator[Path]:
    """The tests that are asked for; what is no path is left to pytest."""
    for word in config.args:
        path = _path_of(config, word)
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
