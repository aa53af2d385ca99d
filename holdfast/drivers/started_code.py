"""The code that a job was started with, on this machine, where its user may edit it meanwhile.

A version without code of its own runs what lies in the folder that the job was started from. Who
edits that folder and updates the job with it would find the new code there, too, after a rollback.
So what the folder held is kept in the folder of the job, as far as it is small, and an update that
finds another state there makes the kept one that of the first version.
"""

import contextlib
from filecmp import cmp
from pathlib import Path

from holdfast import bundles
from holdfast.drivers.records import write_private
from holdfast.errors import Error
from holdfast.spec import Job
from holdfast.spec.load import code_folder

SOURCES = frozenset((".py", ".sh", ".toml", ".yaml", ".yml"))


def begin(folder: Path) -> None:
    """Another life of the job at `folder` begins, with its first version as it lies there now.
    Raises `OSError`."""
    for name in (bundles.STARTED, bundles.FIRST):
        (folder / bundles.FOLDER / name).unlink(missing_ok=True)


def keep(job: Job, folder: Path) -> None:
    """Keep what lies there now; not what is large or cannot be read."""
    with contextlib.suppress(Error, OSError):
        data = bundles.bundle_if_small(code_folder(job))
        if data:
            name = bundles.keep(data, folder / bundles.FOLDER)
            write_private(folder / bundles.FOLDER / bundles.STARTED, name)


def settle(job: Job, folder: Path) -> bool:
    """Whether the first version can come back: what it was lies there, or is kept and stands for it
    from now on. Raises `OSError`."""
    code = folder / bundles.FOLDER
    if bundles.named_in(code / bundles.FIRST):
        return True
    started = bundles.named_in(code / bundles.STARTED)
    if not started:
        return False
    try:
        kept = bundles.unpacked(code, started)
    except ValueError:  # it is not what was kept
        return False
    if not _lies_in(code_folder(job), kept):
        write_private(code / bundles.FIRST, started)
    return True


def _lies_in(folder: Path, kept: Path) -> bool:
    """Whether the sources that were kept are there, as they were; what else is in the folder is
    often the output of the job itself."""
    files = (path for path in kept.rglob("*") if path.suffix in SOURCES and path.is_file())
    try:
        return all(cmp(path, folder / path.relative_to(kept), shallow=False) for path in files)
    except OSError:
        return False
