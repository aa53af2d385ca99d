"""Fetch files before training starts: run in an init container as `python -c SOURCE FOLDER PLAN`.

PLAN is JSON, a list of {url, sha256, unpack}. It runs with nothing but the image's Python (and
fsspec for object stores), several pods may do it in one folder of a machine at once, and it may be
killed anywhere: a file is there under its name only when it is whole and has the right hash.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any


def main(folder: Path, plan: list[dict[str, Any]]) -> None:
    """One pod of a machine at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".holdfast-fetch").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for item in plan:
            fetch(folder, **item)


def fetch(folder: Path, url: str, sha256: str | None, unpack: bool) -> None:
    """Leave a mark once everything is there."""
    name = Path(urllib.parse.unquote(urllib.parse.urlparse(url).path)).name or "data"
    mark = folder / f".{name}-{hashlib.sha256(f'{url} {sha256}'.encode()).hexdigest()[:16]}"
    if mark.exists():
        return print(f"{url}: already present", flush=True)
    part = folder / f".{name}.part"
    found = download(url, part)
    if sha256 not in (None, found):
        part.unlink()
        sys.exit(f"{url}: sha256 is {found}, not {sha256}; the file was discarded")
    part.replace(folder / name)
    if unpack:
        unpacked(folder / name, folder)
        (folder / name).unlink()
    mark.touch()
    return print(f"{url}: sha256 {found}", flush=True)


def unpacked(archive: Path, folder: Path) -> None:
    """A tar or zip archive, by its name."""
    if archive.suffix == ".zip":
        shutil.unpack_archive(archive, folder)
    else:
        shutil.unpack_archive(archive, folder, filter="data")  # nothing outside the folder


def download(url: str, part: Path) -> str:
    """The file on disk, for sure; its sha256."""
    digest = hashlib.sha256()
    with opened(url) as source, part.open("wb") as target:
        while block := source.read(1 << 20):
            digest.update(block)
            target.write(block)
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def opened(url: str) -> Any:
    """The stream behind a URL."""
    if url.startswith(("http://", "https://")):
        return urllib.request.urlopen(url, timeout=60)
    import fsspec  # type: ignore[import-untyped,unused-ignore]

    return fsspec.open(url).open()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
