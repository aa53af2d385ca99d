"""The user's code as one archive: the same files always give the same bytes, so its hash names it.

It travels in a ConfigMap, which every cluster has and which easily holds a script with modules.
What does not belong to a program (version control, caches, virtual environments, hidden files)
stays behind; what is too large for a ConfigMap belongs into the image.
"""

import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import Error

LARGEST_BYTES = 700_000  # compressed; base64 makes a third more of it, and a ConfigMap has 1 MiB
LEFT_OUT = frozenset(("__pycache__", "node_modules", "venv", "env", "wandb"))
SUFFIXES_LEFT_OUT = frozenset((".pyc", ".pyo", ".pt", ".safetensors"))


def bundle(folder: Path) -> bytes:
    """The folder as tar.gz. Raises `Error` code-unusable."""
    if not folder.is_dir():
        raise _unusable(folder, "it is not a folder", "correct `code` in the job file")
    found = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=found, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in _files(folder):
            archive.addfile(_entry(path, folder), io.BytesIO(path.read_bytes()))
            if found.tell() > 4 * LARGEST_BYTES:
                break
    data = found.getvalue()
    if len(data) > LARGEST_BYTES:
        why = f"compressed it has more than {LARGEST_BYTES} bytes; a ConfigMap holds no more"
        raise _unusable(folder, why, "name a smaller folder, or put the code into the image")
    return data


def _files(folder: Path) -> Iterator[Path]:
    """Files in a fixed order."""
    for path in sorted(folder.iterdir(), key=lambda p: p.name):
        if path.name.startswith(".") or path.name in LEFT_OUT or path.suffix in SUFFIXES_LEFT_OUT:
            continue
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise _unusable(path, "it is a link that leads outside", "copy what it points to")
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
