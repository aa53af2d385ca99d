"""Loading ahead what every worker would import, and finding out what must not be.

Modules are imported one after the other and watched: one that leaves a thread behind or takes a GPU
cannot live in a process that forks, and one that looks for the rank would remember that there is
none. The packages that looked are forgotten again, so that a worker imports them itself, while all
that they had imported stays; only where that is not possible they are done without.

Of the script's own imports, which are read from its source, only installed libraries count. The
user's own modules may do anything when they are imported, and may be edited between two attempts.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from holdfast import rank
from holdfast.agent import fork_protocol, late_environment, late_rank, script_source
from holdfast.agent.notes import note
from holdfast.agent.script_source import Import

# jemalloc, which pyarrow brings along, ends its own thread before a fork and starts it again.
FORK_SAFE_THREADS = frozenset(("jemalloc_bg_thd",))
_INSTALLED = ("site-packages", "dist-packages")
_LATER = {  # what it imports on the way to its first step
    "lightning": ("adlfs", "gcsfs", "s3fs"),
    "accelerate": ("datasets", "torchdata.stateful_dataloader"),
}


class _Watched(os._Environ[str]):
    """Notes who looks for the rank, and what was looked for that is not set."""

    def __getitem__(self, name: str) -> str:
        if name in rank.VARIABLES and not late_rank.is_noted(reader := rank.reader()):
            _looked_for_rank.add(str(reader.f_globals.get("__name__")).partition(".")[0])
        try:
            return super().__getitem__(name)
        except KeyError:
            late_environment.read_ahead.add(name)
            raise


_looked_for_rank: set[str] = set()  # packages
_left_to_workers: set[str] = set()  # likewise


@contextmanager
def _watching() -> Iterator[None]:
    plain = type(os.environ)
    os.environ.__class__ = _Watched
    try:
        yield
    finally:
        os.environ.__class__ = plain


def load(
    program: fork_protocol.Program,
    preload: fork_protocol.Preload,
    on_import: Callable[[str], object],
) -> dict[str, str]:
    """Import everything; returns what is unfit, and why. Then this process must not fork.

    `on_import` is called before each import that can be done without.
    """
    sys.argv = [program.script or program.module or "", *program.args]
    unfit = {}
    with _watching():
        for name in preload.framework:
            _import_or_note(Import(name))
        for wanted in _wanted(program, preload):
            left = wanted.root in _left_to_workers or wanted.module in preload.without
            if left:
                continue
            on_import(wanted.module)
            if why := _load(wanted):
                unfit[wanted.module] = why
    keep_operators()
    return unfit


def keep_operators() -> None:
    """PyTorch has each of its own operators deregistered when a process ends: 40 ms in which a
    worker that is to be restarted cannot be, and which nobody needs. What a script registers
    itself stays as it is."""
    remove = getattr(sys.modules.get("torch.library"), "_del_library", None)
    for finalizer, told in getattr(weakref.finalize, "_registry", {}).items():
        if told.func is remove:
            finalizer.atexit = False


def _wanted(program: fork_protocol.Program, preload: fork_protocol.Preload) -> Iterator[Import]:
    """What is named, by the job and by its script, and once that is loaded, what follows."""
    yield from [*map(Import, preload.modules), *_of_script(program, preload)]
    if preload.imports:
        later = [name for by, names in _LATER.items() if by in sys.modules for name in names]
        yield from (Import(name) for name in later if _is_installed(name))


def _of_script(program: fork_protocol.Program, preload: fork_protocol.Preload) -> Iterator[Import]:
    """Imports of the script, up to the first of something that is not an installed library."""
    tree = script_source.tree_of(program) if preload.imports else None
    own = (program.module or "").partition(".")[0]
    for found in script_source.first_imports(tree) if tree is not None else ():
        known = found.root in sys.modules
        if not known and (found.root == own or not _is_installed(found.root)):
            return
        yield found


def _is_installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    return all(is_library(place) for place in places)


def is_library(place: str) -> bool:
    """Whether this file or folder is of Python itself, or of something that is installed."""
    if place in ("built-in", "frozen"):
        return True
    paths = sysconfig.get_paths()
    path = Path(place)
    in_python = any(path.is_relative_to(paths[name]) for name in ("stdlib", "platstdlib"))
    return in_python or any(part in _INSTALLED for part in path.parts)


def _load(wanted: Import) -> str | None:
    """Import one; why it is unfit, if it is."""
    before, threads, had_gpu = set(sys.modules), _threads(), _has_gpu()
    _looked_for_rank.clear()
    _import_or_note(wanted)
    late_rank.hold_places()
    if _threads().items() - threads.items():
        _in_a_child(lambda: None)  # OpenBLAS ends its threads before a fork, and starts them later
    if left := _threads().items() - threads.items():
        return f"it starts threads that do not exit ({', '.join(sorted(name for _, name in left))})"
    if _has_gpu() and not had_gpu:
        return "it initializes a GPU at import"
    if _looked_for_rank and not _forget(before):
        return f"{', '.join(sorted(_looked_for_rank))} reads the rank at import"
    return None


def _import_or_note(wanted: Import) -> None:
    """What fails is noted: the script will show why, if it comes to that."""
    try:
        _import(wanted)
    except (Exception, SystemExit):
        note(f"forkserver: preload of {wanted.module} failed\n{traceback.format_exc(limit=-3)}")


def _import(wanted: Import) -> None:
    """As the statement would: packages that load lazily load what is taken from them."""
    module = importlib.import_module(wanted.module)
    for name in wanted.names:
        if not hasattr(module, name):
            importlib.import_module(f"{wanted.module}.{name}")


def _threads() -> dict[str, str]:
    """Names of threads that a fork would lose, by id."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            name = Path(f"/proc/self/task/{thread}/comm").read_text().strip()
            if thread != str(os.getpid()) and name not in FORK_SAFE_THREADS:
                found[thread] = name
    return found


def _has_gpu() -> bool:
    """Whether this process has a GPU, or a child of it could have none: for that it is enough to
    have counted them, which loads the driver."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda._is_compiled():
        return False

    def require_sound_fork() -> None:
        if cuda._is_in_bad_fork():
            raise RuntimeError

    return bool(cuda.is_initialized()) or not _in_a_child(require_sound_fork)


def _forget(before: set[str]) -> bool:
    """Forget the packages that looked for the rank, and those that hold something of them.

    Whether they can be imported anew; they are, in a child.
    """
    new = {name: module for name, module in sys.modules.items() if name not in before}
    roots = {name.partition(".")[0] for name in new}
    if not _looked_for_rank <= roots:  # loaded before
        return False
    gone = set(_looked_for_rank)
    while more := {name.partition(".")[0] for name in new if _holds(new[name], gone)} - gone:
        gone |= more
    packages = sorted(gone)
    for name in [name for name in sys.modules if name.partition(".")[0] in gone]:
        del sys.modules[name]
    _left_to_workers.update(gone)
    note(f"forkserver: left to workers, because they read the rank: import {', '.join(packages)}")
    return _can_be_imported(packages)


def _holds(module: ModuleType, packages: set[str]) -> bool:
    """Whether a module has something of these packages among its names."""
    values = list(vars(module).values()) if isinstance(module, ModuleType) else []
    owners = (getattr(value, "__module__", None) or _name_of(value) for value in values)
    return any(str(owner).partition(".")[0] in packages for owner in owners)


def _name_of(value: object) -> str:
    return value.__name__ if isinstance(value, ModuleType) else ""


def _can_be_imported(packages: list[str]) -> bool:
    """Whether it works a second time, tried in a child."""
    return _in_a_child(lambda: [importlib.import_module(name) for name in packages])


def _in_a_child(act: Callable[[], object]) -> bool:
    """Do this in a fork that ends with it; whether it went well."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0
