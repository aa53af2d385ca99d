"""The store at a path or URL: `folder` for paths, `objects` for all that fsspec knows.

The client of a URL is imported when such a store is opened, and never for a folder.
"""

from typing import Any

from holdfast.checkpoint.folder import FolderStore
from holdfast.checkpoint.objects import ObjectStore
from holdfast.checkpoint.stores import CheckpointStore


def open_store(place: str, *, options: dict[str, Any] | None = None) -> CheckpointStore:
    """The store at a path or URL; `options` are those of fsspec's filesystem for the URL.

    Raises `Error` storage-place for what is no place. Nothing is read or made there yet.
    """
    scheme, separator, rest = place.partition("://")
    if not separator or scheme == "file":
        return FolderStore(rest if separator else place)
    return ObjectStore(place, options or {})
