"""The user's code as one archive: the same files always give the same bytes, so its hash names it.

It travels in ConfigMaps, which every cluster has, as many as it takes: a pod gets its code from
them whether a controller lives or not. What does not belong to a program (version control, caches,
virtual environments, hidden files) stays behind; what is very large belongs into the image.
"""

import gzip
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from holdfast.errors import Error

FOLDER_BYTES = 200_000_000
MOST_BYTES = 32_000_000  # compressed; etcd, which keeps it, has 2 GiB for a whole cluster
LEFT_OUT = frozenset(("__pycache__", "node_modules", "venv", "env", "wandb"))
SUFFIXES_LEFT_OUT = frozenset((".pyc", ".pyo", ".pt", ".safetensors"))


def bundle(folder: Path) -> bytes:
    """The folder as tar.gz. Raises `Error` code-unusable."""
    if not folder.is_dir():
        raise _unusable(folder, "it is not a folder", "correct `code` in the job file")
    paths = list(_files(folder))
    sizes = {path: path.stat().st_size for path in paths}
    if sum(sizes.values()) > FOLDER_BYTES:
        raise _too_large(folder, f"its files total {_mb(sum(sizes.values()))}", FOLDER_BYTES, sizes)
    data = _packed(folder, paths)
    if len(data) > MOST_BYTES:
        raise _too_large(folder, f"its compressed size is {_mb(len(data))}", MOST_BYTES, sizes)
    return data


def _packed(folder: Path, paths: Iterable[Path]) -> bytes:
    found = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=found, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in paths:
            archive.addfile(_entry(path, folder), io.BytesIO(path.read_bytes()))
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


def _files(folder: Path) -> Iterator[Path]:
    """Files in a fixed order."""
    for path in sorted(folder.iterdir(), key=lambda p: p.name):
        if path.name.startswith(".") or path.name in LEFT_OUT or path.suffix in SUFFIXES_LEFT_OUT:
            continue
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise _unusable(
                path,
                "it is a symbolic link to a path outside the folder",
                "replace the link with a copy of its target",
            )
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _entry(path: Path, folder: Path) -> tarfile.TarInfo:
    """Nothing of who or when: only the name, the size and whether it can be executed."""
    entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
    entry.size = path.stat().st_size
    entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    return entry


def _unusable(path: Path, why: str, remedy: str) -> Error:
    return Error("code-unusable", f"{path} cannot be shipped as code", why=why, help=remedy)
