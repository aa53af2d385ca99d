"""Names the file that could not be read, where the library that reads it does not.

A process that is killed while it saves leaves half a file below its final name, and each attempt
after that fails as it reads it. PyTorch and safetensors say what they have met with in the file,
and not which one it was. Its path is in their frames, while the exception is there.
"""

import os
import traceback
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any

OURS = "holdfast: "  # how a note begins
_READERS = (  # ends of their files, what reads, and the name that has the path
    ("/torch/serialization.py", ("load", "_load", "_legacy_load"), "f"),
    ("/safetensors/torch.py", ("load_file",), "filename"),
)
_ZIP = b"PK\x03\x04"  # how a file of `torch.save` begins; its directory is at the end


def note_of(error: BaseException) -> str:
    """A line for whoever reads the exception; empty if it was not raised in reading a file, or
    names it itself and that is whole."""
    path = _path(error.__traceback__)
    try:
        if path is None or not path.is_file():
            return ""
        size = path.stat().st_size
        if _is_half(path):
            how = f"is incomplete ({size:,} bytes): was a process killed while it wrote that file?"
        elif str(path) in str(error):
            return ""
        else:
            how = f"was being read ({size:,} bytes)"
    except Exception:
        return ""
    return f"{OURS}{path} {how}"


def _path(tb: TracebackType | None) -> Path | None:
    found = None
    for frame, _ in traceback.walk_tb(tb):
        code = frame.f_code
        for file, functions, name in _READERS:
            if code.co_filename.endswith(file) and code.co_name in functions:
                found = _as_path(frame.f_locals.get(name)) or found
    return found


def _as_path(given: Any) -> Path | None:
    named = getattr(given, "name", given) if not isinstance(given, os.PathLike) else given
    return Path(named).absolute() if isinstance(named, str | os.PathLike) else None


def _is_half(path: Path) -> bool:
    """As far as that can be seen; what safetensors say of theirs is clear."""
    with path.open("rb") as file:
        start = file.read(len(_ZIP))
    return not start or (start == _ZIP and not zipfile.is_zipfile(path))
