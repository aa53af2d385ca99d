"""What compilers have made for machines like this one, in files that other machines can use.

Inductor, Triton and JAX keep compiled code in a folder of the node and find it again by what it was
made from, so a file under the same name is the same code. What lies in that folder can be listed,
and a file of another machine be put there. Whether code fits depends on more than its name tells
(`-march=native`, the C library), so machines that exchange it say first what they are.

A name that came from elsewhere leads nowhere but into the folder, nothing that is there is ever
replaced, and a file is there under its name once it is whole. The cache of the CUDA driver is one
file with an index of its own, changed in place, and stays where it is.
"""

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Annotated

import msgspec
from msgspec import Meta

from holdfast.files import read_plain

FOLDER = "compiled"
PARTS = ("inductor", "triton", "jax")
MOST_BYTES = 2 << 30  # of a cache that is brought here; the newest files of a larger one
MOST_FILES = 50_000
ROOM_BYTES = 1 << 30  # that are left free on the disk
DEPTH = 8
_NAME = re.compile(r"[A-Za-z0-9_+=,@-][A-Za-z0-9._+=,@-]{0,254}")
_LEFT_OUT = frozenset(("locks", "__pycache__"))
_SUFFIXES_LEFT_OUT = (".lock", ".tmp", ".part")
_IDENTITY = ".folder"
_PACKAGES = ("torch", "triton", "jax", "jaxlib")


class CompiledFile(msgspec.Struct, frozen=True, array_like=True):
    """One file, by its name below the folder."""

    name: str
    size: int
    mtime_ns: int
    executable: bool


class CompiledHere(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What compilers have left on this node has another `stamp` than before; empty: nothing. Said
    again on each connection.

    `folder`: where it lies, the same for all that see that folder. `machine`: for what it is.
    `address`: who hands it out, HOST:PORT."""

    folder: Annotated[str, Meta(max_length=64)]
    machine: Annotated[str, Meta(max_length=64)]
    address: Annotated[str, Meta(max_length=300)]
    stamp: Annotated[str, Meta(max_length=64)] = ""


class TakeCompiled(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The member of this name has compiled what you may need: get it there, in the background."""

    name: str
    address: str


def listed(folder: Path, most_bytes: int = MOST_BYTES) -> tuple[CompiledFile, ...]:
    """What lies there, the newest first, and of that as much as may be brought elsewhere. Files
    that vanish meanwhile are left out."""
    found = sorted(_files(folder), key=lambda file: (-file.mtime_ns, file.name))
    kept, size = [], 0
    for file in found[:MOST_FILES]:
        size += file.size
        if size > most_bytes:
            break
        kept.append(file)
    return tuple(kept)


def _files(folder: Path) -> Iterator[CompiledFile]:
    for part in PARTS:
        for here, folders, names in os.walk(folder / part):
            folders[:] = [name for name in folders if name not in _LEFT_OUT]
            for name in names:
                path = Path(here, name)
                with contextlib.suppress(OSError, ValueError):
                    told = path.relative_to(folder).as_posix()
                    place(folder, told)
                    now = path.lstat()
                    if not path.is_symlink():
                        executable = bool(now.st_mode & 0o100)
                        yield CompiledFile(told, now.st_size, now.st_mtime_ns, executable)


def place(folder: Path, name: str) -> Path:
    """Where the file of this name belongs. Raises `ValueError` for one that belongs nowhere."""
    parts = name.split("/")
    sound = all(_NAME.fullmatch(part) for part in parts) and not _LEFT_OUT.intersection(parts)
    if not sound or parts[0] not in PARTS or not 1 < len(parts) <= DEPTH:
        raise ValueError(f"{name!r} is not the name of a compiled file")
    if name.endswith(_SUFFIXES_LEFT_OUT):
        raise ValueError(f"{name!r} is an unfinished file")
    return folder.joinpath(*parts)


def stamp(files: Iterable[CompiledFile]) -> str:
    """What is there, by names: the same on machines that have compiled the same."""
    names = sorted(file.name for file in files)
    return hashlib.sha256("\n".join(names).encode()).hexdigest() if names else ""


# ── putting one there ─────────────────────────────────────────────────────────────────────────


@contextmanager
def arriving(folder: Path, file: CompiledFile) -> Iterator[IO[bytes]]:
    """Where its bytes go. It gets its name when this is left, unless by an exception.

    Raises `ValueError` for a name that leads elsewhere, `OSError` where there is no room."""
    path = place(folder, file.name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{file.name!r} would lie outside of {folder}")
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as opened:
            yield opened
        part.chmod(0o700 if file.executable else 0o600)
        os.utime(part, ns=(file.mtime_ns, file.mtime_ns))
        with contextlib.suppress(FileExistsError):  # compiled here meanwhile
            os.link(part, path)
    finally:
        part.unlink(missing_ok=True)


def lacking(folder: Path, files: Sequence[CompiledFile]) -> list[CompiledFile]:
    """Those of another machine that are not here. Raises `ValueError` for a name that is none."""
    return [file for file in files if not os.path.lexists(place(folder, file.name))]


def room(folder: Path) -> int:
    """Bytes that may still be written there. Raises `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return shutil.disk_usage(folder).free - ROOM_BYTES


# ── what it is for ────────────────────────────────────────────────────────────────────────────


def identity(folder: Path) -> str:
    """The same wherever this folder is seen: on one machine, and on a volume that several have.

    Raises `OSError`."""
    path = folder / _IDENTITY
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = folder / f".{secrets.token_hex(8)}.part"
    fresh.write_text(secrets.token_hex(16))
    try:
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink()
    return read_plain(path, 64).decode(errors="replace")


def machine() -> str:
    """What compiled code depends on besides its name: processor, C library, Python, the libraries
    that compile, and the GPUs."""
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    told = [
        *(platform.machine(), *platform.libc_ver(), sys.version),
        *(release.get("ID", ""), release.get("VERSION_ID", "")),
        *_processor(),
        *(f"{name} {_version(name)}" for name in _PACKAGES),
        *sorted(_gpus()),
    ]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def _processor() -> list[str]:
    """Model and features, as the kernel tells them of the first one."""
    found = {}
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        found = dict(line.split(":", 1) for line in first.splitlines() if ":" in line)
    told = {name.strip(): value.strip() for name, value in found.items()}
    return [told.get(name, "") for name in ("model name", "flags", "Features", "CPU part")]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _gpus() -> Iterator[str]:
    for path in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        with contextlib.suppress(OSError):
            lines = path.read_text().splitlines()
            yield from (line for line in lines if line.startswith("Model"))
