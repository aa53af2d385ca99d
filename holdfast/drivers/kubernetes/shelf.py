"""Where the journal of a controller lies: on the pod's own disk, or on a claim that outlives it.

`JOB/RUN/TERM-POD/journal.jsonl`. A run is one submission of the job: another job of the same name
finds its place empty, and what the former one has left stays as it is. Below it each controller has
a folder of its own, which it fills with what the one before has written: where that one still runs,
on a machine that nobody can reach, both may write to one volume and never to one file.
"""

import shutil
from pathlib import Path

from holdfast import __version__, journal
from holdfast.drivers.kubernetes.talk import say
from holdfast.drivers.records import write_private
from holdfast.errors import Error
from holdfast.files import sync_folder, write_durable
from holdfast.spec import Job

FILE = "journal.jsonl"


def place(shelf: Path, job: str, run: str, term: int, pod: str) -> Path:
    """The folder of one controller."""
    return shelf / job / run / f"{term:06d}-{pod}"


def left_behind(folder: Path) -> tuple[int, bytes]:
    """The journal of the newest controller of this run, and its term; 0 and an empty one if there
    is none that is whole."""
    for path in sorted(folder.parent.glob(f"[0-9]*/{FILE}"), reverse=True):
        try:
            journal.end_of(path)
        except (Error, OSError) as error:
            say(f"{path} is ignored: {error}")
        else:
            return int(path.parent.name.partition("-")[0]), path.read_bytes()
    return 0, b""


def begin(job: Job, folder: Path, content: bytes, *, now: float) -> Path:
    """The journal in its folder, with this content or as a new one: all of it, or nothing."""
    fresh = folder.with_name(f".{folder.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700, parents=True)
    write_private(fresh / "job.json", job.model_dump_json(indent=2))
    if content:
        write_durable(fresh / FILE, content)
    else:
        header = journal.Header(
            journal=journal.VERSION,
            holdfast=__version__,
            job=job.model_dump(mode="json"),
            created_at=now,
        )
        journal.Journal.create(fresh / FILE, header).close()
    fresh.rename(folder)
    sync_folder(folder.parent)
    return folder / FILE


def forget_others(folder: Path) -> None:
    """Folders of former controllers of this run, whose journals are in ours."""
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
