"""The user's code as one archive: the same files always give the same bytes, so its hash names it.

To a cluster it travels in ConfigMaps, which every cluster has, as many as it takes: a pod gets its
code from them whether a controller lives or not. An update of a job on this machine lies in the
job's folder. What does not belong to a program (version control, caches, virtual environments,
hidden files) stays behind; what is very large belongs into the image.

Whoever unpacks trusts nothing but the hash: of an archive that has it, too, only plain files inside
the folder are taken, as many as may be, and the folder is there under its name once it is whole.
"""

import contextlib
import gzip
import hashlib
import io
import itertools
import os
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from holdfast.errors import Error

FOLDER = "code"  # where bundles lie, in the folder of a job
STARTED, FIRST = "started", "first"  # files there: see `drivers/started_code.py`
FOLDER_BYTES = 200_000_000
FASTEST, SMALLEST = 1, 9  # what is kept beside the first start of a job is to cost it little
SMALL_BYTES, SMALL_FILES = 20_000_000, 5_000  # of a folder that is kept without being asked for
MOST_BYTES = 32_000_000  # compressed; etcd, which keeps it, has 2 GiB for a whole cluster
LEFT_OUT = frozenset(("__pycache__", "node_modules", "venv", "env", "wandb"))
SUFFIXES_LEFT_OUT = frozenset((".pyc", ".pyo", ".pt", ".safetensors"))


def bundle(folder: Path) -> bytes:
    """The folder as tar.gz. Raises `Error` code-unusable."""
    if not folder.is_dir():
        raise _unusable(folder, "it is not a folder", "correct `code` in the job file")
    try:
        return _bundle(folder)
    except OSError as error:
        path = Path(error.filename or folder)
        raise _unusable(path, error.strerror or str(error), "make it readable") from error


def _bundle(folder: Path) -> bytes:
    found = _stats(folder)
    sizes = {path: stat.st_size for path, stat in found.items()}
    if sum(sizes.values()) > FOLDER_BYTES:
        raise _too_large(folder, f"its files total {_mb(sum(sizes.values()))}", FOLDER_BYTES, sizes)
    data = _packed(folder, found)
    if len(data) > MOST_BYTES:
        raise _too_large(folder, f"its compressed size is {_mb(len(data))}", MOST_BYTES, sizes)
    _require_one_state(found, _stats(folder))
    return data


def bundle_if_small(folder: Path) -> bytes:
    """The same of a folder that holds little else than code; empty of any other. Raises `Error`
    code-unusable and `OSError`."""
    some = itertools.islice(_files(folder, folder.resolve()), SMALL_FILES + 1)
    found = {path: path.stat() for path in some}
    size = sum(stat.st_size for stat in found.values())
    small = len(found) <= SMALL_FILES and size <= SMALL_BYTES
    return _packed(folder, found, FASTEST) if small else b""


def _stats(folder: Path) -> dict[Path, os.stat_result]:
    """Its files; one that is deleted meanwhile is none."""
    found = {}
    for path in _files(folder, folder.resolve()):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat()
    return found


def _require_one_state(
    before: Mapping[Path, os.stat_result], after: Mapping[Path, os.stat_result]
) -> None:
    """Half of one commit and half of the next is no program. Only sources count: what runs may
    write its output there."""
    for path in sorted({*before, *after}):
        if path.suffix == ".py" and _stamp(before.get(path)) != _stamp(after.get(path)):
            raise _unusable(path, "it changed while the folder was read", "try again")


def _stamp(stat: os.stat_result | None) -> tuple[int, ...] | None:
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat is not None else None


def _packed(folder: Path, files: Mapping[Path, os.stat_result], level: int = SMALLEST) -> bytes:
    found = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=found, mode="wb", compresslevel=level, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, stat in files.items():
            with contextlib.suppress(FileNotFoundError):
                data = path.read_bytes()
                archive.addfile(_entry(path, folder, stat.st_mode, len(data)), io.BytesIO(data))
    return found.getvalue()


def _too_large(folder: Path, what: str, limit: int, sizes: Mapping[Path, int]) -> Error:
    largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
    named = ", ".join(f"{p.relative_to(folder)} ({_mb(sizes[p])})" for p in largest)
    return _unusable(
        folder,
        f"{what}, the limit is {_mb(limit)}; the largest files are {named}",
        "use a smaller folder, build the code into the image, or move large files to `datasets`",
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _files(folder: Path, root: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Files in a fixed order, of a folder in `root`; `above` are the real folders on the way."""
    way = (*above, Path(os.path.realpath(folder)))
    for path in sorted(folder.iterdir(), key=lambda p: p.name):
        if path.name.startswith(".") or path.name in LEFT_OUT or path.suffix in SUFFIXES_LEFT_OUT:
            continue
        if path.is_symlink():
            _require_inside(path, root, way)
        if path.is_dir():
            yield from _files(path, root, way)
        elif path.is_file():
            yield path


def _require_inside(link: Path, root: Path, way: tuple[Path, ...]) -> None:
    target = os.path.realpath(link)
    if not Path(target).is_relative_to(root):
        why = "it is a symbolic link to a path outside the folder"
        raise _unusable(link, why, "replace the link with a copy of its target")
    if any(folder.is_relative_to(target) for folder in way):
        why = "it is a symbolic link to a folder that it lies in"
        raise _unusable(link, why, "remove the link")


def _entry(path: Path, folder: Path, mode: int, size: int) -> tarfile.TarInfo:
    """Nothing of who or when: only the name, the size and whether it can be executed."""
    entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
    entry.size = size
    entry.mode = 0o755 if mode & 0o100 else 0o644
    return entry


def _unusable(path: Path, why: str, remedy: str) -> Error:
    return Error("code-unusable", f"{path} cannot be shipped as code", why=why, help=remedy)


# ── at the other end ──────────────────────────────────────────────────────────────────────────


def digest(data: bytes | bytearray) -> str:
    """What names a bundle."""
    return hashlib.sha256(data).hexdigest()


def named_in(path: Path) -> str:
    """The bundle that this file names; empty if there is no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""


def packed(folder: Path, name: str) -> Path:
    """Where the bundle of this name is kept."""
    return folder / f"{name}.tar.gz"


def keep(data: bytes, folder: Path) -> str:
    """Put a bundle where `unpacked` finds it, and return its name. Raises `OSError`."""
    name = digest(data)
    path = packed(folder, name)
    if not path.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        part = folder / f".{name}.{secrets.token_hex(4)}"
        try:
            part.write_bytes(data)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return name


def unpacked(folder: Path, name: str) -> Path:
    """The folder with the files of the bundle of this name, which `keep` has put there.

    Raises `ValueError` for a bundle that is not what its name says, or that holds what no bundle
    may hold, and `OSError`.
    """
    target = folder / name
    if target.is_dir():
        return target
    data = packed(folder, name).read_bytes()
    if (found := digest(data)) != name:
        raise ValueError(f"the bundle of code has SHA-256 {found}, not {name}")
    part = folder / f".{name}.{secrets.token_hex(4)}"
    try:
        extract(data, part)
        os.rename(part, target)
    except OSError:
        if not target.is_dir():  # else another node of this machine was faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def extract(data: bytes, folder: Path) -> None:
    """Write the files of a bundle into a new folder. Raises `ValueError`, `OSError`."""
    folder.mkdir(mode=0o700)
    left = FOLDER_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for entry in archive:
                left -= entry.size
                path = folder / _place(entry)
                if left < 0:
                    raise ValueError(f"the bundle is larger than {_mb(FOLDER_BYTES)}")
                if entry.isreg() and (source := archive.extractfile(entry)) is not None:
                    _write(path, source, executable=bool(entry.mode & 0o100))
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"the bundle cannot be read: {error}") from error


def _place(entry: tarfile.TarInfo) -> PurePosixPath:
    """Where it belongs; only folders and plain files belong anywhere."""
    path = PurePosixPath(entry.name)
    if path.is_absolute() or ".." in path.parts or not (path.parts or entry.isdir()):
        raise ValueError(f"{entry.name!r} in the bundle is outside of its folder")
    if not (entry.isreg() or entry.isdir()):
        raise ValueError(f"{entry.name!r} in the bundle is neither a file nor a folder")
    return path


def _write(path: Path, source: IO[bytes], *, executable: bool) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("xb") as file:
        shutil.copyfileobj(source, file)
    path.chmod(0o700 if executable else 0o600)
